"""How does a side take one step at a time? It waits for a line on stdin and answers with one row on stdout.

Imports nothing of ours: the peer's environment runs it too.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

MARK = "ROW "
"""Before a row: what libraries print stands on the same stdout."""
GIB = 2**30


@dataclass
class Turns:
    """``steps`` None: as many as are asked for on stdin. The clock stands while a side waits."""

    side: Mapping[str, str]
    steps: int | None
    done: int = 0
    _cpu: float = field(default=0.0)
    _wall: float = field(default=0.0)

    def wait(self) -> bool:
        """False when no more steps are wanted. The step's time begins when this returns."""
        asked = self.done < self.steps if self.steps is not None else bool(sys.stdin.readline())
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return asked

    def give(self, phases: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """The step's time ends here. ``phases``: CPU seconds by name; ``counts``: ``tokens`` (real) and more."""
        row = {
            **self.side,
            "step": self.done,
            "cpu": time.process_time() - self._cpu,
            "wall": time.perf_counter() - self._wall,
            **phases,
            **counts,
            "rss_gb": peak_rss() / GIB,
        }
        self.done += 1
        shown = {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
        print(MARK + json.dumps(shown), flush=True)


def peak_rss() -> int:
    """Most bytes this process held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
