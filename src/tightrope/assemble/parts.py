"""What both kinds of run are made of: outputs, optimizers, the plan of an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tightrope.config.schema import OptimizerSection, RunConfig
from tightrope.guardian.guardian import StepGuardian
from tightrope.maths.schedules import constant_after_warmup, cosine_decay_with_warmup, linear_decay_with_warmup
from tightrope.models.roles import Role, Roles
from tightrope.protocols import CheckpointStore, Journal, SampleSink, Stateful
from tightrope.records import Tracker
from tightrope.training.evaluate import Evaluate
from tightrope.training.loop import Steps, StopSignals
from tightrope.training.optimisers import NamedAdamW, group_options
from tightrope.training.run import OfflineRun, OnlineRun, Progress, RunCore
from tightrope.training.selftest import Check
from tightrope.training.timing import Stopwatch


@dataclass(frozen=True)
class Outputs:
    """Where a run writes."""

    store: CheckpointStore
    journal: Journal
    tracker: Tracker
    samples: SampleSink


@dataclass(frozen=True)
class Assembled:
    """A run with its weights loaded; nothing has been drawn or trained yet.

    ``prepare`` measures what a new run needs before its first step, ``self_test`` what must be true at step 0;
    ``steps`` walks the run to its end and gives each finished step. ``result`` is the role whose weights are wanted.
    """

    run: OnlineRun | OfflineRun[Any]
    prepare: Callable[[], None]
    self_test: Callable[[], list[Check]]
    steps: Callable[[StopSignals], Steps]
    roles: Roles
    result: Role


def core_of(
    config: RunConfig,
    outputs: Outputs,
    progress: Progress,
    clock: Stopwatch,
    state: Mapping[str, Stateful],
    evaluate: Evaluate,
    evaluate_every: int,
) -> RunCore:
    """``state``: what changes in this kind of run. Where it stands and its guardian belong to every run's."""
    guardian = StepGuardian(config.guardian)
    return RunCore(
        stage=config.stage,
        seed=config.seed,
        total_steps=config.training.steps,
        progress=progress,
        state={"progress": progress, **state, "guardian": guardian},
        store=outputs.store,
        guardian=guardian,
        tracker=outputs.tracker,
        journal=outputs.journal,
        clock=clock,
        checkpoint_every=config.checkpoint.every,
        evaluate=evaluate,
        evaluate_every=evaluate_every,
    )


def optimizers_of(section: OptimizerSection, roles: Roles) -> dict[str, NamedAdamW]:
    """One optimizer a role, each with its own rate, gradient norm and moments."""
    return {name: NamedAdamW(group, group_options(section, name)) for name, group in roles.parameters.items()}


def rate_factor(config: RunConfig) -> Callable[[int], float]:
    """The learning rates' factor at each step."""
    section, total = config.optimizer, config.training.steps
    if section.schedule == "constant":
        return partial(constant_after_warmup, warmup=section.warmup_steps)
    decay = cosine_decay_with_warmup if section.schedule == "cosine" else linear_decay_with_warmup
    return partial(decay, total=total, warmup=section.warmup_steps)
