"""Whole steps of a run, as the command line builds it, with everything that came out of them; and how to compare two.

Before the first step the trained weights are moved off their start, by the same numbers in every run: else the policy
would be its reference, adapters would do nothing and the critic's head would be zero, and half of a step could be wrong
without a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runs import Files, built_run, tiny_config
from tightrope.assemble.parts import Assembled
from tightrope.config.schema import ModelSection, RunConfig
from tightrope.models.export import RewardFacts, export_reward
from tightrope.models.roles import Roles, offline_roles, online_roles
from tightrope.training.optimisers import NamedAdamW
from tightrope.training.run import OfflineRun, OnlineRun
from tightrope.training.step import offline_step, train_step
from tightrope.types import Experience

WEIGHTS, GRADIENTS, METRICS = 1e-6, 1e-5, 1e-5
"""Absolute on weights; relative to the largest gradient; relative to a metric that is over 1. Measured: 1.2e-7, 2.8e-6
(the weights of later optimizer steps differ already) and 1.6e-6, at the learning rate used here, where weights move by
1e-4 to 2e-3. Adam divides a gradient by its own size, so rounding grows with the rate."""
LEARNING_RATE = 1e-4
MOVED = 5e-5
"""Steps move some weight of each group at least this far, so that equality says something."""
ONLINE = ("ppo", "rloo")

Walk = Callable[[Assembled], Mapping[str, float]]


@dataclass(frozen=True)
class Outcome:
    """Metrics of the last step, each optimizer step's gradients before clipping, and weights, by name."""

    metrics: dict[str, float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


def config_of(
    stage: str, files: Files, *, budget: int | None = None, options: Mapping[str, Any] | None = None, **settings: Any
) -> RunConfig:
    """The critic is trained from the first step, no rule ends an epoch early, the rate stays. ``options``: of the
    algorithm."""
    changes: dict[str, dict[str, Any]] = {
        "training": {"token_budget": budget},
        "optimizer": {"learning_rate": LEARNING_RATE, "schedule": "constant"},
    }
    if stage in ONLINE:
        changes[stage] = {"target_kl": None} | ({"value_warmup_steps": 0} if stage == "ppo" else {})
        changes[stage] |= options or {}
    return tiny_config(stage, files, files.prompts.parent / "unused", changes=changes, **settings)


def reward_adapter(files: Files, folder: Path) -> Path:
    """A reward model on the policy's own base, as an adapter that is far from doing nothing."""
    section = config_of("rm", files, lora=True).model
    roles = offline_roles(section, "rm", seed=3)
    assert roles.reward is not None
    move_off_the_start(roles)
    export_reward(roles.reward, files.model, folder, RewardFacts([0.0], 0.0, 1.0, 0, None))
    return folder


@torch.no_grad()
def move_off_the_start(roles: Roles) -> None:
    for seed, group in enumerate(sorted(roles.parameters)):
        generator = torch.Generator().manual_seed(seed)
        for _, parameter in sorted(roles.parameters[group].items()):
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=generator))


def step(built: Assembled) -> Mapping[str, float]:
    run = built.run
    return (train_step(run) if isinstance(run, OnlineRun) else offline_step(run)).metrics


def two_steps(built: Assembled) -> Mapping[str, float]:
    first = step(built)
    built.run.core.progress.advance()
    return {f"first {name}": value for name, value in first.items()} | dict(step(built))


def experience_of(run: OnlineRun, *, reversed_prompts: bool = False) -> Experience:
    prompts = run.prompts.next_batch()
    rollout = run.engine.generate(
        prompts[::-1] if reversed_prompts else prompts, run.samples_per_prompt, run.sampling, run.key()
    )
    return run.algorithm.credit(rollout, run.judge.score(rollout))


def batch_of(built: Assembled) -> Any:
    return built.run.next_batch() if isinstance(built.run, OfflineRun) else experience_of(built.run)


