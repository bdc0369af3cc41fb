"""How does a run speak to a tracker that may raise, hang or be offline? Through a queue, to a thread of its own.

The run puts an item into a bounded queue and never waits; when it is full the oldest item is dropped and counted.
All that goes wrong is kept as sentences, which the run collects between its steps (``troubles``) for its journal.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tightrope.trackers.base import MetricTracker
from tightrope.trackers.memory import TrackerMemory

QUEUE_ITEMS = 1024
OPEN_SECONDS = 30.0
"""From its first row a tracker has this long to import its package and start, also where the run ends before."""
CLOSE_SECONDS = 5.0
"""How long the end of a run waits for all of its trackers together."""


@dataclass(frozen=True, slots=True)
class Item:
    """Metrics, or with ``name`` a table. ``stream`` has a step axis of its own: train, probe, samples/train, ..."""

    stream: str
    step: int
    metrics: Mapping[str, float]
    rows: Sequence[Mapping[str, Any]] | None = None


class GuardedTracker:
    """``open_tracker`` imports and starts the tracker; it runs in the thread, at the first item.

    ``skip_told``: leave out steps that were sent before a resume, for trackers that cannot take rows back.
    """

    def __init__(
        self, name: str, open_tracker: Callable[[], MetricTracker], memory: TrackerMemory, skip_told: bool
    ) -> None:
        self.name = name
        self.dropped = 0
        self._open = open_tracker
        self._memory = memory
        self._skip_told = skip_told
        self._items = deque[Item]()
        self._changed = threading.Condition()
        self._ending = False
        self._lost = False
        self._troubles = deque[str]()
        self._opened = threading.Event()
        self._open_until = 0.0
        self._thread: threading.Thread | None = None

    def send(self, item: Item) -> None:
        """Returns at once."""
        with self._changed:
            if self._lost or self._ending:
                return
            if len(self._items) == QUEUE_ITEMS:
                self._items.popleft()
                self.dropped += 1
                if self.dropped == 1:
                    self._troubles.append(f"slower than the run: over {QUEUE_ITEMS} rows wait, the oldest are dropped")
            self._items.append(item)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"tracker {self.name}", daemon=True)
                self._open_until = time.monotonic() + OPEN_SECONDS
                self._thread.start()

    def troubles(self) -> list[str]:
        """What went wrong since the last call, one sentence each."""
        with self._changed:
            found = list(self._troubles)
            self._troubles.clear()
            return found

    def ask_to_end(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify()

    def wait_open(self) -> None:
        """Until it has started or has failed to; a short run would end before a tracker's package is imported."""
        if self._thread is not None and not self._opened.is_set():
            self._opened.wait(max(0.0, self._open_until - time.monotonic()))

    def wait(self, seconds: float) -> None:
        """After ``ask_to_end``: until it has closed, or not longer than this. A thread that hangs is left behind."""
        if self._thread is None:
            return
        self._thread.join(seconds)
        with self._changed:
            if self._thread.is_alive():
                self._lost = True
                self._troubles.append(f"did not end in time; {len(self._items)} rows were still waiting")
                self._items.clear()  # should it come back, it ends: a resumed run may have taken its place
            if self.dropped:
                self._troubles.append(f"{self.dropped} rows were dropped")

    def _work(self) -> None:
        try:
            tracker = self._open()
            self._opened.set()
            while (item := self._next()) is not None:
                self._tell(tracker, item)
            tracker.close()
        except BaseException as error:  # a tracker may even call sys.exit
            with self._changed:
                self._lost = True
                self._items.clear()
                self._troubles.append(f"{type(error).__name__}: {error}")
            self._opened.set()

    def _next(self) -> Item | None:
        with self._changed:
            while not self._items and not self._ending:
                self._changed.wait()
            return self._items.popleft() if self._items else None

    def _tell(self, tracker: MetricTracker, item: Item) -> None:
        if self._skip_told and self._memory.told(item.stream, item.step):
            return
        if item.rows is None:
            tracker.log(item.step, item.metrics)
        else:
            tracker.table(item.step, item.stream, item.rows)
        self._memory.remember(item.stream, item.step)
