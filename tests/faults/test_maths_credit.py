"""Faults of credit: masks, alignment, truncation, whitening, groups, penalties. One test an entry of the fault list."""

from __future__ import annotations

import pytest
import torch

from tests.tensors import f64
from tightrope.algorithms.rloo import groups_without_signal
from tightrope.maths.advantages import gae, rloo_advantages, token_rewards, whiten
from tightrope.maths.kl import k1
from tightrope.maths.penalties import length_cost, missing_eos
from tightrope.maths.policy_losses import ppo_clip, sequence_clip
from tightrope.maths.ragged import discounted_to_go, segment_sum
from tightrope.maths.statistics import gain_and_bias, moments
from tightrope.types import offsets_of

THREE = torch.tensor([0, 3])
REWARDS, VALUES = f64(0.0, 0.0, 1.0), f64(0.5, 0.4, 0.3)


def close(found: torch.Tensor, expected: list[float]) -> bool:
    return found.tolist() == pytest.approx(expected, abs=1e-9)


def test_b01_pad_values_leak_into_advantages() -> None:
    """Pad tokens' values leak into advantages.

    Nothing is padded here: a neighbour with values of 99 is the nearest thing to a pad, and it changes nothing.
    """
    neighbour = f64(99.0)
    beside = torch.cat([REWARDS, neighbour]), torch.cat([VALUES, neighbour]), torch.tensor([0, 3, 4])
    for gamma, lam, expected in (
        (1.0, 0.95, [0.43675, 0.565, 0.7]),
        (0.9, 0.8, [0.12928, 0.374, 0.7]),
        (1.0, 1.0, [0.5, 0.6, 0.7]),
        (1.0, 0.0, [-0.1, -0.1, 0.7]),
    ):
        alone, returns = gae(REWARDS, VALUES, THREE, gamma, lam)
        assert close(alone, expected)
        assert close(returns, [a + v for a, v in zip(expected, VALUES.tolist(), strict=True)])
        assert torch.equal(gae(*beside, gamma, lam)[0][:3], alone)
    assert close(discounted_to_go(torch.tensor([1.5, 1.0]), torch.tensor([0, 2]), 1.0), [2.5, 1.0])


def test_b02_terminal_score_on_the_pad_after_eos() -> None:
    """Terminal score put on the pad after EOS."""
    rewards = token_rewards(f64(1.0), torch.zeros(3).double(), 0.0, THREE)
    assert rewards.tolist() == [0.0, 0.0, 1.0]
    assert close(gae(rewards, VALUES, THREE, 1.0, 0.95)[0], [0.43675, 0.565, 0.7])


def test_b03_one_advantage_for_each_action() -> None:
    """Reward/value not zeroed AT eos vs after (ends+1)."""
    lengths = [1, 2, 3, 4, 5]
    offsets, n = offsets_of(lengths), sum(lengths)
    advantages, _ = gae(torch.ones(n), torch.zeros(n), offsets, 1.0, 1.0)
    assert len(advantages) == n
    assert advantages.tolist() == [float(left) for length in lengths for left in range(length, 0, -1)]


def test_b07_truncated_response_treated_as_terminal() -> None:
    """Truncated response treated as terminal."""
    cut = f64(0.6)
    assert close(gae(REWARDS, VALUES, THREE, 1.0, 0.95, cut)[0], [0.97825, 1.135, 1.3])
    assert close(gae(REWARDS, VALUES, THREE, 0.9, 0.8, cut)[0], [0.409216, 0.7628, 1.24])
    assert close(gae(REWARDS, VALUES, THREE, 1.0, 0.95)[0], [0.43675, 0.565, 0.7])


def test_b08_response_of_length_zero_or_one() -> None:
    """Mask of all zeros / response of length 0 or 1."""
    offsets = torch.tensor([0, 0, 1, 4])
    kl = f64(0.5, 0.0, 0.0, 0.0)
    rewards = token_rewards(f64(9.0, 1.0, 2.0), kl, 0.1, offsets)
    advantages, returns = gae(rewards, torch.zeros(4).double(), offsets, 1.0, 1.0)
    assert rewards.tolist() == [0.95, 0.0, 0.0, 2.0]
    assert advantages.tolist() == returns.tolist() == [0.95, 2.0, 2.0, 2.0]
    zero = torch.zeros(4).double()
    assert len(ppo_clip(zero, zero, advantages, 0.2, 0.2).losses) == 4
    assert sequence_clip(zero, zero, torch.tensor([9.0, 1.0, 2.0]), offsets, 0.2, 0.2).losses.tolist() == [0, -1, -2]
    nothing = torch.empty(0)
    assert all(len(found) == 0 for found in gae(nothing, nothing, torch.tensor([0, 0]), 1.0, 1.0))


