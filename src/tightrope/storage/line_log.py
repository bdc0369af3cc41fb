"""An append-only file of JSON objects, one a line, each fsynced before ``append`` returns.

A kill can leave a last line that is not complete. Readers leave it out; the next writer cuts it off.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from tightrope.config.errors import TightropeError
from tightrope.storage.files import cannot_write, sync_folder, write_all


def encode_line(entry: dict[str, Any]) -> bytes:
    return (json.dumps(entry, ensure_ascii=True, allow_nan=True) + "\n").encode()


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every complete line. Raises TightropeError for a broken line that is not the last."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    last = max((number for number, line in enumerate(lines, start=1) if line.strip()), default=0)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        entry = parse_line(line)
        if entry is not None:
            yield number, entry
        elif number != last:
            raise TightropeError(
                "not a JSON object",
                where=f"{path}:{number}",
                found=repr(line[:40].decode(errors="replace")),
                fix="remove this line",
            )


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object of a line, or None for a line that is not one."""
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return None
    return cast(dict[str, Any], entry) if isinstance(entry, dict) else None


class LineLog:
    """One writer's handle. Appends of several processes do not mix: each takes a lock on the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        is_new = not path.exists()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            if is_new:
                sync_folder(path.parent)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._repair()
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except OSError as error:
            self.close()
            raise cannot_write(path, error) from error

    def append(self, entry: dict[str, Any]) -> None:
        """Write one line. Either all of it is on disk afterwards, or TightropeError is raised and nothing is."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        size = os.fstat(self._descriptor).st_size
        try:
            write_all(self._descriptor, encode_line(entry))
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, size)
            raise cannot_write(self.path, error) from error
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _repair(self) -> None:
        """Cut off a torn last line, or end it when only its newline is missing."""
        content = self.path.read_bytes()
        if not content:
            return
        body = content.removesuffix(b"\n")
        start = body.rfind(b"\n") + 1
        if parse_line(body[start:]) is None and body[start:].strip():
            os.ftruncate(self._descriptor, start)
        elif content == body:
            write_all(self._descriptor, b"\n")
        os.fsync(self._descriptor)
