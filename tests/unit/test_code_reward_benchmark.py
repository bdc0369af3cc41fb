"""Are HumanEval's asserts read as they are meant?"""

from __future__ import annotations

import pytest

from benchmarks.code_reward.humaneval import cases_of


@pytest.mark.parametrize(
    ("line", "cases"),
    [
        ("assert candidate('a', -1) == True", [{"args": ["a", -1], "expected": True}]),
        ("assert candidate([]) == (1, [None])", [{"args": [[]], "expected": [1, [None]]}]),
        ("assert candidate(1) == {1: 2}", []),
        ("assert candidate({1}) == 2", []),
        ("assert abs(candidate(1) - 2) < 1e-6", []),
        ("assert candidate(1) == candidate(2)", []),
        ("assert candidate(1) != 2", []),
        ("assert candidate(x=1) == 2", []),
        ("assert other(1) == 2", []),
        ("assert 1 < candidate(1) == 2", []),
        ("assert True, 'candidate(1) == 2'", []),
    ],
)
def test_only_calls_compared_with_literals_become_cases(line, cases) -> None:
    assert cases_of(f"def check(candidate):\n    {line}\n") == cases
