"""Do the pages that point at code and tests point at something that exists?"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
LINKS = re.findall(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)", (DOCS / "details.md").read_text())
FUNCTIONS = re.findall(r"`maths\.(\w+)\.(\w+)`", (DOCS / "papers.md").read_text())
WITHOUT_EQUATION = {  # plumbing of ragged tensors, and definitions told in a word
    "ragged", "clamp_log_ratio", "moments", "pair_outcomes", "length_cost", "missing_eos", "over_budget",
    "stop_properly", "scheduled",
    "require_per_sequence",
}  # fmt: skip


@pytest.mark.parametrize(("test", "file"), LINKS)
def test_a_detail_is_pinned_by_a_test_that_exists(test, file) -> None:
    assert f"def {test}(" in (DOCS.parent / file).read_text()


def test_every_detail_has_a_test() -> None:
    rows = [line for line in (DOCS / "details.md").read_text().splitlines() if line.startswith("| ")]
    assert all("](../tests/" in row for row in rows if row != "| detail | pinned by |")
    assert len(LINKS) > 40


@pytest.mark.parametrize(("module", "function"), FUNCTIONS)
def test_an_equation_names_a_function_that_exists(module, function) -> None:
    assert function in dir(importlib.import_module(f"tightrope.maths.{module}"))


def test_every_equation_of_the_maths_is_in_the_table() -> None:
    named = {function for _, function in FUNCTIONS} | WITHOUT_EQUATION
    missing = []
    for path in (DOCS.parent / "src/tightrope/maths").glob("[a-z]*.py"):
        module = importlib.import_module(f"tightrope.maths.{path.stem}")
        for name, member in inspect.getmembers(module, inspect.isfunction):
            own = member.__module__ == module.__name__ and not name.startswith("_")
            if own and path.stem not in named and name not in named:
                missing.append(f"{path.stem}.{name}")
    assert not missing
