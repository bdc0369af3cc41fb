"""The step-0 self-test: what must be exactly true before the first update, measured on every run.

    sampler      log-probs of the sampler equal the trainer's
    ratio        the first minibatch has ratio 1
    reference    KL to the start is 0
    reward       the reward model reproduces its recorded fingerprints
    checkpoint   one save and load gives back the same state
    dpo          the first loss is ln 2
A failure stops the run and names the likely cause.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tightrope.config.errors import TightropeError
from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import Role
from tightrope.protocols import Algorithm, Objective
from tightrope.training.policy_objective import PolicyObjective
from tightrope.training.run import RunCore
from tightrope.types import Preferences, Rollout, Scores

# Largest difference of log-probs of the same tokens between two orders of summation, by weights' type.
# float32: real 135M models were measured at 4e-5; tiny ones agree to 1e-6 and are tested to 1e-5.
BOUNDS = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 0.15}


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    value: float
    bound: float
    cause: str

    @property
    def passed(self) -> bool:
        return self.value <= self.bound  # False for NaN


def require(checks: list[Check]) -> dict[str, float]:
    """Raises TightropeError naming the first check that failed; else the measured values by name."""
    for check in checks:
        if not check.passed:
            raise TightropeError(
                f"self-test '{check.name}' failed",
                where="step 0",
                found=f"{check.value:.3g}",
                expected=f"at most {check.bound:.3g}",
                fix=check.cause,
            )
    return {check.name: check.value for check in checks}


@torch.no_grad()
def online_checks(
    objective: PolicyObjective,
    algorithm: Algorithm,
    policy: Role,
    rollout: Rollout,
    scores: Scores,
    starts_at_reference: bool,
) -> list[Check]:
    bound = BOUNDS[policy.network.dtype]
    trainer = token_logprobs(policy, rollout.rows, rollout.temperature).logprobs
    experience = algorithm.credit(rollout, scores)
    ratio = (objective.forward(experience).logprobs - experience.old_logprobs).exp()
    checks = [
        Check(
            "sampler",
            largest(trainer - rollout.behaviour_logprobs),
            bound,
            "the sampler and the trainer disagree about the same tokens: report this with `tightrope env`",
        ),
        Check("ratio", largest(ratio - 1.0), bound, "the policy changes between two passes: is dropout on?"),
    ]
    if starts_at_reference and scores.ref_logprobs is not None:
        checks.append(
            Check(
                "reference",
                largest(trainer - scores.ref_logprobs),
                bound,
                "the reference is not the starting policy: check model.name and the adapter folder",
            )
        )
    return checks


@torch.no_grad()
def dpo_check(objective: Objective[Preferences], batch: Preferences, policy: Role) -> Check:
    """At the start policy and reference agree, so each pair's loss is ln 2 whatever beta and smoothing are."""
    total, count = objective.loss(batch).stats["loss"]
    return Check(
        "dpo",
        abs(total / count - math.log(2.0)),
        BOUNDS[policy.network.dtype],
        "policy and reference differ before the first step: is dropout on?",
    )


def fingerprint_check(scores: Sequence[float], recorded: Sequence[float], reward: Role) -> Check:
    """The reward model's scores of fixed texts against those in its manifest."""
    differences = torch.tensor(scores, dtype=torch.float64) - torch.tensor(recorded, dtype=torch.float64)
    return Check(
        "reward",
        largest(differences),
        BOUNDS[reward.network.dtype],
        "the reward model scores known texts differently from the day it was trained: its files or tokenizer changed",
    )


def checkpoint_check(core: RunCore) -> Check:
    """Saves step 0, reads it back and counts differing leaves."""
    core.save()
    loaded = core.store.load_latest()
    expected = {name: part.state_dict() for name, part in core.state.items()}
    differing = float("inf") if loaded is None else float(count_differences(expected, loaded[1]))
    return Check("checkpoint", differing, 0.0, "what was saved is not what is read back: is the disk healthy?")


def count_differences(left: object, right: object) -> int:
    """Leaves of two state trees that are not identical; NaN is NaN.

    >>> count_differences({"a": 1, "b": [torch.ones(2), 2.0]}, {"a": 1, "b": [torch.ones(2), 2.5]})
    1
    """
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        keys = set(left) | set(right)
        return sum(count_differences(left[k], right[k]) if k in left and k in right else 1 for k in keys)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return abs(len(left) - len(right)) + sum(count_differences(a, b) for a, b in zip(left, right, strict=False))
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.shape != right.shape or left.dtype != right.dtype:
            return 1
        return 0 if bool(((left == right) | (left.isnan() & right.isnan())).all()) else 1
    return 0 if left == right else 1


def largest(difference: Tensor) -> float:
    return float(difference.abs().max()) if len(difference) else 0.0
