"""Does a ranking mean the same however it is written, count once, and get refused where it says nothing?"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tensors import f64
from tightrope.maths.ranking_losses import best_of_n, kwise, plackett_luce, ranked_pairs

TWO = torch.tensor([0, 2])


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def test_kwise_is_the_mean_over_pairs_worked_by_hand() -> None:
    """Scores 1, 0, -1 in order: differences 1, 2, 1."""
    found = kwise(f64(0.0, 1.0, -1.0), ints(2, 1, 3), ints(0, 3))
    expected = (2 * math.log1p(math.exp(-1)) + math.log1p(math.exp(-2))) / 3
    assert found.tolist() == pytest.approx([expected], abs=1e-12)


def test_a_prompt_counts_once_however_many_answers_it_has() -> None:
    equal = kwise(f64(*[0.0] * 7), ints(1, 2, 3, 4, 5, 1, 2), ints(0, 5, 7))
    assert equal.tolist() == pytest.approx([math.log(2)] * 2, abs=1e-12)


def test_smoothing_reaches_every_pair() -> None:
    smoothed = kwise(f64(1.0, 0.0), ints(1, 2), TWO, 0.2).item()
    assert smoothed == pytest.approx(math.log1p(math.exp(-1)) + 0.2, abs=1e-12)


def test_ties_make_no_pair() -> None:
    better, worse, bounds = ranked_pairs(ints(5, 9, 5, 1, 2), ints(0, 3, 5))
    assert (better.tolist(), worse.tolist(), bounds.tolist()) == ([0, 2, 3], [1, 1, 4], [0, 2, 3])
    assert {tensor.dtype for tensor in (better, worse, bounds)} == {torch.int64}


@given(st.permutations(range(5)), st.lists(st.floats(-3, 3), min_size=5, max_size=5))
@settings(max_examples=30, deadline=None)
def test_the_order_in_which_answers_are_written_does_not_matter(order, values) -> None:
    scores, ranks, offsets, index = f64(*values), ints(3, 1, 5, 2, 4), ints(0, 5), torch.tensor(order)
    for loss in (kwise, plackett_luce):
        assert loss(scores[index], ranks[index], offsets).item() == pytest.approx(
            loss(scores, ranks, offsets).item(), abs=1e-12
        )


def test_gaps_between_ranks_do_not_matter() -> None:
    scores, offsets = f64(0.3, -1.0, 2.0), ints(0, 3)
    for loss in (kwise, plackett_luce):
        assert torch.equal(loss(scores, ints(1, 2, 3), offsets), loss(scores, ints(-4, 10, 70), offsets))


def test_plackett_luce_of_equal_scores_is_the_number_of_orders() -> None:
    found = plackett_luce(f64(*[2.0] * 6), ints(3, 1, 4, 2, 2, 1), ints(0, 4, 6))
    assert found.tolist() == pytest.approx([math.log(24), math.log(2)], abs=1e-12)


def test_best_of_n_of_equal_scores_is_log_n() -> None:
    found = best_of_n(f64(*[2.0] * 6), ints(3, 0), ints(0, 4, 6))
    assert found.tolist() == pytest.approx([math.log(4), math.log(2)], abs=1e-12)


def test_of_two_answers_all_three_are_bradley_terry() -> None:
    for gap in (-3.0, 0.0, 2.0):
        scores, expected = f64(0.5, 0.5 - gap), math.log1p(math.exp(-gap))
        found = kwise(scores, ints(1, 2), TWO), plackett_luce(scores, ints(1, 2), TWO), best_of_n(scores, ints(0), TWO)
        assert [x.item() for x in found] == pytest.approx([expected] * 3, abs=1e-12)


def test_large_scores_stay_finite_and_half_precision_is_widened() -> None:
    scores = torch.tensor([-3e4, 3e4], dtype=torch.float16)
    for found in (
        kwise(scores, ints(1, 2), TWO),
        plackett_luce(scores, ints(1, 2), TWO),
        best_of_n(scores, ints(0), TWO),
    ):
        assert found.dtype == torch.float32
        assert found.item() == pytest.approx(6e4, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: kwise(f64(1, 2), ints(1, 1), TWO), r"prompt 0 make no pair: \[1, 1\]"),
        (lambda: kwise(f64(1, 2, 3), ints(1, 2, 1), ints(0, 2, 3)), r"prompt 1 make no pair: \[1\]"),
        (lambda: kwise(f64(1, 2), ints(1, 2, 3), ints(0, 3)), "shapes must be equal"),
        (lambda: kwise(f64(1, 2), ints(1, 2), ints(0, 1)), "partition"),
        (lambda: kwise(f64(1, 2), ints(1, 2), TWO, 0.5), "label_smoothing"),
        (lambda: plackett_luce(f64(1, 2, 3), ints(1, 2, 2), ints(0, 3)), "prompt 0 has no strict order"),
        (lambda: plackett_luce(f64(1, 2, 3), ints(1, 2, 1), ints(0, 2, 3)), "prompt 1 has no strict order"),
        (lambda: plackett_luce(f64(1, 2), ints(1), TWO), "shapes must be equal"),
        (lambda: plackett_luce(f64(1, 2), ints(1, 2), ints(0, 1)), "partition"),
        (lambda: best_of_n(f64(1, 2), ints(2), TWO), "best of prompt 0 is 2"),
        (lambda: best_of_n(f64(1, 2), ints(-1), TWO), "best of prompt 0 is -1"),
        (lambda: best_of_n(f64(1, 2, 3), ints(0, 0), ints(0, 2, 3)), "prompt 1 is 0, and it has 1 "),
        (lambda: best_of_n(f64(1, 2), ints(0, 1), TWO), "shapes must be equal"),
        (lambda: best_of_n(f64(1, 2), ints(0), ints(0, 1)), "partition"),
    ],
)
def test_what_says_nothing_is_refused(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()
