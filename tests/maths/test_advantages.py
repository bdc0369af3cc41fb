"""Does the credit of an action follow its definition, and never anything beyond its own response?"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.maths.advantages import (
    decoupled_gae,
    gae,
    length_adaptive_lambda,
    rloo_advantages,
    token_rewards,
    whiten,
)
from tightrope.maths.ragged import segment_sum
from tightrope.types import offsets_of

number = st.floats(-5, 5)
sequence = st.lists(st.tuples(number, number), max_size=6)
share = st.floats(0, 1)


def f64(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def columns(rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    items = [pair for row in rows for pair in row]
    return f64([r for r, _ in items]), f64([v for _, v in items]), offsets_of([len(row) for row in rows])


def double_loop(row, gamma: float, lam: float, bootstrap: float) -> list[float]:
    """A_i as the sum over all later TD errors, straight from the definition."""
    rewards, values = [r for r, _ in row], [v for _, v in row] + [bootstrap]
    deltas = [r + gamma * values[t + 1] - values[t] for t, r in enumerate(rewards)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


@given(st.lists(st.tuples(sequence, number), max_size=5), share, share)
@settings(deadline=None)
def test_gae_is_the_double_sum_of_its_definition(cases, gamma, lam) -> None:
    rows = [row for row, _ in cases]
    rewards, values, offsets = columns(rows)
    advantages, returns = gae(rewards, values, offsets, gamma, lam, f64([bootstrap for _, bootstrap in cases]))
    expected = f64([a for row, bootstrap in cases for a in double_loop(row, gamma, lam, bootstrap)])
    torch.testing.assert_close(advantages, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(returns, expected + values, rtol=1e-9, atol=1e-9)


@given(st.lists(sequence, max_size=4), st.lists(sequence, max_size=4), share, share)
@settings(deadline=None)
def test_gae_of_a_concatenation_is_the_concatenation_of_gaes(left, right, gamma, lam) -> None:
    apart = [gae(*columns(rows), gamma, lam) for rows in (left, right)]
    together = gae(*columns(left + right), gamma, lam)
    for i in range(2):
        assert torch.equal(together[i], torch.cat([apart[0][i], apart[1][i]]))


def test_without_bootstrap_a_sequence_ends_with_value_zero() -> None:
    inputs = f64([0, 0, 1]), f64([0.5, 0.4, 0.3]), torch.tensor([0, 3])
    assert torch.equal(gae(*inputs, 1.0, 0.95)[0], gae(*inputs, 1.0, 0.95, torch.zeros(1))[0])


def test_each_sequence_may_have_its_own_lambda() -> None:
    rewards, values, offsets = f64([0, 1, 0, 1]), f64([0.5, 0.5, 0.5, 0.5]), torch.tensor([0, 2, 4])
    found, _ = gae(rewards, values, offsets, 1.0, f64([0.0, 1.0]))
    assert found.tolist() == [0.0, 0.5, 0.5, 0.5]


def test_decoupled_gae_takes_advantages_from_one_lambda_and_returns_from_the_other() -> None:
    inputs = f64([0, 0, 1]), f64([0.5, 0.4, 0.3]), torch.tensor([0, 3])
    advantages, returns = decoupled_gae(*inputs, 1.0, 0.95, 1.0)
    assert torch.equal(advantages, gae(*inputs, 1.0, 0.95)[0])
    assert torch.equal(returns, gae(*inputs, 1.0, 1.0)[1])


def test_decoupled_gae_hands_gamma_and_the_value_behind_the_cut_to_both() -> None:
    """γ = 0.5, V(s_T) = 8. At λ = 0, A = δ = (1 + 0.5·4 − 2, 2 + 0.5·8 − 4) = (1, 2).

    At λ = 1 the return is all that follows: R₂ = 2 + 0.5·8 = 6, R₁ = 1 + 0.5·6 = 4.
    """
    rewards, values, cut = f64([1.0, 2.0]), f64([2.0, 4.0]), f64([8.0])
    advantages, returns = decoupled_gae(rewards, values, torch.tensor([0, 2]), 0.5, 0.0, 1.0, cut)
    assert advantages.tolist() == [1.0, 2.0]
    assert returns.tolist() == [4.0, 6.0]


def test_length_adaptive_lambda_is_never_negative_and_refuses_alpha_zero() -> None:
    assert length_adaptive_lambda(torch.tensor([0, 0, 10, 50]), 0.05).tolist() == [0.0, 0.0, 0.5]
    for alpha in (0.0, -1.0):
        with pytest.raises(ValueError, match="alpha"):
            length_adaptive_lambda(torch.tensor([0, 1]), alpha)


@given(st.lists(st.tuples(number, st.lists(number, min_size=1, max_size=5)), max_size=5), share)
@settings(deadline=None)
def test_token_rewards_of_a_response_sum_to_score_minus_beta_kl(cases, beta) -> None:
    scores, kl = f64([score for score, _ in cases]), f64([x for _, row in cases for x in row])
    offsets = offsets_of([len(row) for _, row in cases])
    rewards = token_rewards(scores, kl, beta, offsets)
    torch.testing.assert_close(segment_sum(rewards, offsets), scores - beta * segment_sum(kl, offsets))


def test_the_score_sits_on_the_last_action_and_only_there() -> None:
    rewards = token_rewards(f64([2.0, 9.0, -1.0]), torch.zeros(4).double(), 0.1, torch.tensor([0, 3, 3, 4]))
    assert rewards.tolist() == [0.0, 0.0, 2.0, -1.0]


def test_the_clip_of_the_score_is_two_sided_and_leaves_the_kl_alone() -> None:
    rewards = token_rewards(f64([5.0, -5.0]), f64([10.0, 10.0]), 1.0, torch.tensor([0, 1, 2]), score_clip=1.5)
    assert rewards.tolist() == [-8.5, -11.5]


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=20), st.sampled_from([0, 1]))
@settings(deadline=None)
def test_whitened_numbers_have_mean_zero_and_std_one(integers, ddof) -> None:
    if len(set(integers)) == 1:
        integers = [*integers, integers[0] + 1]
    white = whiten(f64(integers), ddof=ddof, eps=0.0)
    assert float(white.mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(white.std(correction=ddof)) == pytest.approx(1.0, abs=1e-9)


def test_whitening_without_shift_keeps_the_mean() -> None:
    x = f64([1.0, 2.0, 6.0])
    white = whiten(x, shift_mean=False, eps=0.0)
    assert float(white.mean()) == pytest.approx(3.0)
    assert float(white.std(correction=0)) == pytest.approx(1.0)


def test_whitening_adds_its_epsilon_to_the_variance() -> None:
    assert whiten(f64([0.0, 2.0]), eps=3.0).tolist() == [-0.5, 0.5]


def test_the_epsilon_of_whitening_is_1e_8_unless_said_otherwise() -> None:
    """Variance 1e-8: the distance of 1e-4 is divided by √(2e-8)."""
    assert whiten(f64([0.0, 2e-4])).tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-9)


def test_what_has_no_scale_is_only_centred() -> None:
    assert whiten(torch.empty(0)).shape == (0,)
    for x in (f64([7.0]), f64([7.0, 7.0])):
        assert not whiten(x).any()
        assert torch.equal(whiten(x, shift_mean=False), x)
    assert whiten(torch.tensor([1, 1], dtype=torch.bfloat16)).dtype == torch.float32


def test_whitening_knows_two_divisors() -> None:
    with pytest.raises(ValueError, match="ddof"):
        whiten(torch.ones(3), ddof=2)


@given(st.lists(st.lists(number, min_size=2, max_size=5), min_size=1, max_size=5))
@settings(deadline=None)
def test_rloo_is_k_over_k_minus_one_times_the_distance_from_the_mean(groups) -> None:
    rewards = f64([r for group in groups for r in group])
    names = torch.tensor([-3 * i for i, group in enumerate(groups) for _ in group])
    expected = f64([len(g) / (len(g) - 1) * (r - sum(g) / len(g)) for g in groups for r in g])
    torch.testing.assert_close(rloo_advantages(rewards, names), expected, rtol=1e-9, atol=1e-9)


def test_rloo_does_not_mind_where_siblings_stand() -> None:
    assert rloo_advantages(f64([1, 10, 3, 30]), torch.tensor([0, 1, 0, 1])).tolist() == [-2.0, -20.0, 2.0, 20.0]


def test_rloo_gives_exactly_zero_where_a_group_says_nothing() -> None:
    rewards = f64([0.2, 0.2, 0.2, 0.1, 0.3, 9.0])
    found = rloo_advantages(rewards, torch.tensor([0, 0, 0, 1, 1, 2]))
    assert found.tolist()[:3] == [0.0, 0.0, 0.0]
    assert found.tolist()[5] == 0.0
    assert rloo_advantages(-rewards[:3], torch.tensor([0, 0, 0])).tolist() == [0.0, 0.0, 0.0]
    assert rloo_advantages(torch.empty(0), torch.empty(0).long()).shape == (0,)


def test_numbers_that_do_not_belong_together_are_refused() -> None:
    offsets = torch.tensor([0, 2])
    with pytest.raises(ValueError, match="scores"):
        token_rewards(torch.ones(2), torch.ones(2), 0.1, offsets)
    with pytest.raises(ValueError, match="scores"):
        token_rewards(torch.ones(1, 1), torch.ones(2), 0.1, offsets)
    with pytest.raises(ValueError, match="scores"):
        token_rewards(torch.ones(0), torch.ones(2), 0.1, offsets)
    with pytest.raises(ValueError, match="scores"):
        token_rewards(torch.tensor(1.0), torch.ones(2), 0.1, offsets)
    with pytest.raises(ValueError, match="shapes must be equal"):
        gae(torch.ones(2), torch.ones(2, 1), offsets, 1.0, 1.0)
    with pytest.raises(ValueError, match="bootstrap"):
        gae(torch.ones(2), torch.ones(2), offsets, 1.0, 1.0, torch.ones(2))
    with pytest.raises(ValueError, match="do not partition"):
        gae(torch.ones(3), torch.ones(3), offsets, 1.0, 1.0)
    for past_the_end in (torch.tensor([0, 5]), torch.tensor([0, 1, 5])):
        with pytest.raises(ValueError, match="do not partition"):
            gae(torch.ones(3), torch.ones(3), past_the_end, 1.0, 1.0)
        with pytest.raises(ValueError, match="do not partition"):
            token_rewards(torch.ones(len(past_the_end) - 1), torch.ones(3), 0.1, past_the_end)
    with pytest.raises(ValueError, match="do not partition"):
        token_rewards(torch.ones(1), torch.ones(3), 0.1, offsets)
    with pytest.raises(ValueError, match="shapes must be equal"):
        rloo_advantages(torch.ones(2), torch.ones(1).long())


def test_credit_carries_no_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    offsets = torch.tensor([0, 2])
    assert not token_rewards(torch.ones(1), x, 0.1, offsets).requires_grad
    assert not any(found.requires_grad for found in gae(x, x, offsets, 1.0, 1.0))
    assert not whiten(x * torch.tensor([1.0, 2.0])).requires_grad
