"""Each record and sample goes to the run's own store, and to whoever watches. A watcher may fail, the run may not.

The display is called directly and left alone after its first error; trackers stand behind queues of their own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tightrope.config.schema import OnlineConfig, RunConfig
from tightrope.protocols import Display, Journal, SampleSink
from tightrope.records import StepRecord, Tracker
from tightrope.storage.samples import StoredSample, samples_of
from tightrope.trackers.guarded import CLOSE_SECONDS, GuardedTracker, Item
from tightrope.trackers.names import tracked_metrics
from tightrope.types import Rollout, Scores


@dataclass(frozen=True)
class Watchers:
    """Who sees the run beside its own store. ``trackers_from`` opens them for a run whose next step is given."""

    display: Display
    trackers_from: Callable[[int], Sequence[GuardedTracker]]


class FanOut:
    """A ``Tracker`` and a ``SampleSink``. What goes wrong with a watcher is one warning and one journal event."""

    def __init__(
        self, store: Tracker, samples: SampleSink, watchers: Watchers, journal: Journal, config: RunConfig
    ) -> None:
        self._store = store
        self._samples = samples
        self._watchers = watchers
        self._journal = journal
        self._config = config
        self._watching = True
        self._trackers = list[GuardedTracker]()
        self._step = 0

    def begin(self, next_step: int) -> None:
        """The run's first step to come is known; until then nothing is written."""
        self._trackers = list(self._watchers.trackers_from(next_step))

    def write(self, record: StepRecord) -> None:
        self._store.write(record)
        self._show(record.step, lambda: self._watchers.display.write(record))
        if not self._trackers:
            return
        config = self._config
        metrics = tracked_metrics(
            record, learning_rate=config.optimizer.learning_rate, trl_names=config.tracker_options.trl_names
        )
        stream = record.stage.partition("/")[2] or "train"
        self._send(Item(stream, record.step, metrics))

    def keep(self, step: int, attempt: int, rollout: Rollout, scores: Scores, split: str) -> None:
        self._samples.keep(step, attempt, rollout, scores, split)
        self._show(step, lambda: self._watchers.display.keep(step, attempt, rollout, scores, split))
        if not self._trackers or not isinstance(self._config, OnlineConfig):
            return
        kept = self._config.samples
        if kept.count and not (split == "train" and step % kept.every):
            rows = [shown_row(sample) for sample in samples_of(step, attempt, rollout, scores, split, kept.count)]
            self._send(Item(f"samples/{split}", step, {}, rows))

    def close(self) -> None:
        """Waits for the trackers: those still starting until ``OPEN_SECONDS`` after their first row, then all together
        not longer than ``CLOSE_SECONDS``."""
        self._show(0, self._watchers.display.close)
        for tracker in self._trackers:
            tracker.ask_to_end()
        for tracker in self._trackers:
            tracker.wait_open()
        until = time.monotonic() + CLOSE_SECONDS
        for tracker in self._trackers:
            tracker.wait(max(0.0, until - time.monotonic()))
        self._report()

    def _send(self, item: Item) -> None:
        self._step = item.step
        for tracker in self._trackers:
            tracker.send(item)
        self._report()

    def _report(self) -> None:
        for tracker in self._trackers:
            for trouble in tracker.troubles():
                print(f"warning: tracker {tracker.name}: {trouble}; the run is not touched by it", file=sys.stderr)
                self._journal.append(self._step, "tracker_trouble", f"{tracker.name}: {trouble}", "run")

    def _show(self, step: int, call: Callable[[], None]) -> None:
        if not self._watching:
            return
        try:
            call()
        except Exception as error:  # whatever a terminal or a pipe may raise
            self._watching = False
            self._journal.append(step, "display_lost", f"{type(error).__name__}: {error}", "run")


def shown_row(sample: StoredSample) -> Mapping[str, Any]:
    """What people read of a sample, by column."""
    return {
        "prompt": sample.prompt,
        "response": sample.response,
        "reward": sample.reward,
        "kl": sample.kl,
        "finish_reason": sample.finish_reason,
        "n_tokens": sample.n_tokens,
    }


class Nobody:
    """A ``Display`` and a ``SampleSink`` that show and keep nothing."""

    def write(self, record: StepRecord) -> None:
        """Nothing is shown."""

    def keep(self, step: int, attempt: int, rollout: Rollout, scores: Scores, split: str) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing was opened."""
