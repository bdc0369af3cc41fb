"""Does each family go the whole way, from demonstrations to PPO, by the same config with ``model.name`` changed?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.runs import run_quietly, tiny_config, tiny_files
from tests.tiny import tiny_family

AT_ONCE = {"ppo": {"value_warmup_steps": 0}}
KINDS = ("gpt2", "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "bloom")


@pytest.fixture(scope="module", params=KINDS)
def place(request, tmp_path_factory) -> tuple[Path, Path, Path]:
    """The base, an SFT run and a reward model of it."""
    folder = tmp_path_factory.mktemp(request.param)
    files = tiny_files(folder, tiny_family(request.param, folder / "base"), rows=16)
    sft = run_quietly("sft", tiny_config("sft", files, folder / "sft", steps=2)).folder
    files = replace(files, model=sft / "export")
    reward = run_quietly("rm", tiny_config("rm", files, folder / "rm", lora=True, steps=2)).folder
    return folder, sft, reward


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_ppo_trains_what_sft_and_rm_made(place, lora):
    folder, sft, reward = place
    files = replace(tiny_files(folder, sft, rows=16), model=sft)
    config = tiny_config("ppo", files, folder / f"ppo-{lora}", lora=lora, steps=2, reward_model=reward, changes=AT_ONCE)
    done = run_quietly("ppo", config)
    assert done.steps == 2 and done.export is not None
    before, after = (dict(load(path).named_parameters()) for path in (sft / "export", done.export))
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert moved and all(bool(after[name].isfinite().all()) for name in moved)


def load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder)
