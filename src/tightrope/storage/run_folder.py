"""A run folder and who may write to it.

    resolved.yaml  the whole configuration      events.jsonl  every change and who made it
    env.json       versions and machine         checkpoints/  iter-000120/...
    run.db         numbers and samples          export/       the finished model
    LOCK           held by the process that writes
    profile.json   where its time went, when that was asked for

The lock belongs to the open file (``flock``): the kernel drops it when the process ends, however it ends. A child
forked without exec shares it and must not outlive the run.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from typing_extensions import Self

from tightrope.config.errors import TightropeError
from tightrope.storage.files import cannot_write, replace_file, sync_folder, write_all

PACKAGES = ("tightrope", "torch", "transformers", "tokenizers", "safetensors", "peft", "numpy")
MARKS = ("resolved.yaml", "run.db", "events.jsonl")
WRITTEN = (*MARKS, "run.db-wal", "run.db-shm", "env.json", "LOCK")


class RunFolder:
    """Paths of a run. ``create`` and ``resume`` also take the lock; ``read`` does not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path) -> Self:
        """A new run. Raises TightropeError when the folder already holds one or is in use."""
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TightropeError(
                "the output folder cannot be made", where=str(path), found=error.strerror, fix="choose another output"
            ) from error
        folder.lock()
        if holds_run(path):
            folder.close()
            raise TightropeError(
                "this folder already holds a run",
                where=str(path),
                fix=f"continue it with `tightrope resume {path}`, or choose another output",
            )
        folder.checkpoints.mkdir(exist_ok=True)
        sync_folder(path)
        return folder

    @classmethod
    def resume(cls, path: Path) -> Self:
        """An existing run, to go on with it."""
        folder = cls.read(path)
        folder.lock()
        folder.checkpoints.mkdir(exist_ok=True)
        return folder

    @classmethod
    def read(cls, path: Path) -> Self:
        """An existing run, to look at it, also while it is running."""
        if not holds_run(path):
            raise TightropeError(
                "this is no run folder",
                where=str(path),
                expected="a folder with " + " or ".join(MARKS),
                fix="give the `output` folder of a run",
            )
        return cls(path)

    @property
    def resolved(self) -> Path:
        return self.path / "resolved.yaml"

    @property
    def environment(self) -> Path:
        return self.path / "env.json"

    @property
    def database(self) -> Path:
        return self.path / "run.db"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @property
    def profile(self) -> Path:
        return self.path / "profile.json"

    def lock(self) -> None:
        """Raises TightropeError naming the process that holds the folder."""
        try:
            descriptor = os.open(self.path / "LOCK", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise cannot_write(self.path / "LOCK", error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise TightropeError(
                f"this run is in use by process {holder}",
                where=str(self.path),
                fix="wait for it, stop it, or choose another output",
            ) from error
        os.ftruncate(descriptor, 0)
        write_all(descriptor, f"{os.getpid()}\n".encode())
        self._lock = descriptor

    def write_environment(self, extra: Mapping[str, Any] | None = None) -> None:
        """``env.json``: versions and machine, plus e.g. device and dtype. No variables of the environment."""
        content = {**environment(), **(extra or {})}
        replace_file(self.environment, (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())

    def discard_unstarted(self) -> None:
        """Take back a run without any checkpoint, so that the corrected config can use the same output folder.

        Only what a run writes is removed; anything else, and the folder around it, stays.
        """
        if any(self.checkpoints.glob("iter-*")):
            return
        for name in WRITTEN:
            (self.path / name).unlink(missing_ok=True)
        for folder in (self.checkpoints, self.path):
            if not any(folder.iterdir()):
                folder.rmdir()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def holds_run(path: Path) -> bool:
    return any((path / mark).exists() for mark in MARKS) or any(path.glob("checkpoints/iter-*"))


def environment() -> dict[str, Any]:
    """What may change numbers between two machines."""
    return {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": package_versions(),
    }


def package_versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
