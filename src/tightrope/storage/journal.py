"""``events.jsonl``: every change of a run and who made it, one JSON object a line, never rewritten.

``step`` is the step at whose end the change was made. A checkpoint taken at the end of step n (numbered n + 1, the
step it enters) holds every change up to n. A resume from it undoes what came later, and says so by an event
``resumed`` at step n: readers leave out the undone events, the file keeps them. What the guardian, the controller and
the schedule did comes back by itself when the steps run again; what a person did is told by ``replay``, to be made
again at the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tightrope.config.errors import TightropeError
from tightrope.storage.line_log import LineLog, read_lines

SCHEMA = 1
RESUMED = "resumed"

SOURCES = ("person", "guardian", "controller", "schedule", "run")


@dataclass(frozen=True, slots=True)
class Event:
    """One line, e.g. ``Event(12, "raise_beta", "KL 31 nats over the limit 16", 2.0, "guardian", 1.7e9)``.

    ``time`` is seconds since 1970, for people only.
    """

    step: int
    kind: str
    reason: str
    value: float | str | None
    source: str
    time: float

    def change(self) -> tuple[int, str, float | str | None]:
        """What tells two changes apart, whenever they were made."""
        return self.step, self.kind, self.value


class Journal:
    """Opening repairs a line that a kill cut short."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._log = LineLog(path)
        self._clock = clock

    def append(self, step: int, kind: str, reason: str, source: str, value: float | str | None = None) -> None:
        """On disk when this returns. ``source`` is person, guardian, controller, schedule or run."""
        if source not in SOURCES:
            raise ValueError(f"an event's source is one of {', '.join(SOURCES)}, not {source}")
        event = Event(step, kind, reason, value, source, self._clock())
        self._log.append({"schema": SCHEMA, **asdict(event)})

    def cut_after(self, step: int) -> None:
        """Mark every event beyond ``step`` as undone, because the run goes on from the end of that step."""
        self.append(step, RESUMED, f"from the end of step {step}" if step >= 0 else "from the start", "run")

    def events(self) -> list[Event]:
        return read_events(self.path)

    def replay(self) -> list[Event]:
        """Changes a person made that a resume undid and that were not made again yet, in the order of their steps."""
        waiting: list[Event] = []
        standing: list[Event] = []
        for event in read_events(self.path, undone=True):
            if event.kind == RESUMED:
                waiting += [past for past in standing if past.step > event.step]
                standing = [past for past in standing if past.step <= event.step]
            elif event.source == "person":
                waiting = [past for past in waiting if past.change() != event.change()]
                standing.append(event)
        return sorted(waiting, key=lambda event: event.step)

    def close(self) -> None:
        self._log.close()


def read_events(path: Path, *, undone: bool = False) -> list[Event]:
    """The events that hold, or with ``undone`` all that were ever written. Changes nothing on disk."""
    kept: list[Event] = []
    for number, entry in read_lines(path):
        event = parse_event(entry, f"{path}:{number}")
        if event.kind == RESUMED and not undone:
            kept = [past for past in kept if past.step <= event.step]
        kept.append(event)
    return kept


def parse_event(entry: dict[str, Any], where: str) -> Event:
    if entry.get("schema") != SCHEMA:
        raise TightropeError(
            "event of an unknown schema", where=where, found=str(entry.get("schema")), expected=str(SCHEMA)
        )
    try:
        event = Event(**{name: entry[name] for name in Event.__dataclass_fields__})
    except KeyError as error:
        raise TightropeError(f"event without {error.args[0]}", where=where) from error
    if type(event.step) is not int or event.source not in SOURCES:
        raise TightropeError("event of an unknown form", where=where, found=f"step {event.step} by {event.source}")
    return event
