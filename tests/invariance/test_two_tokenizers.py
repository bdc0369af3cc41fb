"""A reward model of another family and tokenizer scores a policy exactly as `rm score` scores the same text (B59)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.commands import call
from tests.runs import built_run, tiny_config, tiny_files
from tests.tiny import CHAT_TEMPLATE, tiny_gpt2, tiny_llama
from tightrope.config.errors import TightropeError
from tightrope.config.schema import RunConfig
from tightrope.models.load import load_tokenizer
from tightrope.types import Rollout, SampleKey, Scores

TEXTS = (
    "The cat sat on the mat, and was not good at all.",
    "naïve café — “quoted” 🙂🙃 déjà vu",
    "  two  spaces\tand a tab\n\nand lines  ",
    "<|end|> in the middle <eos> and <pad>",
    "数字 １２３ and Ω",
    "one two three",
)


def byte_level_bpe(end: str, size: int) -> PreTrainedTokenizerFast:
    """GPT-2's kind: every byte is known, so any text comes back as it was."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[end], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end, bos_token=end, pad_token=end)


def saved(folder: Path, kind: type, config: object, tokenizer: PreTrainedTokenizerFast, seed: int) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def smollm_like(folder: Path) -> Path:
    tokenizer = byte_level_bpe("<|im_end|>", 300)
    tokenizer.chat_template = CHAT_TEMPLATE
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=160,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return saved(folder, LlamaForCausalLM, config, tokenizer, 1)


def gpt2_like(folder: Path) -> Path:
    tokenizer = byte_level_bpe("<|endoftext|>", 280)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.2
    )
    return saved(folder, GPT2LMHeadModel, config, tokenizer, 2)


def reward_model(make, folder: Path) -> Path:
    make(folder)
    weights = load_file(folder / "model.safetensors")
    head = torch.randn(1, 32, generator=torch.Generator().manual_seed(5))
    save_file(weights | {"score.weight": head}, folder / "model.safetensors", {"format": "pt"})
    return folder


PAIRS = {
    "smollm policy, gpt2 reward": (smollm_like, gpt2_like),
    "smollm policy, word reward": (smollm_like, tiny_llama),
    "word policy, gpt2 reward": (tiny_gpt2, gpt2_like),
    "gpt2 policy, smollm reward": (gpt2_like, smollm_like),
}


def ppo_config(tmp_path: Path, policy, reward, rows) -> RunConfig:
    files = tiny_files(tmp_path, policy(tmp_path / "policy"))
    files.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tiny_config(
        "ppo",
        files,
        tmp_path / "run",
        reward_model=reward_model(reward, tmp_path / "rm"),
        changes={
            "data": {"held_out": 0},
            "evaluation": {"prompts": 0, "function": None},
            "reward": {"normalise": "off", "missing_eos": {"mode": "off"}},
            "training": {"token_budget": 8192},  # as `rm score` does, so that not even the summation differs
            "rollout": {"max_new_tokens": 12},
        },
    )


@pytest.mark.parametrize("policy, reward", PAIRS.values(), ids=PAIRS)
def test_the_score_in_a_ppo_run_is_that_of_rm_score_on_the_text(tmp_path, capsys, policy, reward):
    config = ppo_config(tmp_path, policy, reward, [{"prompt": text} for text in TEXTS])
    run = built_run(config, tmp_path / "built").run
    prompts = run.prompts.next_batch()
    rollout: Rollout = run.engine.generate(prompts, 2, run.sampling, SampleKey(0, 0, 0))
    scores: Scores = run.judge.score(rollout)
    assert "length" in rollout.finish_reason
    asked = tmp_path / "asked.jsonl"
    rows = [{"prompt": s.prompt.row["prompt"], "completion": s.response} for s in rollout.samples()]
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, said = call(capsys, "rm", "score", tmp_path / "rm", asked, "--output", tmp_path / "scores.jsonl")
    assert code == 0, said
    told = [json.loads(line)["score"] for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert scores.parts["raw"].tolist() == told
    assert len(set(told)) > len(told) // 2  # a reward model that sees the text


def test_the_texts_are_hard(tmp_path):
    """A random byte policy writes bytes that are no UTF-8: its ids are not what its text becomes again."""
    config = ppo_config(tmp_path, smollm_like, gpt2_like, [{"prompt": text} for text in TEXTS])
    run = built_run(config, tmp_path / "built").run
    rollout = run.engine.generate(run.prompts.next_batch(), 2, run.sampling, SampleKey(0, 0, 0))
    tokenizer = load_tokenizer(tmp_path / "policy")
    again = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in rollout.responses]
    assert any(ids != rollout.rows.actions(i).tolist() for i, ids in enumerate(again))
    assert any("\ufffd" in text for text in rollout.responses)


def test_a_conversation_for_a_reward_model_without_template_is_told_before_weights_load(tmp_path):
    rows = [{"prompt": "one two"}, {"prompt": [{"role": "user", "content": "one two three"}]}]
    config = ppo_config(tmp_path, smollm_like, gpt2_like, rows * 3)
    (tmp_path / "policy" / "model.safetensors").unlink()
    with pytest.raises(TightropeError) as error:
        built_run(config, tmp_path / "built")
    assert str(tmp_path / "rm") in str(error.value) and "no chat template" in str(error.value)
    assert "\n" not in str(error.value)


def test_conversations_go_through_the_reward_models_own_template(tmp_path, capsys):
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in TEXTS]
    config = ppo_config(tmp_path, smollm_like, tiny_llama, rows)
    path = tmp_path / "rm" / "chat_template.jinja"
    path.write_text("{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} {% endfor %}")
    run = built_run(config, tmp_path / "built").run
    rollout = run.engine.generate(run.prompts.next_batch(), 1, run.sampling, SampleKey(0, 0, 0))
    scores = run.judge.score(rollout)
    asked = tmp_path / "asked.jsonl"
    lines = [json.dumps({"prompt": s.prompt.row["prompt"], "completion": s.response}) for s in rollout.samples()]
    asked.write_text("\n".join(lines) + "\n")
    call(capsys, "rm", "score", tmp_path / "rm", asked, "--output", tmp_path / "scores.jsonl")
    told = [json.loads(line)["score"] for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert scores.parts["raw"].tolist() == told
