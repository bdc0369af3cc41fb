"""Are sums and scans over pieces of different length those of each piece alone?"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.maths.ragged import (
    discounted_to_go,
    require_same_shape,
    result_dtype,
    segment_ids,
    segment_last_index,
    segment_sum,
    widen,
)
from tightrope.types import offsets_of

numbers = st.floats(-10, 10)
pieces = st.lists(st.lists(numbers, max_size=5), max_size=6)


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


@given(pieces)
@settings(deadline=None)
def test_sums_are_those_of_each_piece(rows) -> None:
    found = segment_sum(flat(rows), offsets_of([len(row) for row in rows]))
    torch.testing.assert_close(found, torch.tensor([sum(row) for row in rows], dtype=torch.float64))


@given(pieces, st.floats(0, 1))
@settings(deadline=None)
def test_discounted_sum_is_the_loop_from_the_end_of_each_piece(rows, discount) -> None:
    expected = []
    for row in rows:
        tail, after = [], 0.0
        for x in reversed(row):
            after = x + discount * after
            tail.append(after)
        expected += tail[::-1]
    found = discounted_to_go(flat(rows), offsets_of([len(row) for row in rows]), discount)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_each_piece_may_have_its_own_discount() -> None:
    found = discounted_to_go(torch.ones(5).double(), torch.tensor([0, 2, 2, 5]), torch.tensor([0.5, 9.0, 2.0]))
    assert found.tolist() == [1.5, 1.0, 7.0, 3.0, 1.0]


def test_a_sum_passes_its_gradient_to_each_item_of_its_piece() -> None:
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (segment_sum(x, torch.tensor([0, 2, 2, 3])) * torch.tensor([2.0, 7.0, 5.0])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 5.0]


def test_many_small_numbers_are_added_in_float64() -> None:
    """2048 x -0.011 is -22.528; a bfloat16 sum says -22.5 and a sequential float32 one drifts in the last digits."""
    x = torch.full((2048,), -0.011)
    assert float(segment_sum(x, torch.tensor([0, 2048]))) == pytest.approx(2048 * float(x[0]), abs=1e-6)


def test_empty_pieces_have_a_sum_but_no_last_item() -> None:
    offsets = torch.tensor([0, 0, 2, 2, 3, 3])
    assert segment_sum(torch.ones(3), offsets).tolist() == [0.0, 2.0, 0.0, 1.0, 0.0]
    assert segment_last_index(offsets).tolist() == [1, 2]
    assert segment_ids(offsets).tolist() == [1, 1, 3]


def test_nothing_at_all_is_legal() -> None:
    empty = torch.empty(0)
    assert segment_sum(empty, torch.tensor([0])).shape == (0,)
    assert segment_sum(empty, torch.tensor([0, 0])).tolist() == [0.0]
    assert discounted_to_go(empty, torch.tensor([0, 0]), 0.9).shape == (0,)


@pytest.mark.parametrize(
    "offsets",
    [
        torch.tensor([0, 2]),
        torch.tensor([0, 4]),
        torch.tensor([1, 3]),
        torch.tensor([-1, 3]),
        torch.empty(0).long(),
        torch.tensor([[0, 3]]),
        torch.tensor(0),
    ],
)
def test_offsets_that_do_not_partition_are_refused(offsets) -> None:
    with pytest.raises(ValueError, match="do not partition"):
        segment_sum(torch.ones(3), offsets)
    with pytest.raises(ValueError, match="do not partition"):
        discounted_to_go(torch.ones(3), offsets, 0.5)


def test_a_column_and_a_single_number_are_not_ragged() -> None:
    for x in (torch.ones(3, 1), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="do not partition"):
            segment_sum(x, torch.tensor([0, 3]))


def test_what_would_broadcast_is_refused_with_its_names() -> None:
    with pytest.raises(ValueError, match=r"a \[2, 1\], b \[2\]"):
        require_same_shape({"a": torch.ones(2, 1), "b": torch.ones(2)})
    require_same_shape({})


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.int64, torch.float32),
    ],
)
def test_nothing_narrower_than_float32_comes_out(given_dtype, expected) -> None:
    assert result_dtype(torch.ones(1, dtype=given_dtype)) == widen(torch.ones(1, dtype=given_dtype)).dtype == expected
