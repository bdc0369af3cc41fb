"""The table of docs/speed.md, from docs/speed.json alone; a test compares them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.speed.conditions import told
from benchmarks.speed.contests import ROOT
from benchmarks.speed.results import linear_table, table

PAGE = ROOT / "docs" / "speed.md"
RESULT = ROOT / "docs" / "speed.json"
MARKS = re.compile(r"<!-- table (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
Part = Literal["contests", "linear"]


def blocks_of(results: Mapping[str, Any]) -> dict[str, str]:
    """What stands between the marks of each part that was measured."""
    tables = {"contests": table, "linear": linear_table}
    return {
        name: f"{told(result['conditions'])}\n\n{tables[name](result['figures'])}\n" for name, result in results.items()
    }


def filled(text: str, results: Mapping[str, Any]) -> str:
    blocks = blocks_of(results)

    def block(found: re.Match[str]) -> str:
        return f"<!-- table {found[1]} -->\n{blocks.get(found[1], found[2])}<!-- end -->"

    return MARKS.sub(block, text)


def write_page(part: Part, result: Mapping[str, Any]) -> None:
    results = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    results[part] = {name: result[name] for name in ("conditions", "summary", "figures")}
    RESULT.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(filled(PAGE.read_text(), results))
