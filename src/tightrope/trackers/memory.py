"""What was each tracker told already? ``trackers/NAME.json`` in the run folder: its id, and last steps.

A resume goes back to a checkpoint and repeats steps; rows a tracker holds already are not sent to it twice.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any


class TrackerMemory:
    """One tracker's own file: threads never share one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = read(path)

    @property
    def run_id(self) -> str | None:
        found = self._content.get("id")
        return None if found is None else str(found)

    def remember_id(self, run_id: str) -> None:
        self._content["id"] = run_id
        self._write()

    def told(self, stream: str, step: int) -> bool:
        """Whether this step or a later one of the stream was sent before."""
        return step <= int(self._content.get("last", {}).get(stream, -1))

    def remember(self, stream: str, step: int) -> None:
        self._content.setdefault("last", {})[stream] = step
        self._write()

    def _write(self) -> None:
        """Whole or not at all; not synced, because after a power cut a doubled row is no harm worth a disk's wait."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{self._path.name}.{threading.get_ident()}.tmp")
        temporary.write_text(json.dumps(self._content, sort_keys=True))
        os.replace(temporary, self._path)


def read(path: Path) -> dict[str, Any]:
    """An unreadable memory is an empty one: at worst rows come twice."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
