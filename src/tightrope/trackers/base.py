"""What is a tracker told about the run, and what must it offer?

A plugin is a function ``(run: TrackedRun) -> MetricTracker``. It is called in a thread of its own, at the first record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class TrackedRun:
    """``folder`` is the tracker's own folder inside the run folder; ``config`` every key of the run, as JSON values.

    ``next_step`` is the first step still to come: over 0 after a resume, when rows of that step and later ones may
    have been written before. ``known_id`` is what an earlier part of this run gave to ``remember_id``.
    """

    name: str
    project: str
    stage: str
    folder: Path
    config: Mapping[str, Any]
    next_step: int
    known_id: str | None
    remember_id: Callable[[str], None]


class MetricTracker(Protocol):
    """May be slow, raise, or never return; none of it reaches the run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Training step ``step``, or with names under ``probe/`` the probe entering it."""
        ...

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Samples of a step, one row a response; ``name`` is ``samples/train`` or ``samples/probe``."""
        ...

    def close(self) -> None: ...


TrackerFactory = Callable[[TrackedRun], MetricTracker]
