"""python -m benchmarks.code_task [--steps 40] [--seed 0] [--folder FOLDER]

A Llama of random weights learns from careless demonstrations to write small functions (half of them are of another
function), then RLOO with the code reward makes it write the right ones. One JSON line: the share of held-out tasks, on
inputs that the reward never used, that the SFT model and the RL model solve at the first try, with 95 % intervals of
the difference, paired by task; and the seconds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.code_task.tasks import all_tasks, demonstrations, vocabulary
from tightrope.algorithms.options import CONFIGS
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.reward_sources import code_reward_of
from tightrope.assemble.stage import start
from tightrope.config.code_reward import CodeSection
from tightrope.demo.evaluation import Limits, mean_kl, sampled
from tightrope.demo.model import write_base_model
from tightrope.demo.tokenizer import SPECIAL
from tightrope.maths.diagnostics import paired_difference
from tightrope.types import SampleKey

HELD_OUT = 200
EACH = 10
LIMITS = Limits(max_new_tokens=32, token_budget=16_384)
EVALUATION_DRAWS = 7


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def trained(stage: str, folder: Path, model: Path, data: Path, seed: int, settings: Mapping[str, Any]) -> Path:
    content = {
        "output": folder / stage,
        "seed": seed,
        "model": {"name": model},
        "data": {"train": data, "held_out": 32},
        **settings,
    }
    done = start(stage, CONFIGS[stage].model_validate(content), lambda stage, config: Nobody())
    assert done.outcome == "finished", done
    return folder / stage / "export"


def solved(model: Path, rows: Path, seed: int) -> tuple[list[float], Any]:
    """1 or 0 a held-out task, one sample each at temperature 1."""
    rollout = sampled(model, rows, HELD_OUT, 1, SampleKey(seed, 0, EVALUATION_DRAWS), LIMITS)
    return code_reward_of(CodeSection()).score(rollout.samples()), rollout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--sft-steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="code-task-"))
    began = time.monotonic()
    train, held_out = all_tasks(asked.seed, HELD_OUT)
    (folder / "data").mkdir(parents=True, exist_ok=True)
    base = folder / "base"
    write_base_model(base, [*SPECIAL, *vocabulary([*train, *held_out])], asked.seed)
    taught = write_rows(folder / "data/demonstrations.jsonl", demonstrations(train, EACH, asked.seed))
    prompts = write_rows(folder / "data/prompts.jsonl", (task.row(held_out=False) for task in train))
    unseen = write_rows(folder / "data/held_out.jsonl", (task.row(held_out=True) for task in held_out))
    sft = trained("sft", folder, base, taught, asked.seed, sft_settings(asked.sft_steps))
    rl = trained("rloo", folder, sft, prompts, asked.seed, rl_settings(asked.steps))
    before, _ = solved(sft, unseen, asked.seed)
    after, rollout = solved(rl, unseen, asked.seed)
    gain = paired_difference(before, after)
    print(
        json.dumps(
            {
                "seed": asked.seed,
                "training_tasks": len(train),
                "held_out_tasks": len(before),
                "solved_before": round(sum(before) / len(before), 3),
                "solved_after": round(sum(after) / len(after), 3),
                "difference": [round(gain.estimate, 3), round(gain.low, 3), round(gain.high, 3)],
                "kl_seq": round(mean_kl(rl, sft, rollout, LIMITS), 2),
                "steps": asked.steps,
                "seconds": round(time.monotonic() - began),
            }
        )
    )


def sft_settings(steps: int) -> dict[str, Any]:
    return {
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 30},
        "training": {"steps": steps, "token_budget": LIMITS.token_budget},
        "checkpoint": {"every": steps},
        "sft": {"batch_size": 64, "evaluate_every": steps},
    }


def rl_settings(steps: int) -> dict[str, Any]:
    return {
        "optimizer": {"learning_rate": 5e-4},
        "training": {"steps": steps, "token_budget": LIMITS.token_budget},
        "checkpoint": {"every": steps},
        "rollout": {"prompts_per_step": 48, "samples_per_prompt": 4, "max_new_tokens": LIMITS.max_new_tokens},
        "reward": {
            "sources": ({"name": "tests", "code": {"credit": "all"}},),
            "normalise": "off",
            "missing_eos": {"mode": "off"},
        },
        "kl": {"mode": "fixed", "beta": 0.005},
    }


if __name__ == "__main__":
    main()
