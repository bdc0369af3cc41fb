"""Is a result as wide as promised, worked out in float64 where it says so, and is the input left alone?"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.tensors import f64
from tightrope.maths.advantages import gae, rloo_advantages, token_rewards, whiten
from tightrope.maths.kl import ratio_k3
from tightrope.maths.penalties import length_cost, missing_eos, over_budget, soft_overlong, stop_properly
from tightrope.maths.ragged import discounted_to_go, segment_sum
from tightrope.maths.statistics import moments
from tightrope.maths.value_losses import explained_variance

OFFSETS, LENGTHS, STOPPED = torch.tensor([0, 1, 3]), torch.tensor([4, 9]), torch.tensor([True, False])
GROUP = torch.tensor([0, 0, 1])

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "token_rewards": lambda x: token_rewards(x[:2], x, 0.1, OFFSETS),
    "token_rewards, clipped": lambda x: token_rewards(x[:2], x, 0.1, OFFSETS, 1.0),
    "gae, advantages": lambda x: gae(x, x, OFFSETS, 0.9, 0.8)[0],
    "gae, returns": lambda x: gae(x, x, OFFSETS, 0.9, 0.8, x[:2])[1],
    "whiten": whiten,
    "whiten, mean kept": lambda x: whiten(x, shift_mean=False),
    "whiten, no scale": lambda x: whiten(x[:1]),
    "whiten, no scale, mean kept": lambda x: whiten(x[:1], shift_mean=False),
    "rloo_advantages": lambda x: rloo_advantages(x, GROUP),
    "ratio_k3": lambda x: ratio_k3(x, 2 * x, 3 * x),
    "segment_sum": lambda x: segment_sum(x, OFFSETS),
    "discounted_to_go": lambda x: discounted_to_go(x, OFFSETS, 0.5),
    "length_cost": lambda x: length_cost(x[:2], LENGTHS, 0.1),
    "over_budget": lambda x: over_budget(x[:2], LENGTHS, 0.1, 5),
    "soft_overlong": lambda x: soft_overlong(x[:2], LENGTHS, 0.1, 8, 4),
    "stop_properly": lambda x: stop_properly(x[:2], STOPPED, 1 / 3),
    "missing_eos, subtract": lambda x: missing_eos(x[:2], STOPPED, 1.0, "subtract"),
    "missing_eos, replace": lambda x: missing_eos(x[:2], STOPPED, 1.0, "replace"),
    "missing_eos, off": lambda x: missing_eos(x[:2], STOPPED, 1.0, "off"),
}
NUMBERS = f64(0.5, -1.25, 3.0)


@pytest.mark.parametrize("name", CALLS)
def test_results_are_float32_or_float64(name) -> None:
    exact = CALLS[name](NUMBERS)
    assert exact.dtype == torch.float64
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = CALLS[name](NUMBERS.to(dtype))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", CALLS)
def test_the_input_is_left_alone(name) -> None:
    """Writing on the result does not reach what was given, and neither does the function."""
    given = NUMBERS.clone()
    CALLS[name](given).add_(1.0)
    assert torch.equal(given, NUMBERS)


def test_numbers_about_what_trains_are_read_without_a_warning() -> None:
    """torch warns when a tensor with a gradient becomes a number: the first time, and here each time."""
    x = NUMBERS.clone().requires_grad_()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert moments(x).count == 3
            assert explained_variance(x, NUMBERS)["explained_variance"] == 1.0
    finally:
        torch.set_warn_always(False)


def test_token_rewards_are_added_up_in_float64() -> None:
    """1,234,567 − 0.1 · 12,345,678 = −0.8; in float32, 1,234,567.8 would be rounded to eighths first."""
    found = token_rewards(torch.tensor([1_234_567.0]), torch.tensor([12_345_678.0]), 0.1, torch.tensor([0, 1]))
    assert found.item() == pytest.approx(-0.8, abs=1e-6)


def test_a_clipped_score_is_the_clip_itself() -> None:
    """0.1 in float64, not the float32 next to it, 0.100000001."""
    found = token_rewards(torch.tensor([5.0]), f64(0.0), 0.0, torch.tensor([0, 1]), score_clip=0.1)
    assert found.tolist() == [0.1]


def test_advantages_are_worked_out_in_float64() -> None:
    """δ = 0.1 · 12,345,678 − 1,234,567 = 0.8, then the value of the only state comes back: 1,234,567.8."""
    values, rewards = torch.tensor([1_234_567.0]), torch.tensor([0.0])
    advantages, _ = gae(rewards, values, torch.tensor([0, 1]), 0.1, 1.0, torch.tensor([12_345_678.0]))
    assert advantages.item() == pytest.approx(0.8, abs=1e-6)


def test_whitening_far_from_zero_is_done_in_float64() -> None:
    """Distances of 1 at 100,000: float32 squares of the distances would do, the mean of 30,001 of them would not."""
    x = 100_000.0 + torch.arange(30_001) % 3
    exact = whiten(x.double())
    torch.testing.assert_close(whiten(x).double(), exact, rtol=0, atol=1e-6)


def test_leave_one_out_far_from_zero_is_done_in_float64() -> None:
    """(10,000,001 + 10,000,002) / 2 is no float32: the baseline of the first is half a step away."""
    found = rloo_advantages(torch.tensor([1e7, 1e7 + 1, 1e7 + 2]), torch.tensor([0, 0, 0]))
    assert found.tolist() == [-1.5, 0.0, 1.5]
