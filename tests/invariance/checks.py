"""The invariances of a whole step, each as one function that raises AssertionError where it does not hold.

test_step.py asks them of every stage; test_step_errors.py seeds the error that each is there to find.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.invariance.whole_step import (
    ONLINE,
    Walk,
    batch_of,
    config_of,
    differences,
    experience_of,
    outcome_of,
    require_same,
    separate_offline_roles,
    separate_online_roles,
    two_steps,
)
from tests.runs import Files
from tightrope.assemble import offline, online
from tightrope.assemble.parts import Assembled
from tightrope.models import families
from tightrope.training import learner
from tightrope.training.run import OnlineRun
from tightrope.training.seeds import permutation

BETWEEN = 40
"""Tokens: two or three of the tiny sequences to a micro-batch."""


def token_budget(files: Files, folder: Path, stage: str, *, lora: bool = False) -> None:
    """All rows at once, a few at a time, one at a time."""
    whole = outcome_of(config_of(stage, files, lora=lora), folder / "whole")
    for budget in (1, BETWEEN):
        cut = outcome_of(config_of(stage, files, budget=budget, lora=lora), folder / str(budget))
        require_same(whole, cut, f"token_budget {budget}")


def row_order(files: Files, folder: Path, stage: str) -> None:
    """Of the rows of a minibatch, and of the prompts of a rollout."""
    config = config_of(stage, files, options={"epochs": 1, "minibatches": 1})
    forward = outcome_of(config, folder / "forward")
    orders: dict[str, Walk] = {"rows": reversed_rows} | ({"prompts": reversed_prompts} if stage in ONLINE else {})
    for name, walk in orders.items():
        backward = outcome_of(config, folder / name, walk)
        told = {key: forward.metrics[key] for key in backward.metrics}  # what the update alone tells
        require_same(replace(forward, metrics=told), backward, f"the order of {name}")


def reversed_rows(built: Assembled) -> Mapping[str, float]:
    batch = batch_of(built)
    return updated(built, batch.select(list(reversed(range(len(batch))))))


def reversed_prompts(built: Assembled) -> Mapping[str, float]:
    assert isinstance(built.run, OnlineRun)
    return updated(built, experience_of(built.run, reversed_prompts=True))


def updated(built: Assembled, batch: Any) -> Mapping[str, float]:
    metrics = dict(built.run.learner.update(batch).metrics)
    del metrics["learning_rate_factor"]
    return metrics


def packing(files: Files, folder: Path, stage: str, *, lora: bool = False) -> None:
    """Rows back to back with our attention, against rows filled up and transformers' own, for the whole step."""
    config = config_of(stage, files, lora=lora)
    packed = outcome_of(config, folder / "packed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(families, "PACKED", ())
        padded = outcome_of(config, folder / "padded")
    require_same(packed, padded, "packing")


def shared_backbone(files: Files, folder: Path, stage: str, reward: Path, critic: str | None = None) -> None:
    """One backbone with an adapter for each role, against a copy of it for each, over two steps."""
    settings: dict[str, Any] = {"lora": True}
    if stage in ONLINE:
        settings |= {"reward_model": reward, "options": {} if critic is None else {"critic": critic}}
    config = config_of(stage, files, **settings)
    shared = outcome_of(config, folder / "shared", two_steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online, "online_roles", separate_online_roles)
        patch.setattr(offline, "offline_roles", separate_offline_roles)
        separate = outcome_of(config, folder / "separate", two_steps)
    require_same(shared, separate, "sharing a backbone")


def epochs_apart(files: Files, folder: Path, stage: str, walk: Walk | None = None) -> None:
    """Two epochs of one update, against two updates of one epoch on the same stored experience: bit for bit."""
    both, one = ({"epochs": epochs, "minibatches": 2} for epochs in (2, 1))
    together = outcome_of(config_of(stage, files, options=both), folder / "together", one_update)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner, "permutation", orders_go_on)
        apart = outcome_of(config_of(stage, files, options=one), folder / "apart", walk or two_updates)
    apart = replace(apart, metrics=together.metrics)  # those are means over what one update processed
    require_same(together, apart, "an update for each epoch")
    assert differences(together, apart) == (0.0, 0.0, 0.0)


def orders_go_on(seed: int, attempt: int, step: int, epoch: int, n: int) -> list[int]:
    """The second update draws the orders of the first one's second epoch."""
    return permutation(seed, attempt, 0, step + epoch, n)


def one_update(built: Assembled) -> Mapping[str, float]:
    return updated(built, batch_of(built))


def two_updates(built: Assembled) -> Mapping[str, float]:
    batch = batch_of(built)
    updated(built, batch)
    return updated(built, batch)