def outcome_of(config: RunConfig, folder: Path, walk: Walk = step) -> Outcome:
    """What ``walk`` makes of a new run; fails where it moved nothing."""
    built = built_run(config, folder)
    move_off_the_start(built.roles)
    built.prepare()
    names = {id(p): f"{group}.{name}" for group, named in built.roles.parameters.items() for name, p in named.items()}
    gradients: dict[str, Tensor] = {}
    clip = NamedAdamW.clip_gradients

    def watched(self: NamedAdamW) -> float:
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                name = names[id(parameter)]
                number = sum(key.endswith(f" {name}") for key in gradients)
                gradients[f"{number} {name}"] = parameter.grad.clone()
        return clip(self)

    before = weights_of(built)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NamedAdamW, "clip_gradients", watched)
        metrics = dict(walk(built))
    after = weights_of(built)
    for group in built.roles.parameters:
        moved = [float((after[n] - before[n]).abs().max()) for n in after if n.startswith(f"{group}.")]
        assert max(moved) > MOVED, f"{group} did not move"
    return Outcome(metrics, gradients, after)


def weights_of(built: Assembled) -> dict[str, Tensor]:
    groups = built.roles.parameters.items()
    return {f"{group}.{name}": p.detach().clone() for group, named in groups for name, p in named.items()}


def differences(one: Outcome, two: Outcome) -> tuple[float, float, float]:
    """The largest of the weights, of the gradients relative to the largest of them, of the metrics relative to each."""
    assert one.metrics.keys() == two.metrics.keys()
    assert one.gradients.keys() == two.gradients.keys()
    assert one.weights.keys() == two.weights.keys()
    weights = max(float((two.weights[n] - x).abs().max()) for n, x in one.weights.items())
    size = max(1.0, *(float(x.abs().max()) for x in one.gradients.values()))
    gradients = max(float((two.gradients[n] - x).abs().max()) for n, x in one.gradients.items()) / size
    metrics = max(abs(two.metrics[n] - x) / max(1.0, abs(x)) for n, x in one.metrics.items())
    return weights, gradients, metrics


def require_same(one: Outcome, two: Outcome, what: str) -> None:
    """Raises AssertionError saying how much ``what`` changed, in weights, gradients and metrics."""
    found = differences(one, two)
    same = all(x <= limit for x, limit in zip(found, (WEIGHTS, GRADIENTS, METRICS), strict=True))
    assert same, f"{what} changes the step: differs by " + ", ".join(f"{x:.1e}" for x in found)


def separate_online_roles(
    model: ModelSection, *, critic: Any, reward_model: Path | None, needs_reference: bool, seed: int
) -> Roles:
    """Each role from a backbone of its own with the same numbers; a shared critic stays on the policy's."""

    def loaded() -> Roles:
        return online_roles(model, critic=critic, reward_model=reward_model, needs_reference=needs_reference, seed=seed)

    policy, reference, reward, value = loaded(), loaded(), loaded(), loaded()
    if critic == "shared":
        value = policy
    assert policy.policy and reference.reference and reward.reward
    roles = [policy.policy, reference.reference, reward.reward] + ([value.critic] if value.critic else [])
    assert len({id(role.network) for role in roles}) == (4 if critic == "separate" else 3)
    return Roles(
        policy.policy,
        reference.reference,
        value.critic,
        reward.reward,
        parameters={"policy": policy.parameters["policy"]}
        | ({"critic": value.parameters["critic"]} if critic is not None else {}),
        shared_trunk=critic == "shared",
    )


def separate_offline_roles(model: ModelSection, stage: Any, seed: int) -> Roles:
    policy, reference = offline_roles(model, stage, seed), offline_roles(model, stage, seed)
    assert policy.policy and reference.reference and policy.policy.network is not reference.reference.network
    return Roles(policy.policy, reference.reference, parameters=policy.parameters)
