"""How bytes become durable: written completely, fsynced, renamed into place, folder fsynced.

All writing of the storage package except SQLite's goes through these functions, so that a test can make each call
fail in turn.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tightrope.config.errors import TightropeError

BLOCK_BYTES = 1 << 20


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Repeat ``os.write`` until everything is written; a write that makes no progress is an error."""
    view = memoryview(data).cast("B")
    while len(view):
        written = os.write(descriptor, view[: 16 * BLOCK_BYTES])
        if written <= 0:
            raise OSError(errno.EIO, "write made no progress")
        view = view[written:]


def write_new_file(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[str, int]:
    """Write and fsync a file that must not exist; returns its sha256 and size."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for chunk in chunks:
            digest.update(chunk)
            size += memoryview(chunk).nbytes
            write_all(descriptor, chunk)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return digest.hexdigest(), size


def sync_folder(path: Path) -> None:
    """Make the names inside a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Put new content at ``path`` at once: a reader sees the old file or the new one, never a part.

    Raises TightropeError where the folder does not take it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.unlink(missing_ok=True)
        write_new_file(beside, [data])
        os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # the folder may be gone, which is the error already at hand
            beside.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> TightropeError:
    return TightropeError("this file cannot be written", where=str(path), found=error.strerror or str(error))


def sha256_of(path: Path) -> tuple[str, int]:
    """sha256 and size of a file as it is on disk."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return digest.hexdigest(), size


def free_bytes(path: Path) -> int:
    """Bytes an unprivileged process may still write to the file system of ``path``."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def remove_tree(path: Path) -> None:
    """Remove a folder and all it holds; one that is not there is fine."""
    if path.exists():
        shutil.rmtree(path)


def disk_full(path: Path, needed: int, free: int) -> OSError:
    mib = 1 << 20
    return OSError(errno.ENOSPC, f"{needed / mib:.1f} MiB are needed, {free / mib:.1f} MiB are free", str(path))
