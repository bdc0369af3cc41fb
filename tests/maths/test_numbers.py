"""Controllers, schedules, statistics, penalties and diagnostics: worked values, bounds, and what is refused."""

from __future__ import annotations

import math
from statistics import fmean, pvariance

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tensors import f64
from tightrope.maths.controllers import expected_kl, log_space_step, smoothed_kl, ziegler_step
from tightrope.maths.diagnostics import (
    best_of_n_kl,
    distinct_n,
    pair_outcomes,
    paired_difference,
    wilson_interval,
)
from tightrope.maths.logprobs import PLAIN
from tightrope.maths.penalties import length_cost, missing_eos, soft_overlong, stop_properly
from tightrope.maths.schedules import (
    constant_after_warmup,
    cosine_decay_with_warmup,
    linear_decay_with_warmup,
    scheduled,
)
from tightrope.maths.statistics import Moments, combine, gain_and_bias, moments

number = st.floats(-100, 100)
BOUNDS = {"beta_min": 1e-4, "beta_max": 10.0}


# controllers


@pytest.mark.parametrize(
    ("kl", "log_move"), [(6.0, 0.0), (12.0, 0.1), (9.0, 0.05), (0.0, -0.1), (1e9, 0.2), (-1e9, -0.2), (math.inf, 0.2)]
)
def test_log_space_controller_moves_log_beta_in_proportion_and_saturates(kl, log_move) -> None:
    found = log_space_step(0.1, kl, 6.0, gain=0.1, max_step=0.2, **BOUNDS)
    assert math.log(found / 0.1) == pytest.approx(log_move, abs=1e-12)


def test_expected_kl_goes_on_by_the_slope_of_the_smoothed_kl() -> None:
    assert smoothed_kl(5.0, 3.0) == pytest.approx(3.4)
    assert expected_kl(5.0, 3.0, 10.0) == pytest.approx(9.0)
    assert expected_kl(1.0, 3.0, 10.0) == pytest.approx(-3.0)
    assert expected_kl(5.0, 3.0, 0.0) == expected_kl(5.0, 5.0, 10.0) == 5.0
    with pytest.raises(ValueError, match="lookahead"):
        expected_kl(5.0, 3.0, -1.0)


def test_log_space_controller_keeps_its_bounds_and_leaves_zero() -> None:
    assert log_space_step(9.9, 100.0, 6.0, 0.1, 0.2, **BOUNDS) == 10.0
    assert log_space_step(1.1e-4, 0.0, 6.0, 0.5, 0.5, **BOUNDS) == 1e-4
    assert log_space_step(0.0, 12.0, 6.0, 0.1, 0.2, **BOUNDS) == pytest.approx(1e-4 * math.exp(0.1))


@pytest.mark.parametrize(
    ("kl", "beta"), [(12.0, 0.201024), (0.0, 0.198976), (6.3, 0.200256), (-3.0, 0.198976), (6.0, 0.2)]
)
def test_zieglers_controller(kl, beta) -> None:
    assert ziegler_step(0.2, kl, 6.0, n=256, horizon=10_000) == pytest.approx(beta, abs=1e-12)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_controllers_refuse_targets_and_horizons_that_are_not_positive(bad) -> None:
    for options in ({"target": bad}, {"gain": bad}, {"max_step": bad}):
        with pytest.raises(ValueError, match="must be positive"):
            log_space_step(0.1, 1.0, **({"target": 6.0, "gain": 0.1, "max_step": 0.2} | options), **BOUNDS)
    for options in ({"target": bad}, {"horizon": bad}, {"n": bad}):
        with pytest.raises(ValueError, match="must be positive"):
            ziegler_step(0.1, 1.0, **({"target": 6.0, "n": 8, "horizon": 100} | options))


def test_controllers_refuse_what_is_no_number_and_bounds_that_cross() -> None:
    for beta, kl in ((math.nan, 1.0), (0.1, math.nan)):
        with pytest.raises(ValueError, match="must be numbers"):
            log_space_step(beta, kl, 6.0, 0.1, 0.2, **BOUNDS)
        with pytest.raises(ValueError, match="must be numbers"):
            ziegler_step(beta, kl, 6.0, 8, 100)
    for low, high in ((0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)):
        with pytest.raises(ValueError, match="bounds"):
            log_space_step(0.1, 1.0, 6.0, 0.1, 0.2, low, high)


