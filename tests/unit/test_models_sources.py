"""Which folder does a model's name mean: paths, runs, adapters, names of the hub's local cache?"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from huggingface_hub import constants
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.tiny import tiny_gpt2, tiny_llama
from tightrope.config.errors import TightropeError
from tightrope.config.schema import ModelSection
from tightrope.models.load import load_network, load_tokenizer, resolve_model_folder

COMMIT, OLDER = "c" * 40, "a" * 40
LLAMA_TARGETS = ["q_proj", "v_proj", "down_proj"]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty local hub cache, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TIGHTROPE_CACHE", str(tmp_path / "cache"))


def cached(hub, name, commit=COMMIT, ref="main"):
    """The layout that huggingface_hub keeps: refs name commits, snapshots hold the files."""
    repository = hub / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / ref).write_text(commit)
    (repository / "blobs").mkdir(exist_ok=True)
    folder = repository / "snapshots" / commit
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def refused(call, *parts):
    with pytest.raises(TightropeError) as error:
        call()
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value), str(error.value)


def test_a_hub_name_is_read_from_the_local_cache(hub):
    folder = tiny_llama(cached(hub, "org/small"))
    assert resolve_model_folder("org/small") == folder
    assert load_network(folder, ModelSection(name="org/small")).hidden_size == 32


def test_a_revision_is_a_commit_or_a_branch(hub):
    newer = tiny_llama(cached(hub, "org/small"))
    older = tiny_llama(cached(hub, "org/small", OLDER, ref="v1"), seed=1)
    assert resolve_model_folder("org/small") == newer
    assert resolve_model_folder("org/small", "v1") == older
    assert resolve_model_folder("org/small", OLDER) == older
    refused(lambda: resolve_model_folder("org/small", "v9"), "org/small", "not in the local cache")
    refused(lambda: resolve_model_folder(newer, "v1"), "model.revision", "path")


def test_a_folder_wins_over_a_hub_name(hub, tmp_path):
    tiny_llama(cached(hub, "org/small"))
    mine = tiny_llama(tmp_path / "org" / "small")
    assert resolve_model_folder("org/small").resolve() == mine


def test_names_that_lead_nowhere(hub, tmp_path):
    refused(lambda: resolve_model_folder("org/smal"), "org/smal", "HF_HUB_OFFLINE", "hf download org/smal")
    (tmp_path / "runs").mkdir()
    for path in ("runs/sft", "./sft", str(tmp_path / "nowhere")):  # never asked of the hub
        refused(lambda path=path: resolve_model_folder(path), "no such model folder", path.removeprefix("./"))
    refused(lambda: resolve_model_folder("m.gguf"), "no such file")


def test_a_hub_that_does_not_answer(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(
        "tightrope.models.sources.HfApi", lambda: __import__("huggingface_hub").HfApi("http://127.0.0.1:9")
    )
    refused(lambda: resolve_model_folder("org/small"), "org/small", "the hub does not answer")


def test_half_a_download_is_not_a_model(hub):
    folder = tiny_llama(cached(hub, "org/big"))
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(lambda: resolve_model_folder("org/big"), "only partly in the local cache")


@pytest.mark.parametrize(("file", "said"), [("pytorch_model.bin", "is a pickle"), ("m.gguf", "GGUF")])
def test_a_hub_model_without_safetensors(hub, file, said):
    folder = tiny_llama(cached(hub, "org/old"))
    (folder / "model.safetensors").rename(folder / file)
    refused(lambda: resolve_model_folder("org/old"), "org/old", said)


def adapter_of(base, folder, *, targets, rank=4, name=None, **options):
    """What any peft user has on disk."""
    model = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(r=rank, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM", **options)
    wrapped = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, parameter in wrapped.named_parameters():
            if "lora_" in key:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    wrapped.save_pretrained(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(base) if name is None else name
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("make", "targets", "options"),
    [(tiny_llama, LLAMA_TARGETS, {"use_rslora": True}), (tiny_gpt2, ["c_attn", "c_proj"], {"fan_in_fan_out": True})],
)
def test_an_adapter_is_its_base_with_the_adapter_merged(tmp_path, make, targets, options):
    base = make(tmp_path / "base")
    adapter = adapter_of(base, tmp_path / "adapter", targets=targets, **options)
    folder = resolve_model_folder(adapter)
    assert folder == resolve_model_folder(adapter)  # made once
    ids = torch.tensor([[5, 9, 12, 30, 7]])
    plain = AutoModelForCausalLM.from_pretrained(base)
    before = plain(ids).logits
    theirs = PeftModel.from_pretrained(plain, str(adapter)).eval()(ids).logits
    ours = AutoModelForCausalLM.from_pretrained(folder).eval()(ids).logits
    assert not torch.allclose(before, theirs, atol=1e-2)
    assert torch.allclose(ours, theirs, atol=1e-5)  # merged against two products, in float32
    assert load_tokenizer(folder)("a cat")["input_ids"] == load_tokenizer(base)("a cat")["input_ids"]
    assert load_network(folder, ModelSection(name=adapter)).hidden_size == 32


def test_an_adapter_finds_its_base_beside_it_or_in_the_hub_cache(hub, tmp_path):
    base = tiny_llama(cached(hub, "org/small"))
    beside = shutil.copytree(base, tmp_path / "models" / "base")
    for number, name in enumerate(("org/small", "../base")):
        adapter = adapter_of(base, beside.parent / f"adapter{number}", targets=LLAMA_TARGETS, name=name)
        assert (resolve_model_folder(adapter) / "model.safetensors").is_file()


def test_adapters_that_cannot_be_used(hub, tmp_path):
    base = tiny_llama(tmp_path / "base")
    adapter = adapter_of(base, tmp_path / "lost", targets=LLAMA_TARGETS, name="org/lost")
    refused(lambda: resolve_model_folder(adapter), str(adapter), "base cannot be found", "org/lost")
    wider = tiny_llama(tmp_path / "wider", hidden=64)
    adapter = adapter_of(base, tmp_path / "narrow", targets=LLAMA_TARGETS, name=str(wider))
    refused(lambda: resolve_model_folder(adapter), str(adapter), "does not fit its base", str(wider))
    other = tiny_gpt2(tmp_path / "other")
    adapter = adapter_of(base, tmp_path / "targets", targets=LLAMA_TARGETS, name=str(other))
    refused(lambda: resolve_model_folder(adapter), "does not fit its base")
    adapter = adapter_of(base, tmp_path / "pickled", targets=LLAMA_TARGETS)
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    refused(lambda: resolve_model_folder(adapter), "is a pickle")
    (adapter / "adapter_model.bin").unlink()
    refused(lambda: resolve_model_folder(adapter), "the adapter has no weights")


def test_an_adapter_with_weights_missing_is_not_half_an_adapter(tmp_path):
    base = tiny_llama(tmp_path / "base")
    adapter = adapter_of(base, tmp_path / "adapter", targets=LLAMA_TARGETS)
    weights = load_file(adapter / "adapter_model.safetensors")
    gone = min(weights)
    save_file({key: value for key, value in weights.items() if key != gone}, adapter / "adapter_model.safetensors")
    refused(lambda: resolve_model_folder(adapter), "does not fit its base", f"it lacks {gone}")


def test_an_adapter_over_a_resized_embedding_names_both_sizes(tmp_path):
    base = tiny_llama(tmp_path / "base")
    rows = json.loads((base / "config.json").read_text())["vocab_size"]
    grown = tmp_path / "grown"
    model = AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(rows + 1)
    model.save_pretrained(grown)
    adapter = adapter_of(
        grown, tmp_path / "adapter", targets=LLAMA_TARGETS, name=str(base), modules_to_save=["embed_tokens", "lm_head"]
    )
    refused(lambda: resolve_model_folder(adapter), f"{rows + 1} tokens and its base has {rows}")


def test_a_tokenizer_with_more_tokens_than_the_embedding(tmp_path):
    folder = tiny_llama(tmp_path / "m")
    tokenizer = load_tokenizer(folder)
    rows = len(tokenizer)
    tokenizer.add_tokens(["<|role|>"])
    tokenizer.save_pretrained(folder)
    refused(lambda: load_tokenizer(folder), str(folder), f"{rows + 1} tokens", f"{rows} rows", "<|role|>")


def test_a_special_token_without_a_row_that_nothing_uses_is_no_error(tmp_path):
    folder = tiny_llama(tmp_path / "m")
    tokenizer = load_tokenizer(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(folder)
    assert len(load_tokenizer(folder)) == len(tokenizer)
