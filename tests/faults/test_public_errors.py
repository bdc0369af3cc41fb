"""Errors read in public PPO code that no other test holds: what they would have said, and what is said here.

Others of the kind, and where each was seen: docs/details.md, last table.
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from tests.unit.test_training_algorithms import ROWS, SAMPLED, output, ppo, rollout, scores
from tightrope.training.describe import rollout_metrics

LENGTHS = [2, 3, 1, 2]
PADDED = len(LENGTHS) * max(LENGTHS)


def test_entropy_counts_no_filling() -> None:
    """Filled up with log-probs of 1, as some code marks what is no token, each pad would take one nat away."""
    starts = ROWS.action_offsets.tolist()
    sums = [-sum(SAMPLED[a:b].tolist()) for a, b in pairwise(starts)]
    expected = sum(sums) / 4
    assert rollout_metrics(rollout())["entropy_seq"] == pytest.approx(expected, abs=1e-6)
    filled = (sum(sums) - (PADDED - sum(LENGTHS))) / 4
    assert abs(filled - expected) == 1.0


def test_statistics_of_the_update_are_means_over_actions() -> None:
    """Averaged over the filled rectangle they would be 8/12 of what they are."""
    algorithm = ppo()
    experience = algorithm.credit(rollout(), scores())
    moved = SAMPLED + torch.tensor([0.3, -0.3, 0.05, 0.4, -0.5, 0.0, 0.25, -0.1])
    stats = algorithm.loss(output(moved, torch.zeros(8)), experience).stats
    means = {name: total / count for name, (total, count) in stats.items()}
    d = (moved - SAMPLED).tolist()
    advantages = experience.advantages.tolist()
    outside = [
        (a > 0 and math.exp(x) > 1.2) or (a < 0 and math.exp(x) < 0.8) for x, a in zip(d, advantages, strict=True)
    ]
    assert 0 < sum(outside) < 8
    expected = {
        "ratio": sum(math.exp(x) for x in d) / 8,
        "approx_kl": sum(math.exp(x) - 1 - x for x in d) / 8,
        "approx_kl_k2": sum(x * x / 2 for x in d) / 8,
        "clip_fraction": sum(outside) / 8,
        "entropy_tok": 0.5,
    }
    assert {name: means[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert all(abs(value * 8 / PADDED - value) > 1e-3 for value in expected.values())
