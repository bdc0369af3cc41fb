"""Does the index of faults point at tests that exist, and does every test that names a fault stand in it?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/faults.md").read_text()
LINKS = re.findall(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)", PAGE)
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| B\d\d \|", line)]
NUMBERED = r"^def (test_b\d\d_\w+)\("


def named_tests() -> list[tuple[str, str]]:
    """Tests whose name begins with the number of a fault, with their file."""
    found: list[tuple[str, str]] = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        names = re.findall(NUMBERED, path.read_text(), re.MULTILINE)
        found += [(name, str(path.relative_to(ROOT))) for name in names]
    return found


@pytest.mark.parametrize(("test", "file"), sorted(set(LINKS)))
def test_a_linked_test_exists(test: str, file: str) -> None:
    assert f"def {test}(" in (ROOT / file).read_text()


def test_every_row_names_a_rule_and_a_test() -> None:
    assert len(ROWS) > 60
    for row in ROWS:
        _, fault, kind, rule, tests, _ = (cell.strip() for cell in row.split("|"))
        assert fault and kind and rule.endswith(".") and tests.startswith("[test_"), row


def test_no_fault_stands_in_the_table_twice() -> None:
    faults = [row.split("|")[1].strip() for row in ROWS]
    assert len(faults) == len(set(faults))


def test_a_test_named_after_a_fault_stands_in_its_row() -> None:
    row_of = {row.split("|")[1].strip(): row for row in ROWS}
    named = named_tests()
    assert len(named) > 50
    for test, file in named:
        for number in re.findall(r"(?<=_)b(\d\d)(?=_)", f"_{test}"):
            assert f"[{test}](../{file})" in row_of.get(f"B{number}", ""), f"{test} is not linked from B{number}"
