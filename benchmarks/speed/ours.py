"""One side of the PPO benchmark: this library, step by step, through the parts that `tightrope ppo` is made of.

    python -m benchmarks.speed.ours S default 3          # three steps; a row each, and what they come to
    python -m benchmarks.speed.ours M same_maths 1 --prompts 4

CPU seconds are the process's, on one thread (set OMP_NUM_THREADS=1). Nothing is written during a step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed import sizes
from benchmarks.speed.contests import OURS
from benchmarks.speed.material import material
from benchmarks.speed.sizes import ALL_SIZES, Size
from benchmarks.speed.turns import Turns
from tightrope.algorithms.options import PPOConfig
from tightrope.assemble.own_loop import parts_of
from tightrope.protocols import SampleSink
from tightrope.training.run import OnlineRun
from tightrope.training.step import train_step
from tightrope.training.timing import Stopwatch, TimedEngine, TimedJudge, TimedLearner
from tightrope.types import Rollout, Scores


def mathematics_of(side: str, size: Size) -> dict[str, dict[str, Any]]:
    """What of the config makes the difference. ``same_maths``: four networks, policy and critic trained whole, as the
    peer does; ``default``: adapters and a value head on one frozen backbone; ``cached``: adapters in its upper half
    only, and what comes out of the lower half computed once a rollout.
    """
    differences: dict[str, dict[str, dict[str, Any]]] = {
        "same_maths": {"ppo": {"critic": "separate"}},
        "default": {"model": {"lora": sizes.LORA}},
        "cached": {"model": {"lora": sizes.LORA | {"from_layer": size.layers // 2}}},
    }
    return differences[side]


def main() -> None:
    asked = arguments().parse_args()
    torch.set_num_threads(1)
    size = ALL_SIZES[asked.size]
    size = replace(size, prompts=asked.prompts or size.prompts, new_tokens=asked.new_tokens or size.new_tokens)
    turns = Turns({"stage": "ppo", "size": size.name, "side": asked.label or asked.mathematics}, asked.steps)
    walk(size, config_of(size, mathematics_of(asked.mathematics, size)), turns)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="PPO steps of this library, timed.")
    parser.add_argument("size", choices=ALL_SIZES)
    parser.add_argument("mathematics", choices=OURS)
    parser.add_argument("steps", type=int, nargs="?", help="absent: one for each line on stdin")
    parser.add_argument("--prompts", type=int, help="fewer (or more) a step, for a quick look")
    parser.add_argument("--new-tokens", type=int, help="longest response")
    parser.add_argument("--label", help="what the rows call this side")
    return parser


def walk(size: Size, config: PPOConfig, turns: Turns) -> None:
    """Steps as long as they are asked for."""
    clock, counted = Stopwatch(time.process_time), TokenCount()
    run = timed(parts_of(config), clock, counted)
    while turns.wait():
        train_step(run)
        turns.give(clock.take(), {"tokens": counted.tokens, "response_tokens": counted.responses})
        run.core.progress.advance()


class TokenCount:
    """A SampleSink: how many real tokens the last rollout had."""

    tokens = responses = 0

    def keep(self, step: int, attempt: int, rollout: Rollout, scores: Scores, split: str) -> None:
        self.tokens, self.responses = len(rollout.rows.tokens), rollout.rows.n_actions


def timed(run: OnlineRun, clock: Stopwatch, samples: SampleSink) -> OnlineRun:
    return replace(
        run,
        samples=samples,
        engine=TimedEngine(run.engine, clock),
        judge=TimedJudge(run.judge, clock),
        learner=TimedLearner(run.learner, clock),
    )


def config_of(size: Size, mathematics: Mapping[str, Any]) -> PPOConfig:
    """The workload as a config; ``mathematics`` is laid over it, section by section."""
    made = material(size)
    content: dict[str, Any] = {
        "output": Path("unused"),
        "model": {"name": str(made.model)},
        "data": {"train": made.prompts, "held_out": 0},
        "optimizer": {"learning_rate": size.learning_rate, "critic_learning_rate": size.learning_rate},
        "training": {"steps": 1000},
        "rollout": {
            "prompts_per_step": size.prompts,
            "max_new_tokens": size.new_tokens,
            "temperature": sizes.TEMPERATURE,
        },
        "reward": {
            "model": str(made.reward),
            "normalise": "off",
            "missing_eos": {"value": sizes.MISSING_EOS},
        },
        "kl": {"mode": "fixed", "beta": sizes.BETA, "target": 6.0},
        "ppo": {
            "epochs": size.epochs,
            "minibatches": size.minibatches,
            "clip_range": sizes.CLIP_RANGE,
            "value_clip": sizes.VALUE_CLIP,
            "value_coef": sizes.VALUE_COEF,
            "gamma": sizes.GAMMA,
            "lam": sizes.LAM,
            "value_warmup_steps": 0,  # a step of the critic alone is cheaper
            "target_kl": None,  # so is one whose epochs end early
        },
        "evaluation": {"prompts": 0},
    }
    for section, values in mathematics.items():
        content[section] = content[section] | values
    return PPOConfig.model_validate(content)


if __name__ == "__main__":
    main()
