"""Does the reward still say what is better where the policy is now? Its samples, against a judge and against the KL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from tightrope.audit.intervals import Floats
from tightrope.audit.measures import Rank, Share, rank_agreement, resampled, share_right
from tightrope.maths.diagnostics import Interval
from tightrope.types import Sample


@dataclass(frozen=True)
class PolicySamples:
    """Answers of the current policy. ``clusters``: the prompt's number; ``kl`` nats an answer, where it is known."""

    samples: Sequence[Sample]
    clusters: Sequence[int]
    kl: Floats | None = None


@dataclass(frozen=True)
class Drift:
    """Reward against the KL of each answer. ``per_nat``: reward in its standard deviations; with a judge
    ``excess``: what the reward gives more per nat than the judge does, each in its own standard deviations."""

    spearman: Interval
    per_nat: Interval
    excess: Interval | None
    kl: tuple[float, ...]
    reward: tuple[float, ...]


@dataclass(frozen=True)
class OnPolicy:
    """``accuracy``: pairs of answers to one prompt that the reward orders as the judge does."""

    samples: int
    accuracy: Share | None
    rank: Rank | None
    drift: Drift | None


def on_policy(policy: PolicySamples, rewards: Floats, judged: Floats | None) -> OnPolicy:
    accuracy = rank = None
    if judged is not None:
        accuracy = judge_accuracy(rewards, judged, policy.clusters)
        rank = rank_agreement(rewards, judged, policy.clusters)
    drift = None if policy.kl is None else drift_of(policy.kl, rewards, judged, policy.clusters)
    return OnPolicy(len(rewards), accuracy, rank, drift)


def judge_accuracy(rewards: Floats, judged: Floats, clusters: Sequence[int]) -> Share | None:
    """Every two answers to one prompt that the judge tells apart; None where there are none.

    >>> judge_accuracy(np.array([1.0, 2.0, 5.0, 4.0]), np.array([0.0, 1.0, 3.0, 9.0]), [0, 0, 1, 1]).estimate
    0.5
    """
    members: dict[int, list[int]] = {}
    for index, cluster in enumerate(clusters):
        members.setdefault(cluster, []).append(index)
    margins, places = list[float](), list[int]()
    for cluster, several in members.items():
        for i, j in combinations(several, 2):
            if judged[i] != judged[j]:
                margins.append(float((rewards[i] - rewards[j]) * np.sign(judged[i] - judged[j])))
                places.append(cluster)
    return share_right(np.array(margins), places) if margins else None


def drift_of(kl: Floats, rewards: Floats, judged: Floats | None, clusters: Sequence[int]) -> Drift | None:
    """None where KL or reward does not vary."""
    if len(kl) < 3 or not float(np.ptp(kl)) or not float(np.ptp(rewards)):
        return None
    scaled = rewards / rewards.std()
    excess = None
    if judged is not None and float(np.ptp(judged)):
        over = scaled - judged / judged.std()
        excess = resampled(lambda chosen: slope(kl[chosen], over[chosen]), clusters)
    return Drift(
        spearman=resampled(lambda chosen: spearman(kl[chosen], rewards[chosen]), clusters),
        per_nat=resampled(lambda chosen: slope(kl[chosen], scaled[chosen]), clusters),
        excess=excess,
        kl=tuple(kl.tolist()),
        reward=tuple(rewards.tolist()),
    )


def spearman(first: Floats, second: Floats) -> float:
    if not float(np.ptp(first)) or not float(np.ptp(second)):
        return math.nan
    found: Any = stats.spearmanr(first, second)
    return float(found.statistic)


def slope(x: Floats, y: Floats) -> float:
    """
    >>> slope(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))
    2.0
    """
    away = x - x.mean()
    squares = float(away @ away)
    return float(away @ y) / squares if squares else math.nan
