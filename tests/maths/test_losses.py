"""Do losses take the right branch, in value and in gradient, and refuse what would broadcast?"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tensors import f64
from tightrope.maths.policy_losses import aggregation_weights, ppo_clip, sequence_clip
from tightrope.maths.preference_losses import bradley_terry, centering, dpo
from tightrope.maths.ragged import segment_sum
from tightrope.maths.value_losses import clipped_value_loss, explained_variance

number = st.floats(-3, 3)


def slope(loss, x: torch.Tensor) -> float:
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    return float(gradient)


# ratio, advantage -> loss, d loss / d logprob, clipped below 1, clipped above 1  (clip 0.2)
CLIP_TABLE = [
    (0.5, 1.0, -0.5, -0.5, False, False),
    (0.5, -1.0, 0.8, 0.0, True, False),
    (0.9, 1.0, -0.9, -0.9, False, False),
    (0.9, -1.0, 0.9, 0.9, False, False),
    (1.5, 1.0, -1.2, 0.0, False, True),
    (1.5, -1.0, 1.5, 1.5, False, False),
    (3.0, 1.0, -1.2, 0.0, False, True),
    (3.0, -1.0, 3.0, 3.0, False, False),
    (3.0, 0.0, 0.0, 0.0, False, False),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "gradient", "low", "high"), CLIP_TABLE)
def test_each_branch_of_the_policy_clip(ratio, advantage, loss, gradient, low, high) -> None:
    logprob = f64(ratio).log().requires_grad_()
    found = ppo_clip(logprob, f64(0.0), f64(advantage), 0.2, 0.2)
    assert found.losses.item() == pytest.approx(loss, abs=1e-12)
    assert slope(found.losses, logprob) == pytest.approx(gradient, abs=1e-12)
    assert found.ratio.item() == pytest.approx(ratio)
    assert (found.clipped_low.item(), found.clipped_high.item(), found.clipped.item()) == (low, high, low or high)


def test_the_two_sides_of_the_clip_are_separate() -> None:
    ratios = f64(0.7, 1.3)
    assert ppo_clip(ratios.log(), f64(0, 0), f64(-1, 1), 0.4, 0.2).losses.tolist() == pytest.approx([0.7, -1.2])
    assert ppo_clip(ratios.log(), f64(0, 0), f64(-1, 1), 0.2, 0.4).losses.tolist() == pytest.approx([0.8, -1.3])


def test_a_ratio_of_one_has_loss_minus_advantage_and_the_policy_gradient() -> None:
    logprobs = f64(-1.0, -2.0).requires_grad_()
    losses = ppo_clip(logprobs, logprobs.detach(), f64(0.5, -3.0), 0.2, 0.2).losses
    assert losses.tolist() == [-0.5, 3.0]
    assert torch.autograd.grad(losses.sum(), logprobs)[0].tolist() == [-0.5, 3.0]


def test_an_absurd_ratio_is_finite_and_has_no_gradient() -> None:
    logprobs = f64(50.0, 1000.0).requires_grad_()
    losses = ppo_clip(logprobs, f64(0, 0), f64(-1, -1), 0.2, 0.2).losses
    assert losses.tolist() == pytest.approx([math.exp(20)] * 2)
    assert torch.autograd.grad(losses.sum(), logprobs)[0].tolist() == [0.0, 0.0]


@given(st.lists(st.lists(st.floats(-0.3, 0.3), max_size=4), max_size=5))
@settings(deadline=None)
def test_the_sequence_loss_is_the_token_loss_of_the_product_of_ratios(rows) -> None:
    changes = f64(*[x for row in rows for x in row])
    offsets = torch.tensor([0, *torch.tensor([len(row) for row in rows]).cumsum(0).tolist()]).long()
    advantages = torch.linspace(-1, 1, len(rows)).double()
    found = sequence_clip(changes, torch.zeros_like(changes), advantages, offsets, 0.2, 0.3)
    present = torch.tensor([bool(row) for row in rows])
    expected = ppo_clip(segment_sum(changes, offsets), torch.zeros(len(rows)).double(), advantages * present, 0.2, 0.3)
    torch.testing.assert_close(found.losses, expected.losses)
    assert torch.equal(found.clipped, expected.clipped)


def test_a_response_without_actions_costs_nothing() -> None:
    found = sequence_clip(f64(0.0), f64(0.0), f64(5.0, 1.0), torch.tensor([0, 0, 1]), 0.2, 0.2)
    assert found.losses.tolist() == [0.0, -1.0]
    assert found.ratio.tolist() == [1.0, 1.0]


def test_each_action_of_a_response_gets_the_sequence_gradient() -> None:
    logprobs = f64(0.05, 0.05, -0.1).requires_grad_()
    losses = sequence_clip(logprobs, f64(0, 0, 0), f64(2.0, -1.0), torch.tensor([0, 2, 3]), 0.2, 0.2).losses
    gradient = torch.autograd.grad(losses.sum(), logprobs)[0]
    assert gradient.tolist() == pytest.approx([-2 * math.exp(0.1)] * 2 + [math.exp(-0.1)])


CLIPS_WITHOUT_MEANING = [(0.0, 0.2), (1.0, 0.2), (1.5, 0.2), (-0.1, 0.2), (0.2, 0.0), (0.2, -0.5), (math.nan, 0.2)]


@pytest.mark.parametrize(("low", "high"), CLIPS_WITHOUT_MEANING)
def test_clip_ranges_that_mean_nothing_are_refused(low, high) -> None:
    with pytest.raises(ValueError, match="clip range"):
        ppo_clip(f64(0), f64(0), f64(1), low, high)
    with pytest.raises(ValueError, match="clip range"):
        sequence_clip(f64(0), f64(0), f64(1), torch.tensor([0, 1]), low, high)


@pytest.mark.parametrize("dual_clip", [1.0, 0.5, -1.0])
def test_a_dual_clip_is_over_one(dual_clip) -> None:
    with pytest.raises(ValueError, match="dual_clip"):
        ppo_clip(f64(0), f64(0), f64(1), 0.2, 0.2, dual_clip)


def test_an_advantage_of_zero_is_never_clipped() -> None:
    """Its gradient is 0 inside of the range too: the clip takes nothing away."""
    found = ppo_clip(f64(0.5, 1.0, 2.0).log(), f64(0, 0, 0), f64(0, 0, 0), 0.2, 0.2, 3.0)
    assert not (found.clipped_low | found.clipped_high | found.dual_clipped).any()


def test_each_aggregation_weighs_actions_and_counts_what_it_says() -> None:
    """Responses of 2, 0 and 1 actions; 8 tokens at most. The empty one is not counted."""
    offsets = torch.tensor([0, 2, 2, 3])
    for aggregation, weights, count in (
        ("token_mean", [1.0, 1.0, 1.0], 3),
        ("sequence_mean_token_mean", [0.5, 0.5, 1.0], 2),
        ("sequence_mean_token_sum", [1.0, 1.0, 1.0], 2),
        ("token_sum_const", [0.125, 0.125, 0.125], 2),
    ):
        found, number = aggregation_weights(offsets, aggregation, 8)
        assert (found.tolist(), number) == (weights, count)
    with pytest.raises(ValueError, match="unknown aggregation"):
        aggregation_weights(offsets, "median", 8)


# value, old value, return, clip -> loss, d loss / d value, clipped
VALUE_TABLE = [
    (5.0, 1.0, 10.0, 0.2, 38.72, 0.0, True),  # moving towards the return beyond the clip does not pay
    (1.0, 5.0, 10.0, 0.2, 40.5, -9.0, False),  # moving away from it is punished in full
    (0.9, 0.5, 1.0, 0.2, 0.045, 0.0, True),
    (0.55, 0.5, 1.0, 0.2, 0.10125, -0.45, False),
    (5.0, 1.0, 10.0, None, 12.5, -5.0, False),
]


@pytest.mark.parametrize(("value", "old", "target", "clip", "loss", "gradient", "clipped"), VALUE_TABLE)
def test_each_branch_of_the_value_clip(value, old, target, clip, loss, gradient, clipped) -> None:
    values = f64(value).requires_grad_()
    found = clipped_value_loss(values, f64(old), f64(target), clip)
    assert found.losses.item() == pytest.approx(loss, abs=1e-12)
    assert slope(found.losses, values) == pytest.approx(gradient, abs=1e-12)
    assert found.clipped.item() is clipped


def test_the_range_around_an_old_value_is_worked_out_in_float32() -> None:
    """5 − 0.2 = 4.8; the bfloat16 next to it is 4.8125. The loss is (4.8 − 4)² / 2."""
    five, four = torch.tensor([5.0], dtype=torch.bfloat16), torch.tensor([4.0], dtype=torch.bfloat16)
    assert clipped_value_loss(four, five, four, 0.2).losses.item() == pytest.approx(0.32, abs=1e-6)


def test_explained_variance_of_float32_is_worked_out_in_float64() -> None:
    values, returns = torch.tensor([0.1, 0.1, 0.7]), torch.tensor([0.2, 0.3, 0.9])
    exact = explained_variance(values.double(), returns.double())
    assert explained_variance(values, returns) == pytest.approx(exact, abs=1e-14)


def test_a_value_clip_that_is_not_positive_is_refused() -> None:
    for clip in (0.0, -0.1):
        with pytest.raises(ValueError, match="value clip"):
            clipped_value_loss(f64(1), f64(1), f64(1), clip)


def test_explained_variance_exists_only_where_returns_vary() -> None:
    assert explained_variance(f64(1.0, 2.0), f64(3.0, 3.0)) == {}
    assert explained_variance(f64(), f64()) == explained_variance(f64(1.0), f64(2.0)) == {}
    assert explained_variance(f64(3.0, 1.0), f64(3.0, 1.0)) == explained_variance(f64(1.0, 3.0), f64(1.0, 3.0)) != {}
    exact = explained_variance(f64(1.0, 4.0), f64(1.0, 4.0))
    assert exact == {"explained_variance": 1.0, "explained_variance_mse": 1.0}
    assert explained_variance(f64(0.0, 0.0), f64(-1.0, 1.0)) == {
        "explained_variance": 0.0,
        "explained_variance_mse": 0.0,
    }


# difference -> loss, d loss / d difference = sigmoid(d) - 1
BRADLEY_TERRY_TABLE = [
    (-1000.0, 1000.0),
    (-2.0, 2.126928011043),
    (0.0, 0.693147180560),
    (0.5, 0.474076984180),
    (1.0, 0.313261687518),
    (2.0, 0.126928011043),
    (50.0, 1.928749848e-22),
]


@pytest.mark.parametrize(("difference", "loss"), BRADLEY_TERRY_TABLE)
def test_bradley_terry_is_stable_for_any_difference(difference, loss) -> None:
    chosen = f64(difference).requires_grad_()
    losses = bradley_terry(chosen, f64(0.0))
    assert losses.item() == pytest.approx(loss, rel=1e-9)
    assert slope(losses, chosen) == pytest.approx(-1 / (1 + math.exp(min(difference, 700))), rel=1e-9)


def test_an_endless_difference_in_the_right_order_costs_nothing() -> None:
    assert bradley_terry(f64(math.inf), f64(0.0)).item() == 0.0


def test_a_margin_asks_for_a_larger_difference() -> None:
    chosen, rejected = f64(1.0, 2.0).requires_grad_(), f64(0.0, 2.0)
    losses = bradley_terry(chosen, rejected, f64(0.1, 1.0))
    assert losses.tolist() == pytest.approx(bradley_terry(f64(0.9, 1.0), f64(0.0, 2.0)).tolist())
    gradient = torch.autograd.grad(losses.sum(), chosen)[0]
    assert gradient.tolist() == pytest.approx([-1 / (1 + math.exp(0.9)), -1 / (1 + math.exp(-1.0))])


@given(number, number, st.floats(0, 0.49))
@settings(deadline=None)
def test_label_smoothing_mixes_the_loss_of_both_orders(chosen, rejected, smoothing) -> None:
    right, wrong = bradley_terry(f64(chosen), f64(rejected)), bradley_terry(f64(rejected), f64(chosen))
    found = bradley_terry(f64(chosen), f64(rejected), label_smoothing=smoothing)
    torch.testing.assert_close(found, (1 - smoothing) * right + smoothing * wrong)


def test_centering_pulls_both_scores_to_zero() -> None:
    chosen, rejected = f64(2.0).requires_grad_(), f64(1.0).requires_grad_()
    loss = centering(chosen, rejected)
    assert loss.item() == 9.0
    assert [float(g) for g in torch.autograd.grad(loss.sum(), [chosen, rejected])] == [6.0, 6.0]


@given(number, number, st.floats(0.01, 2), st.floats(0, 0.49))
@settings(deadline=None)
def test_dpo_starts_at_ln_2_whatever_beta_and_smoothing_are(chosen, rejected, beta, smoothing) -> None:
    pairs = dpo(f64(chosen), f64(rejected), f64(chosen), f64(rejected), beta=beta, label_smoothing=smoothing)
    assert pairs.losses.item() == pytest.approx(math.log(2), abs=1e-12)
    assert pairs.chosen_rewards.item() == pairs.rejected_rewards.item() == 0.0


@given(number, number, number, number, st.floats(0.01, 2))
@settings(deadline=None)
def test_dpo_is_bradley_terry_on_implicit_rewards(pc, pr, rc, rr, beta) -> None:
    pairs = dpo(f64(pc), f64(pr), f64(rc), f64(rr), beta=beta)
    torch.testing.assert_close(pairs.chosen_rewards, f64(beta * (pc - rc)))
    torch.testing.assert_close(pairs.losses, bradley_terry(pairs.chosen_rewards, pairs.rejected_rewards))


def test_dpo_rewards_are_for_reading_and_its_gradient_pushes_the_two_apart() -> None:
    policy = [f64(-9.0).requires_grad_(), f64(-14.0).requires_grad_()]
    pairs = dpo(*policy, f64(-10.0), f64(-12.0), beta=0.1)
    assert not pairs.chosen_rewards.requires_grad
    assert not pairs.rejected_rewards.requires_grad
    up, down = (float(g) for g in torch.autograd.grad(pairs.losses.sum(), policy))
    assert up == pytest.approx(-0.1 / (1 + math.exp(0.3)))
    assert down == -up


@pytest.mark.parametrize("smoothing", [-0.1, 0.5, 0.6])
def test_label_smoothing_is_a_share_below_one_half(smoothing) -> None:
    with pytest.raises(ValueError, match="label_smoothing"):
        bradley_terry(f64(1), f64(0), label_smoothing=smoothing)
    with pytest.raises(ValueError, match="label_smoothing"):
        dpo(f64(1), f64(0), f64(1), f64(0), beta=0.1, label_smoothing=smoothing)


def test_dpo_needs_a_positive_beta() -> None:
    for beta in (0.0, -0.1):
        with pytest.raises(ValueError, match="beta"):
            dpo(f64(1), f64(0), f64(1), f64(0), beta=beta)


def test_columns_are_refused_everywhere() -> None:
    row, column = torch.ones(2), torch.ones(2, 1)
    calls = [
        lambda: ppo_clip(row, column, row, 0.2, 0.2),
        lambda: ppo_clip(row, row, column, 0.2, 0.2),
        lambda: sequence_clip(row, column, torch.ones(1), torch.tensor([0, 2]), 0.2, 0.2),
        lambda: clipped_value_loss(row, row, column, 0.2),
        lambda: clipped_value_loss(row, column, row, 0.2),
        lambda: explained_variance(row, column),
        lambda: bradley_terry(row, column),
        lambda: bradley_terry(row, row, column),
        lambda: centering(row, column),
        lambda: dpo(row, row, row, column, beta=0.1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="shapes must be equal"):
            call()
    with pytest.raises(ValueError, match="advantages"):
        sequence_clip(row, row, row, torch.tensor([0, 2]), 0.2, 0.2)
    with pytest.raises(ValueError, match=r"shapes must be equal: chosen \[2\], rejected \[2, 1\]"):
        bradley_terry(row, column)


def test_beta_is_given_by_its_name() -> None:
    with pytest.raises(TypeError):
        dpo(f64(1), f64(0), f64(1), f64(0), 0.1)  # type: ignore[misc]


def test_the_dual_clip_is_exact_for_bfloat16_advantages() -> None:
    """3.3 · 1 is 3.3, not the bfloat16 next to it, 3.296875."""
    advantages = torch.tensor([-1.0], dtype=torch.bfloat16)
    found = ppo_clip(torch.tensor([3.0]), torch.tensor([0.0]), advantages, 0.2, 0.2, dual_clip=3.3)
    assert found.losses.item() == pytest.approx(3.3, abs=1e-6)
    assert found.dual_clipped.tolist() == [True]


def test_without_a_dual_clip_nothing_is_marked_by_it() -> None:
    found = ppo_clip(f64(3.0, -3.0), f64(0.0, 0.0), f64(-1.0, 1.0), 0.2, 0.2)
    assert found.dual_clipped.dtype == torch.bool
    assert found.dual_clipped.tolist() == [False, False]


def test_bfloat16_is_widened_before_anything_is_exponentiated() -> None:
    x = torch.ones(2, dtype=torch.bfloat16)
    assert ppo_clip(x, x, x, 0.2, 0.2).losses.dtype == torch.float32
    assert sequence_clip(x, x, x[:1], torch.tensor([0, 2]), 0.2, 0.2).losses.dtype == torch.float32
    assert clipped_value_loss(x, x, x, 0.2).losses.dtype == torch.float32
    assert bradley_terry(x, x).dtype == centering(x, x).dtype == torch.float32
    assert dpo(x, x, x, x, beta=0.1).losses.dtype == torch.float32
