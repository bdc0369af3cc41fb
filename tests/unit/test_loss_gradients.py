"""What reaches each log-prob, entropy and value from the whole loss of PPO and RLOO: every term, weight and count?

Worked by hand as a loop over the actions. Sums travel and are divided once, by the counts of the minibatch; w is the
weight of the aggregation, n its count, N the number of actions:

    d/d log π = w/n (−ρ A, or 0 where the clip took it) + β w/n dKL        d/dH = −entropy_coef w/n
    d/dV      = value_coef / N (V − R, or 0 where the clip took it)
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.unit.test_training_algorithms import BETA, REF, ROWS, SAMPLED, rollout, scores
from tightrope.algorithms.options import PPOOptions, RLOOOptions
from tightrope.algorithms.ppo import PPO
from tightrope.algorithms.rloo import RLOO
from tightrope.config.schema import KLSection
from tightrope.training.learner import scaled_total
from tightrope.types import Experience, PolicyOutput

MAX_TOKENS, ENTROPY_COEF, VALUE_COEF, CLIP = 6, 0.3, 0.7, 0.2
OLD_VALUES = torch.linspace(-1.0, 1.0, 8).double()
NEW = SAMPLED.double() + torch.tensor([0.1, -0.1, 0.5, -0.5, 0.3, -0.3, 0.05, 0.9])
VALUES = OLD_VALUES + torch.tensor([0.1, -0.1, 0.5, -0.5, 0.3, -0.3, 0.05, 0.9])
LENGTHS = [2, 3, 1, 2]
RESPONSE = [0, 0, 1, 1, 1, 2, 3, 3]
WEIGHTS = {
    "token_mean": ([1.0] * 8, 8),
    "sequence_mean_token_mean": ([1.0 / LENGTHS[j] for j in RESPONSE], 4),
    "sequence_mean_token_sum": ([1.0] * 8, 4),
    "token_sum_const": ([1.0 / MAX_TOKENS] * 8, 4),
}


def kl_slope(estimator: str, new: float, ref: float, old: float) -> float:
    d, ratio = new - ref, math.exp(new - old)
    k3 = math.exp(-d) - 1 + d
    return {"k2": d, "k3": 1 - math.exp(-d), "ratio_k3": ratio * (k3 + 1 - math.exp(-d))}[estimator]


def clipped_slope(ratio: float, advantage: float) -> float:
    gone = (advantage > 0 and ratio > 1 + CLIP) or (advantage < 0 and ratio < 1 - CLIP)
    return 0.0 if gone else -ratio * advantage


def value_slope(value: float, old: float, target: float) -> float:
    near = old + min(max(value - old, -CLIP), CLIP)
    return 0.0 if abs(near - target) > abs(value - target) and near != value else value - target


def gradients(algorithm: PPO | RLOO, experience: Experience) -> list[Tensor | None]:
    """Of log-probs, entropy and values."""
    leaves = [x.clone().requires_grad_() for x in (NEW, torch.full_like(NEW, 0.5), VALUES)]
    loss = algorithm.loss(PolicyOutput(leaves[0], leaves[1], leaves[2]), experience)
    total = scaled_total(loss, algorithm.counts(experience))
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def assert_by_hand(found: Tensor | None, expected: list[float]) -> None:
    """Float64, but for the weights and rewards that are given in float32."""
    assert found is not None
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("aggregation", WEIGHTS)
@pytest.mark.parametrize("estimator", [None, "k2", "k3", "ratio_k3"])
def test_the_gradient_of_ppos_whole_loss(aggregation, estimator) -> None:
    kl = KLSection() if estimator is None else KLSection(placement="loss", estimator=estimator)
    options = PPOOptions(loss_aggregation=aggregation, entropy_coef=ENTROPY_COEF, value_coef=VALUE_COEF)
    algorithm = PPO(options, lambda: BETA, kl, max_tokens=MAX_TOKENS)
    experience = algorithm.credit(rollout(), scores(values=OLD_VALUES))
    weights, count = WEIGHTS[aggregation]
    old, advantages = SAMPLED.double().tolist(), experience.advantages.tolist()
    assert experience.returns is not None
    policy, entropy, value = [], [], []
    for i in range(8):
        new, share = float(NEW[i]), weights[i] / count
        slope = clipped_slope(math.exp(new - old[i]), advantages[i])
        if estimator is not None:
            slope += BETA * kl_slope(estimator, new, float(REF[i]), old[i])
        policy.append(share * slope)
        entropy.append(-ENTROPY_COEF * share)
        value.append(VALUE_COEF / 8 * value_slope(float(VALUES[i]), float(OLD_VALUES[i]), float(experience.returns[i])))
    assert 0.0 in value and any(value)
    for found, expected in zip(gradients(algorithm, experience), (policy, entropy, value), strict=True):
        assert_by_hand(found, expected)


@pytest.mark.parametrize("estimator", [None, "k2", "k3", "ratio_k3"])
def test_the_gradient_of_rloos_whole_loss(estimator) -> None:
    """Every action of a response has the slope of the product; both terms are means over the four responses."""
    kl = KLSection() if estimator is None else KLSection(placement="loss", estimator=estimator)
    algorithm = RLOO(RLOOOptions(), lambda: BETA, kl)
    experience = algorithm.credit(rollout(), scores(values=None))
    shift = (NEW - SAMPLED.double()).tolist()
    ratios = [math.exp(sum(x for x, k in zip(shift, RESPONSE, strict=True) if k == j)) for j in range(4)]
    expected = []
    for i, j in enumerate(RESPONSE):
        slope = clipped_slope(ratios[j], float(experience.advantages[i])) / 4
        if estimator is not None:
            slope += BETA / 4 * kl_slope(estimator, float(NEW[i]), float(REF[i]), float(SAMPLED[i]))
        expected.append(slope)
    assert 0.0 in expected or estimator is not None
    policy, entropy, value = gradients(algorithm, experience)
    assert_by_hand(policy, expected)
    assert entropy is None and value is None


def test_without_an_entropy_bonus_or_a_kl_loss_their_inputs_have_no_gradient() -> None:
    algorithm = PPO(PPOOptions(), lambda: BETA)
    _, entropy, _ = gradients(algorithm, algorithm.credit(rollout(), scores(values=OLD_VALUES)))
    assert entropy is None
    assert ROWS.action_counts.tolist() == LENGTHS
