"""Where exactly does a clip take the gradient away, and is what is left exactly 0?

Borders are met exactly: a ratio r = exp(x) makes the clip range r − 1, which float64 subtracts without rounding.
At a border the gradient is that of the inside.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.tensors import f64
from tightrope.maths.kl import LOG_RATIO_LIMIT, clamp_log_ratio, k3, ratio_k3
from tightrope.maths.policy_losses import PolicyLoss, ppo_clip, sequence_clip
from tightrope.maths.preference_losses import bradley_terry, centering, dpo
from tightrope.maths.value_losses import clipped_value_loss

LOW, HIGH = 0.2, 0.3
NEXT = 1e-12
"""A step over a border: far more than the rounding of a ratio, far less than anything that is meant."""


def slopes(losses: Tensor, x: Tensor) -> list[float]:
    return torch.autograd.grad(losses.sum(), x)[0].tolist()


def per_action(x: Tensor, advantages: Tensor, low: float, high: float) -> PolicyLoss:
    return ppo_clip(x, torch.zeros_like(x), advantages, low, high)


def per_response(x: Tensor, advantages: Tensor, low: float, high: float) -> PolicyLoss:
    """Responses of one action."""
    return sequence_clip(x, torch.zeros_like(x), advantages, torch.arange(len(x) + 1), low, high)


@pytest.mark.parametrize("loss", [per_action, per_response])
@pytest.mark.parametrize(
    ("ratio", "advantage", "trains"),
    [
        (1.5, 2.0, False),  # good and already likelier: enough
        (1.5, -2.0, True),  # bad and likelier: back
        (0.5, 2.0, True),  # good and less likely: back
        (0.5, -2.0, False),  # bad and already less likely: enough
    ],
)
def test_the_four_corners_of_the_clip(loss, ratio, advantage, trains) -> None:
    """Outside the range only what leads back into it has a gradient, −ρA, whose descent moves the ratio to 1."""
    x = f64(math.log(ratio)).requires_grad_()
    (slope,) = slopes(loss(x, f64(advantage), LOW, HIGH).losses, x)
    if trains:
        assert slope == pytest.approx(-ratio * advantage, abs=1e-9)
        assert math.copysign(1.0, -slope) == math.copysign(1.0, 1.0 - ratio)
    else:
        assert slope == 0.0


@pytest.mark.parametrize("loss", [per_action, per_response])
@pytest.mark.parametrize("log_ratio", [0.25, 0.6, -0.25, -0.6])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_on_the_border_of_the_clip_the_gradient_is_whole_and_just_over_it_gone(loss, log_ratio, advantage) -> None:
    border = float(f64(log_ratio).exp())
    low, high = (1.0 - border, 0.5) if border < 1 else (0.5, border - 1.0)
    assert border in (1.0 - low, 1.0 + high)
    outwards = math.copysign(NEXT, log_ratio)
    x = f64(log_ratio - outwards, log_ratio, log_ratio + outwards).requires_grad_()
    found = loss(x, f64(*[advantage] * 3), low, high)
    inside, on, outside = slopes(found.losses, x)
    assert inside == pytest.approx(-border * advantage, abs=1e-9)
    assert on == -border * advantage
    earns_nothing = advantage * log_ratio > 0
    assert outside == 0.0 if earns_nothing else outside == pytest.approx(on, abs=1e-9)
    assert found.clipped.tolist() == [False, False, earns_nothing]


def test_the_dual_clip_takes_the_gradient_over_its_border_and_of_bad_actions_only() -> None:
    at = 1.25
    bound = float(f64(at).exp())
    x = f64(at - NEXT, at, at + NEXT, at + 1.0).requires_grad_()
    bad = ppo_clip(x, 0 * x.detach(), f64(*[-2.0] * 4), LOW, HIGH, bound)
    inside, on, *over = slopes(bad.losses, x)
    assert inside == pytest.approx(2.0 * bound, abs=1e-9)
    assert on == 2.0 * bound
    assert over == [0.0, 0.0]
    assert bad.dual_clipped.tolist() == [False, False, True, True]
    low = f64(-3.0, -0.1, 0.1).requires_grad_()  # a good action is never touched by it
    good = [ppo_clip(low, 0 * low.detach(), f64(2.0, 2.0, 2.0), LOW, HIGH, dual) for dual in (None, 1.001)]
    plain, dual = (slopes(loss.losses, low) for loss in good)
    assert plain == dual and all(plain)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_beyond_the_clamp_of_the_log_ratio_nothing_has_a_gradient(sign) -> None:
    """At the clamp itself the gradient is whole, one float further it is exactly 0."""
    at = sign * LOG_RATIO_LIMIT
    x = f64(at, math.nextafter(at, sign * math.inf), sign * 1000.0).requires_grad_()
    zero = torch.zeros_like(x)
    assert slopes(clamp_log_ratio(x), x) == [1.0, 0.0, 0.0]
    advantage = -sign  # the sign that the clip of the ratio leaves alone
    on, *beyond = slopes(ppo_clip(x, zero, advantage + zero, LOW, HIGH).losses, x)
    assert on == pytest.approx(sign * math.exp(at), rel=1e-12)
    assert beyond == [0.0, 0.0]
    on, *beyond = slopes(k3(x, zero), x)
    assert on == pytest.approx(1.0 - math.exp(-at), rel=1e-12)
    assert beyond == [0.0, 0.0]
    on, *beyond = slopes(ratio_k3(x, zero, zero), x)
    assert on == pytest.approx(math.exp(at) * at, rel=1e-9)  # ρ (e⁻ᵈ − 1 + d + 1 − e⁻ᵈ) with ρ = eᵈ
    assert beyond == [0.0, 0.0]


def test_the_two_clamps_of_the_ratio_weighted_k3_act_alone() -> None:
    """Far from the sampler but near the reference, ρ is held and k3 still has its slope; and the other way round."""
    x = f64(25.0, 25.0).requires_grad_()
    near_ref, near_old = slopes(ratio_k3(x, f64(24.0, 0.0), f64(0.0, 24.0)), x)
    assert near_ref == pytest.approx(math.exp(20.0) * (1.0 - math.exp(-1.0)), rel=1e-12)
    assert near_old == pytest.approx(math.exp(1.0) * (math.exp(-20.0) - 1.0 + 20.0), rel=1e-12)


# value, return -> slope; the old value is 1 and the clip 0.25
VALUE_CORNERS = [
    (2.0, 3.0, 0.0),  # up, and up was right: enough
    (2.0, 0.0, 2.0),  # up, and up was wrong: back, by all of V − R
    (0.0, -1.0, 0.0),  # down, and down was right: enough
    (0.0, 2.0, -2.0),  # down, and down was wrong
    (2.0, 1.5, 0.5),  # past the return, and further from it than the clipped value: back
    (2.0, 1.75, 0.0),  # past it and nearer to it than the clipped value is: nothing to repair
    (1.25, 3.0, -1.75),  # on the border
    (0.75, -1.0, 1.75),
    (1.125, 3.0, -1.875),  # inside
    (1.0, 1.0, 0.0),  # right
]


@pytest.mark.parametrize(("value", "target", "slope"), VALUE_CORNERS)
def test_the_corners_of_the_value_clip(value, target, slope) -> None:
    x = f64(value).requires_grad_()
    assert slopes(clipped_value_loss(x, f64(1.0), f64(target), 0.25).losses, x) == [slope]


def test_just_over_the_value_clip_the_gradient_is_gone() -> None:
    x = f64(1.25, 1.25 + NEXT, 0.75, 0.75 - NEXT).requires_grad_()
    found = clipped_value_loss(x, f64(1.0, 1.0, 1.0, 1.0), f64(3.0, 3.0, -1.0, -1.0), 0.25)
    assert slopes(found.losses, x) == [-1.75, 0.0, 1.75, 0.0]
    assert found.clipped.tolist() == [False, True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_value_inside_its_clip_is_never_told_as_clipped(dtype) -> None:
    """Old + (V − old) is not V in floating point, so the two branches must be the same number inside the range."""
    make = torch.Generator().manual_seed(0)
    old, values, target = (torch.randn(4000, generator=make, dtype=dtype) for _ in range(3))
    near = (0.1 * (values - old)).abs() < 0.19
    old, values, target = 0.1 * old[near], (0.1 * values[near]).requires_grad_(), target[near]
    assert bool((old + (values - old) != values).any())
    found = clipped_value_loss(values, old, target, 0.2)
    assert not bool(found.clipped.any())
    plain = clipped_value_loss(values, old, target, None)
    assert torch.equal(found.losses, plain.losses)
    assert slopes(found.losses, values) == slopes(plain.losses, values)


def test_preference_gradients_saturate_exactly_and_stay_finite() -> None:
    """σ(±1000) is exactly 1 and 0: a pair that is far right teaches nothing, one that is far wrong pulls by 1."""
    chosen = f64(-1000.0, 0.0, 1000.0).requires_grad_()
    assert slopes(bradley_terry(chosen, f64(0.0, 0.0, 0.0)), chosen) == [-1.0, -0.5, 0.0]
    smoothed = slopes(bradley_terry(chosen, f64(0.0, 0.0, 0.0), label_smoothing=0.1), chosen)
    assert smoothed == pytest.approx([-0.9, -0.4, 0.1], abs=1e-15)
    policy = f64(-1e5, 0.0, 1e5).requires_grad_()
    zero = f64(0.0, 0.0, 0.0)
    assert slopes(dpo(policy, zero, zero, zero, beta=0.1).losses, policy) == [-0.1, -0.05, 0.0]


@pytest.mark.parametrize("smoothing", [0.1, 0.3])
def test_smoothed_preferences_rest_where_the_pair_is_as_sure_as_its_label(smoothing) -> None:
    """σ(d) = 1 − ε at d = log((1 − ε) / ε): no pull, from either side towards it."""
    rest = math.log((1.0 - smoothing) / smoothing)
    chosen = f64(rest - 0.1, rest, rest + 0.1).requires_grad_()
    below, at, above = slopes(bradley_terry(chosen, f64(0.0, 0.0, 0.0), label_smoothing=smoothing), chosen)
    assert below < 0 < above
    assert at == pytest.approx(0.0, abs=1e-15)


def test_centering_rests_at_opposite_scores() -> None:
    chosen, rejected = f64(3.0, 3.0).requires_grad_(), f64(-3.0, -2.0)
    assert slopes(centering(chosen, rejected), chosen) == [0.0, 2.0]
