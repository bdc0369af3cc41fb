"""Does a GGUF file become a folder that gives the file's own tokens and log-probs, once, and whole or not at all?"""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tightrope.config.errors import TightropeError
from tightrope.models import gguf

LETTERS = "abcdefgh"
WORDS = ["<unk>", "<s>", "</s>", *LETTERS, "ab", "cd", "abcd", "Ġ"]
MERGES = ["a b", "c d", "ab cd"]
TEMPLATE = "{% for message in messages %}{{ bos_token }}{{ message['content'] }}{{ eos_token }}{% endfor %}"
HEADS, KV_HEADS, HIDDEN = 4, 2, 16


def test_a_file_becomes_a_folder_with_its_tokens_and_its_log_probs(tmp_path: Path, cache: Path):
    model = tiny_model(seed=0)
    folder = gguf.converted(write_gguf(tmp_path / "tiny.gguf", model))

    tokenizer = AutoTokenizer.from_pretrained(folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    assert folder.parent == cache / "gguf"
    assert tokenizer("abcdh").input_ids == [WORDS.index("abcd"), WORDS.index("h")]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<s>", "</s>", "<unk>")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "<s>ab</s>"
    assert (loaded.config.eos_token_id, loaded.config.pad_token_id) == (2, 0)
    ids = torch.tensor([[1, 11, 12, 3, 4, 5, 2]])
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, atol=1e-6, rtol=0)


def test_a_second_call_converts_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    file = write_gguf(tmp_path / "tiny.gguf", tiny_model(seed=1))
    folder = gguf.converted(file)
    monkeypatch.setattr(gguf, "convert_in_child", lambda *_: pytest.fail("converted twice"))
    same = tmp_path / "renamed.gguf"
    same.write_bytes(file.read_bytes())
    assert gguf.converted(same) == folder


def test_two_processes_at_once_make_one_folder(tmp_path: Path, cache: Path):
    file = write_gguf(tmp_path / "tiny.gguf", tiny_model(seed=2))
    with multiprocessing.get_context("fork").Pool(2) as both:
        folders = both.map(gguf.converted, [file, file])
    assert folders[0] == folders[1]
    assert sorted(path.suffix for path in (cache / "gguf").iterdir()) == ["", ".lock"]


def test_what_is_no_model_is_told_in_one_line(tmp_path: Path, cache: Path):
    whole = write_gguf(tmp_path / "whole.gguf", tiny_model(seed=3))
    cut, text = tmp_path / "cut.gguf", tmp_path / "text.gguf"
    cut.write_bytes(whole.read_bytes()[:900])
    text.write_text("hello")
    unknown = write_gguf(tmp_path / "unknown.gguf", tiny_model(seed=3), architecture="nosuch")
    for file, words in ((cut, "broken"), (text, "not a GGUF file"), (unknown, "nosuch"), (tmp_path / "no", "No such")):
        with pytest.raises(TightropeError, match=words) as caught:
            gguf.converted(file)
        assert str(file) in str(caught.value) and "\n" not in str(caught.value)
    assert not [path for path in (cache / "gguf").iterdir() if path.is_dir()]


def test_without_the_package_the_command_that_installs_it_is_told(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    with pytest.raises(TightropeError, match=r"pip install 'tightrope\[gguf\]'"):
        gguf.converted(write_gguf(tmp_path / "tiny.gguf", tiny_model(seed=4)))


def test_a_child_that_is_killed_leaves_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    killed = tmp_path / "killed"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr(gguf.sys, "executable", str(killed))
    with pytest.raises(TightropeError, match="memory"):
        gguf.converted(write_gguf(tmp_path / "tiny.gguf", tiny_model(seed=5)))
    assert not [path for path in (cache / "gguf").iterdir() if path.is_dir()]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIGHTROPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tiny_model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def write_gguf(file: Path, model: LlamaForCausalLM, architecture: str = "llama") -> Path:
    """The model as llama.cpp stores it: query and key rows permuted to its order of rotary halves."""
    from gguf import GGUFWriter

    writer, config = GGUFWriter(file, architecture), model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3, *[1] * (len(WORDS) - 3)])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, weight in tensors(model):
        writer.add_tensor(name, np.ascontiguousarray(weight.detach().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def tensors(model: LlamaForCausalLM):
    yield "token_embd.weight", model.model.embed_tokens.weight
    yield "output_norm.weight", model.model.norm.weight
    for index, layer in enumerate(model.model.layers):
        at = f"blk.{index}"
        yield f"{at}.attn_norm.weight", layer.input_layernorm.weight
        yield f"{at}.ffn_norm.weight", layer.post_attention_layernorm.weight
        yield f"{at}.attn_q.weight", permuted(layer.self_attn.q_proj.weight, HEADS)
        yield f"{at}.attn_k.weight", permuted(layer.self_attn.k_proj.weight, KV_HEADS)
        yield f"{at}.attn_v.weight", layer.self_attn.v_proj.weight
        yield f"{at}.attn_output.weight", layer.self_attn.o_proj.weight
        yield f"{at}.ffn_gate.weight", layer.mlp.gate_proj.weight
        yield f"{at}.ffn_up.weight", layer.mlp.up_proj.weight
        yield f"{at}.ffn_down.weight", layer.mlp.down_proj.weight


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
