"""Each record and sample goes to the run's own store, and to whoever watches. A watcher may fail, the run may not."""

from __future__ import annotations

from collections.abc import Callable

from tightrope.protocols import Display, Journal, SampleSink
from tightrope.records import StepRecord, Tracker
from tightrope.types import Rollout, Scores


class FanOut:
    """A ``Tracker`` and a ``SampleSink``. After its first error the watcher is left alone, with one journal event."""

    def __init__(self, store: Tracker, samples: SampleSink, watcher: Display, journal: Journal) -> None:
        self._store = store
        self._samples = samples
        self._watcher = watcher
        self._journal = journal
        self._watching = True

    def write(self, record: StepRecord) -> None:
        self._store.write(record)
        self._show(record.step, lambda: self._watcher.write(record))

    def keep(self, step: int, attempt: int, rollout: Rollout, scores: Scores, split: str) -> None:
        self._samples.keep(step, attempt, rollout, scores, split)
        self._show(step, lambda: self._watcher.keep(step, attempt, rollout, scores, split))

    def close(self) -> None:
        self._show(0, self._watcher.close)

    def _show(self, step: int, call: Callable[[], None]) -> None:
        if not self._watching:
            return
        try:
            call()
        except Exception as error:  # whatever a terminal, a pipe or a tracker's service may raise
            self._watching = False
            self._journal.append(step, "display_lost", f"{type(error).__name__}: {error}", "run")
