"""Is what came back the expected value? Both are JSON values; a child's text is parsed with suspicion."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, cast

LONGEST_NUMBER = 4300


class NotJson(ValueError):
    """Text from the sandbox that is not one plain JSON value."""


def parsed(text: bytes) -> Any:
    """Raises NotJson; NaN, infinities, repeated names, huge numbers and deep nesting are none of JSON's.

    >>> parsed(b'[1, true]')
    [1, True]
    """
    try:
        return json.loads(
            text, parse_constant=refuse, parse_int=integer, parse_float=number, object_pairs_hook=plain_object
        )
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not JSON: {type(error).__name__}") from error


def refuse(text: str) -> NoReturn:
    raise NotJson(f"{text} is no number of JSON")


def integer(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise NotJson("a number of too many digits")
    return int(text)


def number(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else refuse(text)


def plain_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise NotJson("a name twice in an object")
    return content


def same(answer: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Equal as JSON: null, true, 1, "1", [1] and {"1": 1} are all different; 1 and 1.0 are one number.

    ``tolerance``: how far two numbers may be apart, relative to the larger, where one of them is written with a point.

    >>> same(1, True), same(1, 1.0), same([1, "a"], [1, "a"]), same(0.3, 0.1 + 0.2), same(0.3, 0.1 + 0.2, 1e-9)
    (False, True, True, False, True)
    """
    if isinstance(answer, list) and isinstance(expected, list):
        left, right = cast("list[Any]", answer), cast("list[Any]", expected)
        return len(left) == len(right) and all(same(a, b, tolerance) for a, b in zip(left, right, strict=True))
    if isinstance(answer, dict) and isinstance(expected, dict):
        have, want = cast("dict[str, Any]", answer), cast("dict[str, Any]", expected)
        return have.keys() == want.keys() and all(same(have[name], want[name], tolerance) for name in want)
    if is_number(answer) and is_number(expected):
        return answer == expected or (
            tolerance > 0
            and isinstance(answer, float) | isinstance(expected, float)
            and near(answer, expected, tolerance)
        )
    return type(answer) is type(expected) and answer == expected


def near(answer: Any, expected: Any, tolerance: float) -> bool:
    try:
        return math.isclose(answer, expected, rel_tol=tolerance)
    except OverflowError:  # an integer beyond any float
        return False


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
