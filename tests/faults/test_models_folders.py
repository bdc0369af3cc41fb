"""A model folder that is not what it should be is refused in one line that says what to do."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny import tiny_llama
from tightrope.config.errors import TightropeError
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.models.export import RewardFacts, export_policy, export_reward
from tightrope.models.load import context_length, eos_ids, load_network, load_tokenizer, resolve_model_folder
from tightrope.models.manifest import MANIFEST, read_manifest, require_kind
from tightrope.models.roles import offline_roles, online_roles

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "model")


def load(folder):
    return load_network(folder, ModelSection(name=folder))


def refused(call, *parts: str) -> None:
    with pytest.raises(TightropeError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, text


def edit(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_an_sft_result_is_no_reward_model(original, tmp_path):
    policy = offline_roles(ModelSection(name=original), "sft", 0).policy
    assert policy is not None
    export_policy(policy, original, tmp_path / "sft", "sft")
    (tmp_path / "sft" / WEIGHTS).write_bytes(b"never read")
    refused(
        lambda: require_kind(tmp_path / "sft", "reward"),
        f"{tmp_path / 'sft'} is an SFT result, not a reward model; train one with `tightrope rm train`",
    )
    export_policy(policy, original, tmp_path / "ppo", "ppo")
    refused(lambda: require_kind(tmp_path / "ppo", "reward"), "is a policy, not a reward model")
    refused(lambda: require_kind(original, "reward"), "is not a reward model (score.weight is not in its weights)")
    refused(
        lambda: online_roles(
            ModelSection(name=original), critic=None, reward_model=original, needs_reference=False, seed=0
        ),
        "not a reward model",
    )


def test_a_reward_model_without_its_head_or_as_policy(original, tmp_path):
    reward = offline_roles(ModelSection(name=original), "rm", 0).reward
    assert reward is not None
    export_reward(reward, original, tmp_path / "rm", RewardFacts([], 0.0, 1.0, 0, None))
    refused(lambda: require_kind(tmp_path / "rm", "policy"), "is a reward model, not a policy")
    refused(lambda: load(tmp_path / "rm"), "is a reward model, not a policy")
    weights = load_file(tmp_path / "rm" / WEIGHTS)
    del weights["score.weight"]
    save_file(weights, tmp_path / "rm" / WEIGHTS, metadata={"format": "pt"})
    refused(lambda: require_kind(tmp_path / "rm", "reward"), "reward model without its head", "score.weight")


def test_pickled_weights_are_refused_unread(folder):
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    refused(lambda: load(folder), "pytorch_model.bin is a pickle", "*.safetensors")
    (folder / "pytorch_model.bin").unlink()
    refused(lambda: load(folder), "no weights")


@pytest.mark.parametrize("damage", ["truncated", "empty", "text"])
def test_damaged_weights(folder, damage):
    whole = (folder / WEIGHTS).read_bytes()
    content = {"truncated": whole[: len(whole) // 2], "empty": b"", "text": b"version https://git-lfs"}[damage]
    (folder / WEIGHTS).write_bytes(content)
    refused(lambda: load(folder), str(folder), "the weights cannot be loaded")


def test_wrong_shapes(folder):
    edit(folder / "config.json", hidden_size=48, head_dim=8)
    refused(lambda: load(folder), str(folder), "does not fit config.json", " x 48, found ", " x 32")


def test_b55_a_vocabulary_of_another_size_is_told_with_both_sizes(folder):
    stored = json.loads((folder / "config.json").read_text())["vocab_size"]
    edit(folder / "config.json", vocab_size=stored + 1)
    refused(lambda: load(folder), str(folder), f"expected {stored + 1} x 32, found {stored} x 32")


def test_weights_that_are_no_numbers(folder):
    weights = load_file(folder / WEIGHTS)
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    refused(lambda: load(folder), str(folder), "model.norm.weight holds NaN or infinity")


def test_a_config_with_a_value_of_the_wrong_kind(folder):
    edit(folder / "config.json", num_attention_heads="four")
    refused(lambda: load(folder), str(folder), "num_attention_heads")


def test_a_config_that_makes_transformers_stumble(folder):
    edit(folder / "config.json", num_attention_heads=0)
    refused(lambda: load(folder), str(folder), "cannot be loaded")


def test_a_quantiser_that_is_not_installed(folder):
    edit(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    refused(lambda: load(folder), str(folder), "cannot be loaded", "optimum")


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight"])
def test_missing_weights_are_not_drawn_at_random(folder, name):
    weights = load_file(folder / WEIGHTS)
    del weights[name]
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    refused(lambda: load(folder), "1 weights are missing", name)


def test_unsupported_architectures(folder):
    edit(folder / "config.json", model_type="mamba")
    refused(lambda: load(folder), "mamba is not supported", "recurrent")
    refused(lambda: context_length(folder), "mamba is not supported", "recurrent")
    edit(folder / "config.json", model_type="llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0})
    refused(lambda: load(folder), "dynamic", "neighbours")


def test_folders_that_are_no_models(tmp_path, folder):
    refused(lambda: resolve_model_folder(tmp_path / "nowhere"), "no such model folder")
    (tmp_path / "empty").mkdir()
    refused(lambda: resolve_model_folder(tmp_path / "empty"), "not a model folder")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "resolved.yaml").write_text("")
    refused(lambda: resolve_model_folder(tmp_path / "run"), "no export yet")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    refused(lambda: resolve_model_folder(tmp_path / "adapter"), "does not say its base")
    (folder / "config.json").write_text("{")
    refused(lambda: context_length(folder), "config.json", "cannot be read")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    refused(lambda: context_length(folder), "max_position_embeddings")


def test_no_tokenizer_and_no_end_token(folder):
    tokenizer = load_tokenizer(folder)
    tokenizer.eos_token = None
    edit(folder / "config.json", eos_token_id=None)
    edit(folder / "generation_config.json", eos_token_id=None)
    refused(lambda: eos_ids(folder, tokenizer), "no end-of-sequence token")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    refused(lambda: load_tokenizer(folder), str(folder), "no tokenizer")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schema": 99, "kind": "sft"}', '{"schema": 1, "kind": "cat"}'])
def test_a_manifest_that_cannot_be_understood(folder, text):
    (folder / MANIFEST).write_text(text)
    refused(lambda: read_manifest(folder), MANIFEST, "the stage manifest cannot be read")


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
def test_a_gpu_that_is_not_there(folder):
    refused(lambda: load_network(folder, ModelSection(name=folder, device="cuda")), "model.device", "no CUDA")


def test_an_adapter_that_does_not_fit(original, tmp_path):
    section = ModelSection(name=original, lora=LoraSection(rank=2))
    reward = offline_roles(section, "rm", 0).reward
    assert reward is not None
    export_reward(reward, original, tmp_path / "rm", RewardFacts([], 0.0, 1.0, 0, None))
    edit(tmp_path / "rm" / "adapter" / "adapter_config.json", r=3)
    refused(
        lambda: online_roles(section, critic=None, reward_model=tmp_path / "rm", needs_reference=False, seed=0),
        "the adapter does not fit the model",
    )
    (tmp_path / "rm" / "adapter" / "adapter_config.json").unlink()
    refused(
        lambda: online_roles(section, critic=None, reward_model=tmp_path / "rm", needs_reference=False, seed=0),
        str(tmp_path / "rm"),
        "adapter_config.json",
    )
