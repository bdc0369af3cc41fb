"""SFT and reward-model steps of this library, timed, through the parts that `tightrope sft` and `rm` are made of.

python -m benchmarks.speed.our_stages sft S same_maths 5
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.contests import OURS
from benchmarks.speed.material import material
from benchmarks.speed.ours import mathematics_of
from benchmarks.speed.sizes import SIZES, Size
from benchmarks.speed.turns import Turns
from tightrope.algorithms.options import RewardModelConfig, SFTConfig
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.inputs import read_inputs
from tightrope.assemble.offline import build_offline
from tightrope.assemble.own_loop import NoJournal, NoStore
from tightrope.assemble.parts import Outputs
from tightrope.training.run import OfflineRun
from tightrope.training.step import offline_step
from tightrope.types import Demonstrations, Preferences


def main() -> None:
    parser = argparse.ArgumentParser(description="SFT and reward-model steps of this library, timed.")
    parser.add_argument("stage", choices=("sft", "reward"))
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("mathematics", choices=OURS)
    parser.add_argument("steps", type=int, nargs="?", help="absent: one for each line on stdin")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    size = SIZES[asked.size]
    config = config_of(asked.stage, size, mathematics_of(asked.mathematics, size))
    walk(config, Turns({"stage": asked.stage, "size": size.name, "side": asked.mathematics}, asked.steps))


def walk(config: SFTConfig | RewardModelConfig, turns: Turns) -> None:
    built = build_offline(config, read_inputs(config), Outputs(NoStore(), NoJournal(), Nobody(), Nobody()))
    assert isinstance(built.run, OfflineRun)
    batches = Counted(built.run.next_batch)
    run = replace(built.run, next_batch=batches.next)
    while turns.wait():
        offline_step(run)
        turns.give({}, {"tokens": batches.tokens})
        run.core.progress.advance()


class Counted:
    """Batches as they come, and how many real tokens the last one had."""

    def __init__(self, source: Callable[[], Demonstrations | Preferences]) -> None:
        self._source = source
        self.tokens = 0

    def next(self) -> Demonstrations | Preferences:
        batch = self._source()
        self.tokens = len(batch.rows.tokens)
        return batch


def config_of(stage: str, size: Size, mathematics: Mapping[str, Any]) -> SFTConfig | RewardModelConfig:
    """Of ``mathematics`` only what these stages have: adapters or whole models."""
    made = material(size)
    content: dict[str, Any] = {
        "output": Path("unused"),
        "model": {"name": str(made.model)} | mathematics.get("model", {}),
        "data": {"train": made.answers, "held_out": 0},
        "optimizer": {"learning_rate": size.learning_rate},
        "training": {"steps": 1000},
    }
    if stage == "sft":
        return SFTConfig.model_validate(content | {"sft": {"batch_size": size.minibatch}})
    return RewardModelConfig.model_validate(content | {"reward_model": {"batch_size": size.minibatch}})


if __name__ == "__main__":
    main()
