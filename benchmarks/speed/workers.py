"""A side in a process of its own, asked for one step at a time (``turns.py`` is its end of the line)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from benchmarks.speed.contests import ROOT, Command
from benchmarks.speed.turns import MARK

LAST_WORDS = 2000
PATIENCE = 10
"""Seconds for a side to leave by itself."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Worker:
    command: Command
    process: subprocess.Popen[str]
    errors: IO[str]

    def step(self) -> Row:
        """Raises RuntimeError with its last words where the side ended instead."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):  # it is gone: stdout ends, and its errors say why
            self.process.stdin.write("step\n")
        for line in self.process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        self.process.wait()
        self.errors.seek(0)
        words = self.errors.read()[-LAST_WORDS:]
        raise RuntimeError(f"{' '.join(self.command.words)} ended with {self.process.returncode}:\n{words}")

    def close(self) -> None:
        """It leaves when its stdin ends; in the middle of a step it is ended."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def worker(command: Command) -> Iterator[Worker]:
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=command.environment,
            cwd=ROOT,
            text=True,
            bufsize=1,
        )
        opened = Worker(command, process, errors)
        try:
            yield opened
        finally:
            opened.close()
