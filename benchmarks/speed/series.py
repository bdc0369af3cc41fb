"""A contest from its first step to its last, over as many calls as it takes.

Each row is on the disk before the next step begins. A call goes on where the last one was stopped: what is counted of
a side so far is what it need not do again. Another commit or another machine begins anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.speed.contests import Command, Contest
from benchmarks.speed.workers import Row, worker

CommandOf = Callable[[Contest, str], Command]
SAME = ("commit", "cpu", "packages", "peer", "mathematics")
"""Of the conditions: what must not change within a series."""


class Series:
    """The rows of one file; its first line holds the conditions."""

    def __init__(self, path: Path, conditions: Mapping[str, Any]) -> None:
        self.path = path
        self.conditions, self.rows = read(path)
        if {name: self.conditions.get(name) for name in SAME} != {name: conditions.get(name) for name in SAME}:
            self.conditions, self.rows = dict(conditions), []
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"conditions": self.conditions}) + "\n")

    def append(self, row: Row) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)

    def counted(self, contest: Contest, side: str) -> list[Row]:
        """The rows of a side that are no warm-up, at most as many as are wanted."""
        mine = [
            row
            for row in self.rows
            if (row["stage"], row["size"], row["side"]) == (contest.stage, contest.size, side)
            and row["step"] >= contest.warm
        ]
        return mine[: contest.steps]

    def missing(self, contest: Contest, sides: Sequence[str]) -> list[str]:
        return [side for side in sides if len(self.counted(contest, side)) < contest.steps]


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Conditions and rows. The half line of a call that was killed is left out, and cut off the file."""
    if not path.is_file():
        return {}, []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    lines = [json.loads(line) for line in whole.splitlines()]
    if not lines or "conditions" not in lines[0]:
        return {}, []
    return lines[0]["conditions"], lines[1:]


def play(series: Series, contest: Contest, sides: Sequence[str], command: CommandOf) -> Iterator[Row]:
    """Turn by turn until every side has its steps; rows as they come."""
    rounds = turns_apart if contest.apart else turns_together
    for row in rounds(series, contest, sides, command):
        series.append(row)
        yield row


def turns_together(series: Series, contest: Contest, sides: Sequence[str], command: CommandOf) -> Iterator[Row]:
    """All sides stand ready; those that wait use no CPU."""
    with ExitStack() as stack:
        ready = {side: stack.enter_context(worker(command(contest, side))) for side in series.missing(contest, sides)}
        while waiting := series.missing(contest, list(ready)):
            for side in waiting:
                yield ready[side].step()


def turns_apart(series: Series, contest: Contest, sides: Sequence[str], command: CommandOf) -> Iterator[Row]:
    while waiting := series.missing(contest, sides):
        for side in waiting:
            with worker(command(contest, side)) as alone:
                row = alone.step()
            yield row
