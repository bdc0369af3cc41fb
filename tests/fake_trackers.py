"""Trackers that go wrong in every way, as a person's own ``module:function``."""

from __future__ import annotations

import json
import sys
import threading

STATE = {"log": 0}


class Tracker:
    """Writes down what it is told."""

    def __init__(self, run):
        self.path = run.folder / "told.jsonl"
        run.remember_id(run.known_id or "first")

    def log(self, step, metrics):
        self._write({"step": step, "metrics": dict(metrics)})

    def table(self, step, name, rows):
        self._write({"step": step, "table": name, "rows": [dict(row) for row in rows]})

    def close(self):
        self._write({"closed": True})

    def _write(self, line):
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class RaisesAtLog(Tracker):
    def log(self, step, metrics):
        raise ConnectionError("the service is offline")


class Leaves(Tracker):
    def log(self, step, metrics):
        sys.exit(3)


class RaisesAtClose(Tracker):
    def close(self):
        raise OSError("cannot upload")


class Hangs(Tracker):
    def log(self, step, metrics):
        threading.Event().wait()


class HangsAtClose(Tracker):
    def close(self):
        threading.Event().wait()


def raises_at_start(run):
    raise RuntimeError("no login")


def hangs_at_start(run):
    threading.Event().wait()
