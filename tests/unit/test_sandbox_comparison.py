"""Does the comparison of engines count what was seen, and are its programs programs?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.sandbox_comparison.__main__ import ENGINE_FILE, attacked, table
from benchmarks.sandbox_comparison.attacks import ATTACKS, CONTROL

NAIVE = """
import json, os, sys
asked = json.load(sys.stdin)
answer = os.dup(1)
os.dup2(2, 1)
space = {}
exec(asked["code"], space)
secret = asked["expected"]
try:
    passed = space["f"](asked["facts"]) == asked["expected"]
except Exception:
    passed = False
os.write(answer, json.dumps({"passed": passed, "error": ""}).encode())
"""


@pytest.fixture
def naive(monkeypatch, tmp_path):
    """An engine that keeps nothing in."""
    file = tmp_path / "naive.py"
    file.write_text(NAIVE)
    monkeypatch.setattr("benchmarks.sandbox_comparison.__main__.ENGINE_FILE", file)
    monkeypatch.setattr("benchmarks.sandbox_comparison.__main__.PATIENCE", 3.0)
    monkeypatch.setattr("benchmarks.sandbox_comparison.__main__.AFTER", 0.1)
    monkeypatch.setattr("benchmarks.sandbox_comparison.__main__.BYTES", 1 << 20)


@pytest.mark.parametrize("attack", (CONTROL, *ATTACKS), ids=lambda attack: attack.what)
def test_every_attack_gets_what_it_wants_where_nothing_is_kept_in(naive, tmp_path, attack) -> None:
    assert attacked(Path(sys.executable), "naive", attack, tmp_path)[0]


def test_the_table_counts_what_was_asked() -> None:
    cells = {one.what: "no" for one in (CONTROL, *ATTACKS)} | {ATTACKS[0].what: "–", ATTACKS[2].what: "**yes**"}
    text = table({"x": cells}, {"x": "1.0"})
    assert text.startswith("| attack | x 1.0 |") and text.endswith(f"| 1 of {len(ATTACKS) - 1} |")
    assert ENGINE_FILE.exists()