def test_controllers_take_every_positive_target_and_bounds_that_meet() -> None:
    """A KL of half its target of 0.5: log β moves by 0.1 · (0.5 − 1), Ziegler's β by −0.2 · 1 / 1 at most."""
    assert log_space_step(1.0, 0.25, 0.5, 0.1, 0.2, **BOUNDS) == pytest.approx(math.exp(-0.05), abs=1e-12)
    assert log_space_step(1.0, 0.25, 0.5, 0.1, 0.2, beta_min=0.3, beta_max=0.3) == 0.3
    assert ziegler_step(1.0, 0.25, 0.5, n=1, horizon=1.0) == pytest.approx(0.8, abs=1e-12)
    assert ziegler_step(1.0, 0.25, 0.5, n=1, horizon=0.5) == pytest.approx(0.6, abs=1e-12)


def test_zieglers_beta_never_loses_its_sign() -> None:
    for n in (500, 501):
        with pytest.raises(ValueError, match="horizon"):
            ziegler_step(0.1, 0.0, 6.0, n=n, horizon=100)
    assert ziegler_step(0.1, 0.0, 6.0, n=499, horizon=100) > 0


# schedules


def test_learning_rate_rises_then_falls_to_zero_at_the_end() -> None:
    found = [linear_decay_with_warmup(step, total=6, warmup=2) for step in range(8)]
    assert found == pytest.approx([1 / 3, 2 / 3, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert linear_decay_with_warmup(0, total=1, warmup=0) == 1.0
    assert linear_decay_with_warmup(3, total=3, warmup=5) == 0.0  # the run ends before its warm-up does


@given(st.integers(1, 50), st.integers(0, 60))
def test_no_step_of_a_run_has_learning_rate_zero(total, warmup) -> None:
    factors = [linear_decay_with_warmup(step, total, warmup) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("linear", [4.0, 4.0, 3.0, 2.0, 2.0]),
        ("constant", [4.0, 4.0, 4.0, 2.0, 2.0]),
        ("cosine", [4.0, 4.0, 3.0, 2.0, 2.0]),
    ],
)
def test_a_schedule_holds_then_moves_then_holds(shape, expected) -> None:
    assert [scheduled(step, 4.0, 2.0, shape, 1, 3) for step in range(5)] == pytest.approx(expected)


def test_a_line_is_at_a_quarter_of_the_way_after_a_quarter_of_the_steps() -> None:
    assert [scheduled(step, 1.0, 5.0, "linear", 2, 6) for step in (3, 5)] == [2.0, 4.0]


def test_a_learning_rate_falls_along_half_a_cosine_after_its_warmup() -> None:
    """p = 0, 1/4, 1/2, 3/4 of four steps after two of warm-up: (1 + cos πp) / 2."""
    found = [cosine_decay_with_warmup(step, total=6, warmup=2) for step in range(7)]
    high, low = (1 + math.sqrt(0.5)) / 2, (1 - math.sqrt(0.5)) / 2
    assert found == pytest.approx([1 / 3, 2 / 3, 1.0, high, 0.5, low, 0.0], abs=1e-12)


def test_a_learning_rate_without_decay_stays_after_its_warmup() -> None:
    assert [constant_after_warmup(step, warmup=3) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert constant_after_warmup(0, warmup=0) == 1.0
    for step, warmup in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="step and warmup"):
            constant_after_warmup(step, warmup)


def test_a_cosine_leaves_and_arrives_slowly() -> None:
    moved = [scheduled(step, 1.0, 0.0, "cosine", 0, 4) for step in range(5)]
    assert moved == pytest.approx([1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0.0])


def test_a_run_of_one_step_has_the_first_value_and_a_shape_must_be_known() -> None:
    assert scheduled(0, 4.0, 2.0, "linear", 0, 0) == 4.0
    with pytest.raises(ValueError, match="shape"):
        scheduled(1, 4.0, 2.0, "round", 0, 3)


@pytest.mark.parametrize(("step", "total", "warmup"), [(-1, 1, 0), (0, 0, 0), (0, 1, -1)])
def test_schedules_refuse_negative_counts(step, total, warmup) -> None:
    with pytest.raises(ValueError, match="step"):
        linear_decay_with_warmup(step, total, warmup)
    if warmup == 0:
        with pytest.raises(ValueError, match="step"):
            scheduled(-1, 1.0, 0.0, "linear", 0, total)


# statistics


@given(st.lists(st.lists(number, max_size=5), max_size=5))
@settings(deadline=None)
def test_moments_of_parts_combine_to_the_moments_of_the_whole(parts) -> None:
    seen = moments(f64())
    for part in parts:
        seen = combine(seen, moments(f64(*part)))
    everything = [x for part in parts for x in part]
    assert seen.count == len(everything)
    if everything:
        assert seen.mean == pytest.approx(fmean(everything), abs=1e-9)
        assert seen.squares == pytest.approx(pvariance(everything) * len(everything), abs=1e-6)


def test_equal_numbers_have_exactly_no_spread_and_no_numbers_have_no_std() -> None:
    assert moments(f64(0.1, 0.1, 0.1)) == Moments(3, 0.1, 0.0)
    assert moments(f64()) == Moments(0, 0.0, 0.0)
    assert moments(f64()).std is None
    assert moments(f64(1.0, 3.0)).std == 1.0


def test_an_empty_set_changes_nothing() -> None:
    """Exactly: 0.1 · 3 / 3 would be 0.10000000000000002."""
    seen, nothing = Moments(3, 0.1, 0.5), Moments(0, 0.0, 0.0)
    assert combine(nothing, seen) == combine(seen, nothing) == seen
    assert combine(nothing, nothing) == nothing


def test_moments_far_from_zero_are_worked_out_in_float64() -> None:
    """The mean of 10,000,000 and 10,000,001 is no float32."""
    assert moments(torch.tensor([1e7, 1e7 + 1])) == Moments(2, 10_000_000.5, 0.5)


def test_what_was_measured_is_not_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        moments(f64(1.0)).count = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        PLAIN.scale = 2.0  # type: ignore[misc]


@given(st.lists(number, min_size=2, max_size=10), number, st.floats(0.1, 5))
@settings(deadline=None)
def test_normalised_scores_have_the_target_mean_and_std(raw, mean, std) -> None:
    if max(raw) - min(raw) < 1e-3:
        raw = [*raw, raw[0] + 1.0]
    gain, bias = gain_and_bias(f64(*raw), mean, std)
    scores = gain * f64(*raw) + bias
    assert float(scores.mean()) == pytest.approx(mean, abs=1e-6)
    assert float(scores.std(correction=0)) == pytest.approx(std, rel=1e-6)


def test_scores_that_do_not_vary_are_only_moved() -> None:
    assert gain_and_bias(f64(4.0, 4.0), 1.0) == (1.0, -3.0)


@pytest.mark.parametrize("raw", [(), (1.0, math.nan), (1.0, math.inf)])
def test_scores_that_cannot_be_normalised_are_refused(raw) -> None:
    with pytest.raises(ValueError, match="finite scores"):
        gain_and_bias(f64(*raw))


def test_a_target_std_is_positive() -> None:
    with pytest.raises(ValueError, match="target_std"):
        gain_and_bias(f64(1.0, 2.0), 0.0, 0.0)
    with pytest.raises(ValueError, match="target_std"):
        gain_and_bias(f64(1.0, 2.0), 0.0, -1.0)


# penalties


def test_each_meaning_of_missing_eos() -> None:
    scores, stopped = f64(2.0, -3.0, 1.0), torch.tensor([True, False, False])
    assert missing_eos(scores, stopped, 1.0, "subtract").tolist() == [2.0, -4.0, 0.0]
    assert missing_eos(scores, stopped, 1.0, "replace").tolist() == [2.0, -1.0, -1.0]
    assert missing_eos(scores, stopped, 1.0, "off").tolist() == [2.0, -3.0, 1.0]
    assert missing_eos(scores, stopped, 0.0, "replace").tolist() == [2.0, 0.0, 0.0]
    assert missing_eos(scores, stopped, 0.5, "replace").tolist() == [2.0, -0.5, -0.5]


def test_the_soft_limit_of_length_starts_a_buffer_before_the_budget() -> None:
    """Budget 10, buffer 4, cost 2: free up to 6, then 2 · (length − 6) / 4, 2 from 10 on."""
    scores, lengths = f64(1.0, 1.0, 1.0, 1.0), torch.tensor([6, 7, 10, 50])
    assert soft_overlong(scores, lengths, 2.0, budget=10, buffer=4).tolist() == [1.0, 0.5, -1.0, -1.0]
    assert soft_overlong(scores, lengths, 2.0, budget=10, buffer=10).tolist() == pytest.approx([-0.2, -0.4, -1, -1])
    assert soft_overlong(scores, lengths, 2.0, budget=7, buffer=1).tolist() == [1.0, -1.0, -1.0, -1.0]
    third = soft_overlong(f64(0.0), torch.tensor([8]), 1.0, budget=10, buffer=3)
    assert third.item() == pytest.approx(-1 / 3, abs=1e-15)  # a share in float32 would have 8 digits
    for budget, buffer in ((10, 0), (10, -1), (10, 11)):
        with pytest.raises(ValueError, match="0 < buffer <= budget"):
            soft_overlong(scores, lengths, 2.0, budget, buffer)


def test_penalties_refuse_what_they_cannot_mean() -> None:
    scores, stopped = torch.ones(2), torch.tensor([True, False])
    with pytest.raises(ValueError, match="negative"):
        missing_eos(scores, stopped, -1.0, "subtract")
    with pytest.raises(ValueError, match="mode"):
        missing_eos(scores, stopped, 1.0, "sometimes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shapes must be equal"):
        missing_eos(scores, stopped[:1], 1.0, "subtract")
    with pytest.raises(ValueError, match="shapes must be equal"):
        length_cost(scores, torch.ones(2, 1), 0.1)
    with pytest.raises(ValueError, match="shapes must be equal"):
        soft_overlong(scores, torch.ones(2, 1), 0.1, 4, 2)
    with pytest.raises(ValueError, match="shapes must be equal"):
        stop_properly(scores, stopped[:, None], 0.5)


# diagnostics


def test_pairs_are_right_tied_or_wrong() -> None:
    outcomes = pair_outcomes(f64(2, 1, 0, math.nan), f64(1, 1, 1, 0))
    assert outcomes == (1, 1, 2)
    assert outcomes.accuracy == 0.375
    assert pair_outcomes(f64(), f64()).accuracy is None
    with pytest.raises(ValueError, match="shapes must be equal"):
        pair_outcomes(f64(1, 2), f64(1))


def test_distinct_n_counts_words_of_all_texts_together() -> None:
    assert distinct_n(["a b c", "a b d"], 1) == 4 / 6
    assert distinct_n(["a b c", "a b d"], 2) == 3 / 4
    assert distinct_n(["a b", "c"], 3) is None
    assert distinct_n(["a b c"], 3) == 1.0
    with pytest.raises(ValueError, match="at least 1"):
        distinct_n(["a"], 0)


def test_best_of_n_needs_an_n() -> None:
    assert best_of_n_kl(1) == 0.0
    with pytest.raises(ValueError, match="at least 1"):
        best_of_n_kl(0)


def test_wilson_interval_by_hand_and_at_its_ends() -> None:
    z, p, n = 1.959963984540054, 0.8, 10
    middle, reach = p + z * z / 20, z * math.sqrt(p * (1 - p) / n + z * z / 400)
    assert wilson_interval(8, 10) == pytest.approx(
        (p, (middle - reach) / (1 + z * z / n), (middle + reach) / (1 + z * z / n)), abs=1e-12
    )
    assert wilson_interval(0, 5)[:2] == (0.0, 0.0)
    assert all(wilson_interval(n, n)[0::2] == (1.0, 1.0) and wilson_interval(0, n).low == 0.0 for n in range(1, 100))
    assert 0 < wilson_interval(0, 5).high < 1
    narrow, wide = wilson_interval(5, 10, 0.5), wilson_interval(5, 10, 0.99)
    assert narrow.high - narrow.low < wide.high - wide.low


@pytest.mark.parametrize(
    ("successes", "n", "confidence"),
    [(0, 0, 0.9), (-1, 2, 0.9), (3, 2, 0.9), (1, 2, 1.0), (1, 2, 0), (1, 2, -0.5), (1, 2, 1.5)],
)
def test_intervals_refuse_impossible_counts(successes, n, confidence) -> None:
    with pytest.raises(ValueError, match=r"need n|confidence must"):
        wilson_interval(successes, n, confidence)


def test_paired_difference_by_hand() -> None:
    estimate, low, high = paired_difference([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
    assert estimate == 2.0
    assert (high - 2.0) == pytest.approx(1.959963984540054 / math.sqrt(3))
    assert (2.0 - low) == pytest.approx(high - 2.0)
    assert paired_difference([1.0], [3.0]) == (2.0, -math.inf, math.inf)
    assert paired_difference([0.1], [0.3]).estimate == pytest.approx(0.2, abs=1e-15)  # float32 would keep 8 digits


@pytest.mark.parametrize(("before", "after"), [([], []), ([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0])])
def test_paired_difference_needs_pairs(before, after) -> None:
    with pytest.raises(ValueError, match="as many"):
        paired_difference(before, after)
