"""What a claim is, and where they come from: one function a chapter of the proof.

To add claims, write a function ``(Work) -> Chapter`` and put it into ``CHAPTERS`` of ``__main__``. A chapter may run
things (``work.map`` spreads them over the worker processes) or read what was measured elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Claim:
    """``value`` must be at least ``threshold``, or at most where ``at_most``. NaN and infinity never pass."""

    name: str
    value: float
    threshold: float
    at_most: bool = False

    @property
    def passed(self) -> bool:
        if not math.isfinite(self.value):
            return False
        return self.value <= self.threshold if self.at_most else self.value >= self.threshold

    def to_json(self) -> dict[str, Any]:
        value = self.value if math.isfinite(self.value) else str(self.value)
        return {"value": value, "threshold": self.threshold, "passed": self.passed}


@dataclass(frozen=True)
class Chapter:
    """``rows`` are shown under ``columns``; what must hold is in ``claims``."""

    title: str
    text: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    claims: Sequence[Claim]


@dataclass(frozen=True)
class Work:
    """``seeds`` of the runs that are repeated; ``only`` a part of the name of what is run, empty for everything."""

    pool: Executor
    seeds: Sequence[int]
    only: str = ""

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """In the order of the items."""
        return list(self.pool.map(function, items))

    def wanted(self, name: str) -> bool:
        return self.only in name


ChapterOf = Callable[[Work], Chapter]


def table_of(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown, with columns that line up in a terminal too.

    >>> print(table_of(["a", "number"], [["x", "1"]]))
    | a | number |
    |---|--------|
    | x | 1      |
    """
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (columns, *rows)
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def claim_table(claims: Sequence[Claim]) -> str:
    rows = [
        [c.name, f"{c.value:.4g}", f"{'≤' if c.at_most else '≥'} {c.threshold:.4g}", "yes" if c.passed else "NO"]
        for c in claims
    ]
    return table_of(["claim", "value", "threshold", "passed"], rows)
