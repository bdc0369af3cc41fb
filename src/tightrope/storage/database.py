"""``run.db``: one SQLite file for numbers and samples, in WAL mode so that pages can read while a run writes.

``synchronous = FULL``: a committed row is on disk, so a checkpoint never knows of a step whose row is lost.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tightrope.config.errors import TightropeError

BUSY_SECONDS = 10.0


class Database:
    """A connection that several threads of one process may share.

    ``tables`` are the statements that create what the owner needs; ``name`` and ``version`` say in which form it
    was written. A file of another version is refused.
    """

    def __init__(self, path: Path, name: str, version: int, tables: str, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.RLock()
        try:
            self._connection = connect_to_read(path) if read_only else connect(path)
            if not read_only:
                self._connection.executescript(
                    "CREATE TABLE IF NOT EXISTS schema (name TEXT PRIMARY KEY, version INTEGER);"
                )
                self._connection.executescript(tables)
                self._connection.execute("INSERT OR IGNORE INTO schema VALUES (?, ?)", (name, version))
            found = self._connection.execute("SELECT version FROM schema WHERE name = ?", (name,)).fetchone()
        except sqlite3.Error as error:
            raise database_error(path, error) from error
        if found is None:
            self.close()
            raise TightropeError(f"this run holds no {name}", where=str(path))
        if found[0] != version:
            self.close()
            raise TightropeError(
                f"the {name} were written by another version of Tightrope",
                where=str(path),
                found=f"schema {found[0]}",
                expected=f"schema {version}",
                fix="open the run with the version that wrote it",
            )

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """All statements inside are written together or not at all."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise database_error(self.path, error) from error
            except BaseException:
                self._roll_back()
                raise

    def select(self, query: str, *values: object) -> list[tuple[object, ...]]:
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise database_error(self.path, error) from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Never creates or changes the file. A folder that cannot be written to has no live run: read it as it is."""
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        connection = sqlite3.connect(f"{address}&immutable=1", uri=True, check_same_thread=False)
    return connection


def database_error(path: Path, error: sqlite3.Error) -> TightropeError:
    return TightropeError(f"the run database cannot be used: {error}", where=str(path))
