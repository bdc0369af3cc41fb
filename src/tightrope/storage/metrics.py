"""The numbers of a run: one row a finished step and stage, in the order of the steps, each exactly once.

A run has a training stage (``ppo``) and may have probes (``ppo/probe``); each has a step axis of its own. A store is
a ``Tracker``. After a resume the rows beyond the checkpoint are cut, because those steps run again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tightrope.config.errors import TightropeError
from tightrope.records import StepRecord
from tightrope.storage.database import Database

SCHEMA = 1
TABLES = """
CREATE TABLE IF NOT EXISTS steps (
    number INTEGER PRIMARY KEY, stage TEXT NOT NULL, step INTEGER NOT NULL, attempt INTEGER NOT NULL,
    record TEXT NOT NULL, UNIQUE (stage, step));
CREATE TABLE IF NOT EXISTS summaries (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class MetricStore:
    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._database = Database(path, "metrics", SCHEMA, TABLES, read_only=read_only)

    def write(self, record: StepRecord) -> None:
        """Add a step. Raises TightropeError for a step at or before the last one of its stage: the axis only grows."""
        with self._database.transaction() as connection:
            last = connection.execute("SELECT max(step) FROM steps WHERE stage = ?", (record.stage,)).fetchone()[0]
            if last is not None and record.step <= last:
                raise TightropeError(
                    f"{record.stage} step {record.step} cannot be logged after step {last}",
                    where=str(self._database.path),
                    fix="cut the rows after the resumed checkpoint first",
                )
            row = (record.stage, record.step, record.attempt, record.to_json())
            connection.execute("INSERT INTO steps (stage, step, attempt, record) VALUES (?, ?, ?, ?)", row)

    def rows(self, stage: str | None = None, after: int = -1) -> list[StepRecord]:
        """Steps beyond ``after`` of one stage, or of all, in the order in which they were written."""
        query = "SELECT record FROM steps WHERE step > ?1 AND (?2 IS NULL OR stage = ?2) ORDER BY number"
        return [self._parse(row[0]) for row in self._database.select(query, after, stage)]

    def latest(self, stage: str | None = None) -> StepRecord | None:
        query = "SELECT record FROM steps WHERE ?1 IS NULL OR stage = ?1 ORDER BY number DESC LIMIT 1"
        found = self._database.select(query, stage)
        return self._parse(found[0][0]) if found else None

    def latest_of_each(self) -> dict[str, StepRecord]:
        """The newest record of every stage, by its name; a long run's others are not read."""
        query = "SELECT record FROM steps WHERE number IN (SELECT max(number) FROM steps GROUP BY stage)"
        records = [self._parse(row[0]) for row in self._database.select(query)]
        return {record.stage: record for record in records}

    def cut_after(self, step: int) -> int:
        """Forget every row beyond ``step``, the last step the resumed state has finished (a checkpoint taken when
        entering step n: n - 1); returns how many there were.
        """
        with self._database.transaction() as connection:
            return connection.execute("DELETE FROM steps WHERE step > ?", (step,)).rowcount

    def write_summary(self, key: str, value: Any) -> None:
        """Keep one JSON value for the whole run, e.g. the self-test's numbers; a second one replaces the first."""
        text = json.dumps(value, sort_keys=True, allow_nan=True)
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO summaries VALUES (?, ?)", (key, text))

    def summaries(self) -> dict[str, Any]:
        found = self._database.select("SELECT key, value FROM summaries ORDER BY key")
        return {str(key): json.loads(str(value)) for key, value in found}

    def close(self) -> None:
        self._database.close()

    def _parse(self, text: object) -> StepRecord:
        try:
            return StepRecord.from_json(str(text))
        except (ValueError, TypeError, AttributeError) as error:
            raise TightropeError(str(error), where=str(self._database.path)) from error
