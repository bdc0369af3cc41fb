"""Do the pages that point at code and tests point at something that exists, and that pytest runs?"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DETAILS = (DOCS / "details.md").read_text()
LINKS = sorted(set(re.findall(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)", DETAILS)))
CASES = sorted(set(re.findall(r"\[test_golden\]\(\S+\) `([\w.]+)`", DETAILS)))
ROWS = [line for line in DETAILS.splitlines() if line.startswith("| ") and "| pinned by |" not in line]
FUNCTIONS = re.findall(r"`maths\.(\w+)\.(\w+)`", (DOCS / "papers.md").read_text())
WITHOUT_EQUATION = {  # plumbing of ragged tensors, and definitions told in a word
    "ragged", "clamp_log_ratio", "moments", "pair_outcomes", "length_cost", "missing_eos", "over_budget",
    "scheduled", "require_per_sequence",
}  # fmt: skip


@cache
def collected(text: str) -> list[str]:
    """The tests that pytest finds in a module of functions: named so, at its top, and not skipped."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            if not any(re.search(r"\b(skip|skipif|xfail|fixture)\b", mark) for mark in marks):
                found.append(node.name)
    return found


@pytest.mark.parametrize(("test", "file"), LINKS)
def test_a_detail_is_pinned_by_a_test_that_exists_and_runs(test, file) -> None:
    path = ROOT / file
    assert path.name.startswith("test_")
    assert collected(path.read_text()).count(test) == 1, "missing, skipped, or hidden by another of its name"


@pytest.mark.parametrize(
    "text",
    [
        "def test_other(): pass",
        "def helper():\n    def test_a(): pass",
        "@pytest.mark.skip\ndef test_a(): pass",
        "@pytest.mark.skipif(True, reason='x')\ndef test_a(): pass",
        "def test_a(): pass\ndef test_a(): pass",
    ],
)
def test_a_test_that_does_not_run_is_noticed(text) -> None:
    assert collected(text).count("test_a") != 1
    assert collected("@pytest.mark.parametrize('x', [1])\ndef test_a(x): pass") == ["test_a"]


@pytest.mark.slow
def test_pytest_itself_collects_every_test_that_is_named() -> None:
    ids = [f"{file}::{test}" for test, file in LINKS]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts=", *ids]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = {line.split("[")[0] for line in done.stdout.splitlines()}
    assert set(ids) <= found


def test_every_detail_has_a_test_and_a_source() -> None:
    assert len(ROWS) > 80
    for row in ROWS:
        detail, tests, source = (cell.strip() for cell in row.strip("|").split(" | "))
        assert detail.endswith("."), row
        assert tests.startswith("[test_") and tests.count("](../tests/") == tests.count("[test_"), row
        assert source, row


def test_a_golden_case_that_is_named_exists() -> None:
    names = {case["name"] for case in json.loads((ROOT / "tests/maths/golden.json").read_text())["cases"]}
    assert len(CASES) > 20
    assert set(CASES) <= names


@pytest.mark.parametrize(("module", "function"), FUNCTIONS)
def test_an_equation_names_a_function_that_exists(module, function) -> None:
    found = vars(importlib.import_module(f"tightrope.maths.{module}"))[function]
    assert inspect.isfunction(found) and found.__module__ == f"tightrope.maths.{module}"


def test_every_equation_of_the_maths_is_in_the_table() -> None:
    named = {function for _, function in FUNCTIONS} | WITHOUT_EQUATION
    missing = []
    for path in (ROOT / "src/tightrope/maths").glob("[a-z]*.py"):
        module = importlib.import_module(f"tightrope.maths.{path.stem}")
        for name, member in inspect.getmembers(module, inspect.isfunction):
            own = member.__module__ == module.__name__ and not name.startswith("_")
            if own and path.stem not in named and name not in named:
                missing.append(f"{path.stem}.{name}")
    assert not missing
