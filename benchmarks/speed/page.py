"""The table of docs/speed.md, from docs/speed.json alone; a test compares them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from benchmarks.speed.conditions import told
from benchmarks.speed.contests import ROOT
from benchmarks.speed.results import table

PAGE = ROOT / "docs" / "speed.md"
RESULT = ROOT / "docs" / "speed.json"
MARKS = re.compile(r"(<!-- table -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, result: Mapping[str, Any]) -> str:
    block = f"Conditions: {told(result['conditions'])}\n\n{table(result['figures'])}\n"
    return MARKS.sub(lambda found: f"{found[1]}{block}{found[2]}", text)


def write_page(result: Mapping[str, Any]) -> None:
    RESULT.write_text(
        json.dumps({name: result[name] for name in ("conditions", "summary", "figures")}, indent=1) + "\n"
    )
    PAGE.write_text(filled(PAGE.read_text(), result))
