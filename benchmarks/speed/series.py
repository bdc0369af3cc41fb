"""A contest from its first step to its last, over as many calls as it takes.

Each row is on the disk before the next step begins. A call goes on where the last one was stopped: what is counted of
a side so far is what it need not do again. A contest that was played to its end is played anew; another commit or
another machine begins anew with everything.
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
            self.conditions = dict(conditions)
            self._begin([])

    def _begin(self, rows: list[Row]) -> None:
        self.rows = rows
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"conditions": self.conditions}, *rows]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def append(self, row: Row) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)

    def counted(self, contest: Contest, side: str) -> list[Row]:
        """The rows of a side that are no warm-up."""
        rows = [row for row in self.rows if belongs(row, contest) and row["side"] == side]
        return [row for row in rows if row["step"] >= contest.warm]

    def forget(self, contests: Sequence[Contest]) -> None:
        """Their rows, so that they are played anew."""
        kept = [row for row in self.rows if not any(belongs(row, contest) for contest in contests)]
        self._begin(kept)

    def missing(self, contest: Contest, sides: Sequence[str]) -> list[str]:
        return [side for side in sides if len(self.counted(contest, side)) < contest.steps]


def belongs(row: Row, contest: Contest) -> bool:
    return (row["stage"], row["size"]) == (contest.stage, contest.size)


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


def begin(series: Series, contests: Sequence[Contest], sides: Sequence[str]) -> None:
    """Before the first turn of a call: what was finished is forgotten, what was stopped goes on."""
    if not any(series.missing(contest, sides) for contest in contests):
        series.forget(contests)


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