def test_b16_penalty_means_replace_or_subtract() -> None:
    """Penalty meaning differs between trainers (replace vs subtract)."""
    scores, stopped = torch.tensor([2.0, -3.0, 1.0]), torch.tensor([True, False, False])
    assert missing_eos(scores, stopped, 1.0, "subtract").tolist() == [2.0, -4.0, 0.0]
    assert missing_eos(scores, stopped, 1.0, "replace").tolist() == [2.0, -1.0, -1.0]


def test_b31_kl_per_token_and_per_sequence() -> None:
    """KL summed over pads / KL logged per token vs per sequence."""
    logprobs, ref = f64(-1.0, -2.0, -0.5), f64(-1.2, -1.5, -0.7)
    kl = k1(logprobs, ref)
    rewards = token_rewards(f64(2.0), kl, 0.1, THREE)
    assert close(rewards, [-0.02, 0.05, 1.98])
    assert close(segment_sum(rewards, THREE), [2.01])
    assert close(segment_sum(kl, THREE), [-0.1])


def test_b38_whitening_over_pads_and_tiny_batches() -> None:
    """Whitening over pads / tiny batches."""
    x = f64(1.0, 2.0, 3.0)
    assert close(whiten(x, eps=0.0), [-1.2247448713916, 0.0, 1.2247448713916])
    assert close(whiten(x, ddof=1, eps=0.0), [-1.0, 0.0, 1.0])
    for ddof in (0, 1):
        assert whiten(torch.tensor([7.0]), ddof=ddof).tolist() == [0.0]
        assert whiten(torch.empty(0), ddof=ddof).tolist() == []


def test_b44_one_sample_has_no_spread() -> None:
    """n=1 => std NaN."""
    assert rloo_advantages(torch.tensor([5.0]), torch.tensor([0])).tolist() == [0.0]
    assert gain_and_bias(torch.tensor([5.0])) == (1.0, -5.0)


def test_b45_baseline_of_the_group_not_of_the_batch() -> None:
    """Normalised over batch, not group (or flag mixed up)."""
    group = torch.tensor([0, 0, 1, 1])
    assert rloo_advantages(torch.tensor([1.0, 0.0, 5.0, 5.0]), group).tolist() == [1.0, -1.0, 0.0, 0.0]
    four = rloo_advantages(f64(1.0, 0.0, 0.0, 3.0), torch.zeros(4).long())
    assert close(four, [0.0, -4 / 3, -4 / 3, 8 / 3])


def test_b46_groups_without_variance_are_counted() -> None:
    """Zero-variance groups still pull KL/denominator."""
    rewards, group = torch.tensor([0.2, 0.2, 0.2, 1.0, 0.0, 0.5]), torch.tensor([0, 0, 0, 1, 1, 1])
    advantages = rloo_advantages(rewards, group)
    assert groups_without_signal(advantages.tolist(), group.tolist()) == 1
    losses = ppo_clip(torch.zeros(6), torch.zeros(6), advantages, 0.2, 0.2).losses
    assert losses[:3].tolist() == [0.0, 0.0, 0.0]


def test_b81_length_penalised_reward() -> None:
    """Reward up, text worse: length drift or collapse."""
    assert length_cost(torch.tensor([2.0]), torch.tensor([50]), 0.01).tolist() == [1.5]


def test_b84_statistics_hold_only_the_rows_they_are_given() -> None:
    """Rows whose reward is suppressed still move the normaliser.

    There is no mask to forget: a row is in the tensor, or it has no part in the statistic.
    """
    kept = torch.tensor([True, False])
    ordinary, outlier = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 100.0])
    assert moments(ordinary[kept]) == moments(outlier[kept])
    assert torch.equal(whiten(ordinary[kept]), whiten(outlier[kept]))


def test_b90_normalised_values_against_raw_ones() -> None:
    """Advantage normalised between the two surrogate terms / normalised values compared with raw ones."""
    seen = moments(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert (seen.mean, seen.std) == (3.0, pytest.approx(2**0.5))
    assert seen.std is not None
    assert 5 / seen.std == pytest.approx(3.5355339059, abs=1e-9)
    assert (5 - seen.mean) / seen.std == pytest.approx(1.4142135624, abs=1e-9)
    advantages = torch.tensor([1.0, -2.0])  # both branches of the surrogate see the same advantage
    losses = ppo_clip(torch.tensor([0.5, -0.5]), torch.zeros(2), advantages, 0.2, 0.2).losses
    assert losses.tolist() == pytest.approx([-1.2, 1.6])
