"""Which runs are done, and what came out? One JSON line a finished run, in a file that git keeps.

Several processes may append at the same time: each line is written whole, under a lock. A line that cannot be read,
such as the half line of a machine that lost power, is told and skipped; the next append begins on a line of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LEDGER = Path(__file__).parent / "ledger.jsonl"


@dataclass(frozen=True, slots=True)
class Entry:
    """One run of one setting with one seed.

    ``config``: hash of everything that was set, seed and materials among it. ``same_as`` names the run of another
    experiment that had the same config: then there are no ``figures`` of its own.
    """

    experiment: str
    setting: str
    seed: int
    config: str
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    commit: str = "unknown"
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])
    same_as: str | None = None

    @property
    def run(self) -> tuple[str, str, int]:
        return self.experiment, self.setting, self.seed


class Ledger:
    def __init__(self, path: Path = LEDGER) -> None:
        self.path = path

    def append(self, entry: Entry) -> None:
        line = json.dumps({k: v for k, v in asdict(entry).items() if v is not None}, ensure_ascii=False)
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
            begins_new = size == 0 or file.read(1) == b"\n"
            file.write((b"" if begins_new else b"\n") + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[Entry]:
        """In the order they were written. Broken lines are told on stderr."""
        if not self.path.is_file():
            return []
        entries: list[Entry] = []
        for number, line in enumerate(self.path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            try:
                entries.append(Entry(**json.loads(line)))
            except (ValueError, TypeError) as error:
                print(f"warning: {self.path}:{number} is no ledger line and is skipped: {error}", file=sys.stderr)
        return entries

    def has(self, run: tuple[str, str, int], config: str) -> bool:
        return any(entry.run == run and entry.config == config for entry in self.read())

    def with_config(self, config: str) -> Entry | None:
        """A run with figures, of whatever experiment."""
        return next((entry for entry in self.read() if entry.config == config and entry.same_as is None), None)


class Results:
    """Figures by run. Of a run that was repeated the newest line counts."""

    def __init__(self, entries: list[Entry]) -> None:
        by_config = {entry.config: entry for entry in entries if entry.same_as is None}
        self._found = {entry.run: by_config[entry.config] for entry in entries if entry.config in by_config}

    def entry(self, experiment: str, setting: str, seed: int) -> Entry | None:
        return self._found.get((experiment, setting, seed))

    def seeds(self, experiment: str, setting: str) -> list[int]:
        return sorted(seed for e, s, seed in self._found if (e, s) == (experiment, setting))

    def figures(self, experiment: str, setting: str) -> dict[int, Mapping[str, Any]]:
        """By seed, in order."""
        return {seed: self._found[experiment, setting, seed].figures for seed in self.seeds(experiment, setting)}
