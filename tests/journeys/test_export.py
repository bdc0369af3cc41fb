"""Does `tightrope export` write what transformers and peft load, from finished and unfinished runs alike?"""

from __future__ import annotations

import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.commands import call
from tests.runs import run_quietly, tiny_config, tiny_files
from tests.tiny import tiny_gpt2, tiny_llama

IDS = torch.tensor([[5, 6, 7, 8, 9, 1]])
MODELS = {"llama": tiny_llama, "gpt2": tiny_gpt2}


@pytest.fixture(scope="module", params=MODELS)
def place(request, tmp_path_factory):
    """A finished LoRA run of each kind."""
    folder = tmp_path_factory.mktemp(request.param)
    files = tiny_files(folder, MODELS[request.param](folder / "model"))
    for stage in ("ppo", "rm"):
        run_quietly(stage, tiny_config(stage, files, folder / stage, lora=True))
    return folder


def logprobs(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits.log_softmax(-1)


def test_merged_and_adapter_folders_give_the_same_logprobs(place, tmp_path, capsys):
    for flag in ("merged", "adapter"):
        code, out, err = call(capsys, "export", place / "ppo", f"--{flag}", "--to", tmp_path / flag)
        assert code == 0, err
        assert "step 4 of 4" in out
    assert not (tmp_path / "merged/adapter").exists() and not (tmp_path / "adapter/config.json").exists()
    merged = logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))
    base = AutoModelForCausalLM.from_pretrained(place / "model")
    start = logprobs(base)
    over_base = logprobs(PeftModel.from_pretrained(base, tmp_path / "adapter"))
    torch.testing.assert_close(over_base, merged, rtol=0, atol=1e-5)
    assert (merged - start).abs().max() > 1e-4, "nothing was trained"
    at_the_end = logprobs(AutoModelForCausalLM.from_pretrained(place / "ppo/export"))
    torch.testing.assert_close(merged, at_the_end, rtol=0, atol=0)


def test_a_reward_model_scores_the_same_as_classifier_and_as_adapter(place, tmp_path, capsys):
    for flag in ("merged", "adapter"):
        assert call(capsys, "export", place / "rm", f"--{flag}", "--to", tmp_path / flag)[0] == 0
    with torch.no_grad():
        at_the_end = AutoModelForSequenceClassification.from_pretrained(place / "rm/export")(IDS).logits
        merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")(IDS).logits
        base = AutoModelForSequenceClassification.from_pretrained(place / "model", num_labels=1)
        adapter = PeftModel.from_pretrained(base, tmp_path / "adapter")(IDS).logits
    torch.testing.assert_close(merged, at_the_end, rtol=0, atol=0)
    torch.testing.assert_close(adapter, merged, rtol=0, atol=1e-5)
    read_with = json.loads((tmp_path / "merged/config.json").read_text())["pad_token_id"]
    assert f"base.config.pad_token_id = {read_with} " in (tmp_path / "adapter/README.md").read_text()
    assert "held-out pairs in the right order" in (tmp_path / "merged/README.md").read_text()


def test_an_earlier_checkpoint_says_so_on_its_card(place, tmp_path, capsys):
    assert call(capsys, "export", place / "ppo", "--checkpoint", "iter-2", "--to", tmp_path / "early")[0] == 0
    card = (tmp_path / "early/README.md").read_text()
    assert "step 2 of 4: the training was not finished" in card
    assert "KL to the start: beta 0.05 at first, adaptive, target by response length, in the reward (k1)" in card
    assert "prompts.jsonl`, sha256" in card and str(place) not in card
    end = (place / "ppo/export/README.md").read_text()
    assert "not finished" not in end and "| reward (raw) |" in end and "| KL to the start" in end
    early = logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / "early"))
    assert not torch.equal(early, logprobs(AutoModelForCausalLM.from_pretrained(place / "ppo/export")))


def test_bfloat16_and_best(place, tmp_path, capsys):
    words = ["export", place / "ppo", "--checkpoint", "best", "--dtype", "bfloat16", "--to", tmp_path / "half"]
    assert call(capsys, *words)[0] == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "half").dtype == torch.bfloat16


def test_wrong_input_is_one_line(place, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    for words, says in (
        ([place / "none"], "this is no run folder"),
        ([place / "ppo", "--checkpoint", "iter-3"], "no such checkpoint; expected latest, best, iter-4, iter-2"),
        ([place / "ppo", "--to", tmp_path / "full"], "not empty"),
        ([place / "ppo", "--dtype", "float16"], "--dtype"),
    ):
        code, out, err = call(capsys, "export", *words)
        assert (code, out) == (2, "") and err.count("\n") == 1 and says in err, err


def test_a_policy_s_card_tells_how_good_its_reward_model_was(place, tmp_path, capsys):
    files = tiny_files(tmp_path, place / "model")
    config = tiny_config("ppo", files, tmp_path / "run", lora=True, steps=1, reward_model=place / "rm")
    run_quietly("ppo", config)
    card = (tmp_path / "run/export/README.md").read_text()
    accuracy = json.loads((place / "rm/export/tightrope.json").read_text())["accuracy"]
    assert f"- reward: model `rm`, which has {accuracy:.1%} of " in card and "KL to the start: beta" in card
    (tmp_path / "gone").mkdir()
    (place / "rm").rename(tmp_path / "gone/rm")
    try:
        assert call(capsys, "export", tmp_path / "run", "--to", tmp_path / "later")[0] == 0
    finally:
        (tmp_path / "gone/rm").rename(place / "rm")
    assert "- reward: model `rm`\n" in (tmp_path / "later/README.md").read_text()
