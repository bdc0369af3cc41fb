"""What is read from a folder before and while its weights load?"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.tiny import tiny_family, tiny_gpt2, tiny_llama
from tightrope.config.errors import TightropeError
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.models.export import RewardFacts, export_reward
from tightrope.models.heads import reward_head
from tightrope.models.load import (
    context_length,
    device_of,
    dtype_of,
    eos_ids,
    for_training,
    load_network,
    load_reward_head,
    load_tokenizer,
    resolve_model_folder,
)
from tightrope.models.lora import adapter_parameters, add_adapter
from tightrope.models.manifest import base_hash, require_kind, template_hash, tokenizer_hash
from tightrope.models.memory import Work, estimate, reward_weights
from tightrope.models.packed_forward import sequence_scores
from tightrope.models.roles import load_reward, offline_roles, online_roles
from tightrope.types import TokenRows


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("models") / "llama", context=48)


def edit(path, **fields):
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | fields))


def test_context_comes_from_the_config(llama, tmp_path):
    assert context_length(llama) == 48
    assert context_length(tiny_gpt2(tmp_path / "gpt2", context=32)) == 32


def test_every_id_that_ends_a_response(tmp_path):
    folder = tiny_llama(tmp_path / "m")
    tokenizer = load_tokenizer(folder)
    assert eos_ids(folder, tokenizer) == (1,)
    edit(folder / "generation_config.json", eos_token_id=[1, 7])
    edit(folder / "config.json", eos_token_id=9)
    assert eos_ids(folder, tokenizer) == (1, 7, 9)
    (folder / "generation_config.json").unlink()
    assert eos_ids(folder, tokenizer) == (1, 9)


def test_a_run_folder_means_its_export(tmp_path):
    folder = tiny_llama(tmp_path / "run" / "export")
    assert resolve_model_folder(tmp_path / "run") == folder
    assert resolve_model_folder(folder) == folder


def test_network_facts_and_dropout_off(tmp_path):
    network = load_network(tiny_gpt2(tmp_path / "g"), ModelSection(name=tmp_path / "g"))
    assert (network.context_length, network.hidden_size, network.family.name) == (64, 32, "gpt2")
    assert (network.device.type, network.dtype) == ("cpu", torch.float32)
    assert network.unembedding_bias is None and network.unembedding_weight.shape[1] == 32
    assert not any(module.training for module in network.model.modules())
    half = load_network(tmp_path / "g", ModelSection(name=tmp_path / "g", dtype="bfloat16"))
    assert half.dtype == torch.bfloat16


def test_a_copy_shares_no_memory_and_keeps_tied_weights_tied(tmp_path):
    network = load_network(tiny_llama(tmp_path / "m", tied=True), ModelSection(name=tmp_path / "m"))
    copy = network.copy()
    theirs = {p.data_ptr() for p in network.model.parameters()}
    assert all(p.data_ptr() not in theirs for p in copy.model.parameters())
    embedding = copy.model.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    assert copy.unembedding_weight.data_ptr() == embedding.weight.data_ptr()


def test_adapters_start_from_the_seed_alone(llama):
    section = ModelSection(name=llama, lora=LoraSection(rank=2))
    assert section.lora is not None
    starts = []
    for seed in (0, 0, 1):
        network = load_network(llama, section)
        add_adapter(network, "policy", section.lora, seed)
        starts.append(adapter_parameters(network, "policy"))
    assert len(starts[0]) == 2 * 7 * 2  # A and B of seven matrices in two layers
    for name, weight in starts[0].items():
        assert torch.equal(weight, starts[1][name])
        if name.endswith("lora_B"):
            assert not bool(weight.any())
        else:
            assert not torch.equal(weight, starts[2][name])
            bound = weight.shape[1] ** -0.5
            assert 0.9 * bound < weight.abs().max() <= bound
    assert not torch.equal(starts[0]["layers.0.self_attn.q_proj.lora_A"], starts[0]["layers.0.self_attn.o_proj.lora_A"])


def test_adapters_of_a_bfloat16_trunk_are_float32(llama):
    network = load_network(llama, ModelSection(name=llama, dtype="bfloat16"))
    add_adapter(network, "policy", LoraSection(rank=2), 0)
    assert {p.dtype for p in adapter_parameters(network, "policy").values()} == {torch.float32}


def test_reward_head_has_the_published_spread():
    head = reward_head(4096, torch.device("cpu"), seed=0)
    # Standard error of a deviation from 4096 draws is 1.1 %; four of them.
    assert head.weight.std().item() == pytest.approx(4097**-0.5, rel=0.045)
    assert head.bias is None and head.weight.dtype == torch.float32
    assert torch.equal(head.weight, reward_head(4096, torch.device("cpu"), seed=0).weight)


def test_heads_compute_in_float32():
    head = reward_head(8, torch.device("cpu"), seed=0)
    hidden = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(head(hidden), hidden.float() @ head.weight)


def test_hashes_change_with_what_they_stand_for(tmp_path):
    folder = tiny_llama(tmp_path / "a")
    same = tiny_llama(tmp_path / "b")
    assert base_hash(folder) == base_hash(same)
    assert tokenizer_hash(folder) == tokenizer_hash(same) and template_hash(folder) == template_hash(same)
    assert base_hash(tiny_llama(tmp_path / "c", seed=1)) != base_hash(folder)
    (same / "chat_template.jinja").write_text("other")
    edit(same / "tokenizer_config.json", eos_token="<unk>")
    assert template_hash(folder) != template_hash(same) and tokenizer_hash(folder) != tokenizer_hash(same)
    (same / "chat_template.jinja").unlink()
    assert template_hash(same) is None


@pytest.mark.parametrize("tied", [True, False])
def test_memory_counts_parameters_exactly(tmp_path, tied):
    folder = tiny_llama(tmp_path / "m", tied=tied)
    stored = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    assert stored == sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(folder).parameters())
    (folder / "model.safetensors").unlink()  # config.json is enough
    full = estimate(folder, ModelSection(name=folder), Work(100, copies=2, critic="shared"))
    assert (full.parameters, full.trained, full.weights) == (stored, stored, 3 * 4 * stored)
    assert (full.gradients, full.optimizer) == (4 * stored, 8 * stored)
    section = ModelSection(name=folder, lora=LoraSection(rank=4))
    lora = estimate(folder, section, Work(100, critic="separate"))
    adapter = 4 * 2 * ((32 + 32) * 2 + (32 + 16) * 2 + (32 + 64) * 3)
    assert lora.trained == 2 * adapter and lora.weights == 4 * stored + 4 * 2 * adapter
    assert full.total == full.weights + full.gradients + full.optimizer + full.activations
    assert full.exact


def test_memory_of_a_critic_of_its_own_is_a_trunk_and_a_second_pass_without_logits(tmp_path):
    folder = tiny_llama(tmp_path / "m", hidden=32, tied=False)
    section = ModelSection(name=folder)
    shared = estimate(folder, section, Work(256, 32, critic="shared"))
    separate = estimate(folder, section, Work(256, 32, critic="separate"))
    trunk = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(folder).model.parameters())
    assert separate.trained == shared.trained + trunk and separate.weights == 4 * separate.trained
    assert shared.activations < separate.activations < 2 * shared.activations


@pytest.mark.parametrize("family", ["gemma2", "bloom"])
def test_attention_that_is_written_out_grows_with_the_length_of_its_rows(tmp_path, family):
    folder = tiny_family(family, tmp_path / "m")
    short, long = (estimate(folder, ModelSection(name=folder), Work(2048, row)) for row in (16, 128))
    heads = json.loads((folder / "config.json").read_text())
    heads = heads.get("num_attention_heads") or heads["n_head"]
    assert short.exact and long.exact
    assert long.activations - short.activations > 4 * heads * 2048 * (128 - 16)  # at least the scores of one layer


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_fused_attention_keeps_no_scores(tmp_path, family):
    folder = tiny_family(family, tmp_path / "m")
    short, long = (estimate(folder, ModelSection(name=folder), Work(2048, row)) for row in (32, 256))
    assert short.exact and long.exact
    assert abs(long.activations - short.activations) < 0.1 * short.activations


def test_a_reward_model_counts_as_what_it_is(tmp_path):
    base = tiny_llama(tmp_path / "base")
    section = ModelSection(name=base, lora=LoraSection(rank=4))
    role = offline_roles(section, "rm", 0).reward
    assert role is not None
    export_reward(role, base, tmp_path / "reward", RewardFacts((), None, None, 0, None))
    adapter, _ = reward_weights(tmp_path / "reward", base, section)
    assert adapter == 4 * sum(
        t.numel() for t in load_file(tmp_path / "reward/adapter/adapter_model.safetensors").values()
    )
    own, read = reward_weights(tmp_path / "reward", base, ModelSection(name=base))
    stored = sum(t.numel() for t in load_file(tmp_path / "reward/model.safetensors").values())
    assert own == read == 4 * stored
    wider = tiny_llama(tmp_path / "wider", hidden=64)
    assert reward_weights(tmp_path / "reward", wider, section)[0] == 4 * stored  # not an adapter on that one


def test_all_weights_of_a_full_run_are_float32_where_adapters_leave_the_backbone_in_bfloat16(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    gpu, full = torch.device("cuda"), ModelSection(name=tmp_path)
    with_adapters = ModelSection(name=tmp_path, lora=LoraSection(rank=2))
    assert dtype_of(for_training(full), gpu) == torch.float32
    assert dtype_of(for_training(with_adapters), gpu) == torch.bfloat16
    assert dtype_of(full, gpu) == torch.bfloat16  # scoring and generating
    asked = ModelSection(name=tmp_path, dtype="bfloat16")
    assert dtype_of(for_training(asked), gpu) == torch.bfloat16


@pytest.mark.parametrize("stage", ["sft", "rm", "dpo", "ppo"])
def test_every_role_of_a_full_run_has_the_trained_type(tmp_path, monkeypatch, stage):
    monkeypatch.setattr("tightrope.models.load.device_of", lambda model: torch.device("cpu"))
    monkeypatch.setattr(
        "tightrope.models.load.dtype_of",
        lambda model, device: torch.float32 if model.dtype == "float32" else torch.bfloat16,
    )
    section = ModelSection(name=tiny_llama(tmp_path / "m"))
    if stage == "ppo":
        roles = online_roles(section, critic="separate", reward_model=None, needs_reference=True, seed=0)
    else:
        roles = offline_roles(section, stage, seed=0)
    present = [role for role in (roles.policy, roles.reference, roles.critic, roles.reward) if role is not None]
    assert present and {role.network.dtype for role in present} == {torch.float32}


@pytest.mark.parametrize("dtype", ["float16", "fp16", "half", "torch.float16"])
def test_pure_half_precision_is_refused_with_its_reason(tmp_path, dtype):  # B51
    with pytest.raises(ValidationError, match="pure float16 is refused: its range ends at 65504"):
        ModelSection.model_validate({"name": "m", "dtype": dtype})


def test_a_float16_checkpoint_is_read_wider(tmp_path):
    folder = tiny_llama(tmp_path / "m")
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).save_pretrained(folder)
    assert load_file(folder / "model.safetensors")["model.norm.weight"].dtype == torch.float16
    assert load_network(folder, ModelSection(name=folder)).dtype == torch.float32


def test_an_apple_gpu_takes_float32_alone():
    assert ModelSection(name="m", device="mps").device == "mps"
    assert dtype_of(ModelSection(name="m", device="mps"), torch.device("mps")) == torch.float32
    with pytest.raises(ValidationError, match="bfloat16 on an Apple GPU is not supported"):
        ModelSection(name="m", device="mps", dtype="bfloat16")


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="asks for a GPU that is not there")
def test_an_apple_gpu_that_is_not_there():
    with pytest.raises(TightropeError, match=r"model\.device: this torch has no Apple GPU"):
        device_of(ModelSection(name="m", device="mps"))


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_a_reward_model_of_other_tools_scores_as_transformers_does(tmp_path, make):
    base = make(tmp_path / "base")
    with torch.random.fork_rng(devices=[]):
        theirs = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1).eval()
    theirs.save_pretrained(tmp_path / "rm")
    for file in base.glob("tokenizer*"):
        shutil.copyfile(file, tmp_path / "rm" / file.name)
    require_kind(tmp_path / "rm", "reward")  # no manifest
    role = load_reward(tmp_path / "rm", ModelSection(name=tmp_path / "rm"))
    ids = [5, 9, 12, 1]
    ours = sequence_scores(role, TokenRows.of([(ids, [])])).item()
    assert ours == pytest.approx(theirs(torch.tensor([ids])).logits.item(), abs=1e-5)  # fp32, two attention kernels
    assert abs(ours) > 1e-3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"score.weight": torch.ones(2, 32)}, "expected num_labels 1, found 2 labels"),
        ({"score.weight": None, "v_head.summary.weight": torch.ones(1, 32)}, "v_head.summary.weight is not supported"),
    ],
)
def test_reward_heads_that_are_not_supported(tmp_path, change, said):
    folder = tiny_llama(tmp_path / "rm")
    weights = load_file(folder / "model.safetensors") | {"score.weight": torch.ones(1, 32)} | change
    save_file({k: v for k, v in weights.items() if v is not None}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(TightropeError, match=said):
        require_kind(folder, "reward")


def test_a_reward_head_with_a_bias(tmp_path):
    folder = tiny_llama(tmp_path / "rm")
    weights = load_file(folder / "model.safetensors") | {
        "score.weight": torch.ones(1, 32),
        "score.bias": torch.tensor([3.0]),
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    head = load_reward_head(folder, torch.device("cpu"))
    assert head(torch.zeros(1, 32)).item() == 3.0
