"""Run generated code on one input, away from everything: a pool of warm children on the best rung that holds here.

Nothing is run before a self-test has tried to break out on the rung and failed at each attempt.
"""

from __future__ import annotations

import json
import os
import queue
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import Self

from tightrope.scoring.code.errors import SandboxUnavailable
from tightrope.scoring.code.interpreter import find_interpreter
from tightrope.scoring.code.rungs import FIX, Confinement, Limits, Rung, confinement
from tightrope.scoring.code.selftest import PROBES, passes
from tightrope.scoring.code.worker import NotStarted, Outcome, Worker, explained

LADDER: tuple[Rung, ...] = ("bubblewrap", "landlock")
ATTEMPTS = 3
"""Children that may vanish before they begin with one and the same job."""
WARM_SECONDS = 60.0


@dataclass(frozen=True)
class Job:
    """One call: ``entry_point`` of ``code`` with JSON arguments. No expected value, no other input."""

    code: str
    entry_point: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_line(self) -> bytes:
        content = {"code": self.code, "entry_point": self.entry_point, "args": list(self.args)}
        return json.dumps({**content, "kwargs": dict(self.kwargs)}, allow_nan=False).encode() + b"\n"


@dataclass(frozen=True)
class SandboxFacts:
    """What the self-test found. ``child`` are the child's own facts, ``refused`` the rungs above with their reasons."""

    rung: Rung
    child: Mapping[str, Any]
    probes: tuple[str, ...]
    refused: Mapping[str, str]
    seconds: float


class Sandbox:
    """Thread-safe. ``parallel`` children work at a time and as many wait for a job. Close it, or use ``with``.

    A child dies with the thread that started it (PR_SET_PDEATHSIG), so one thread that lives as long as the pool
    starts them all.
    """

    def __init__(self, setting: Confinement, facts: SandboxFacts, parallel: int, seconds: float) -> None:
        self.facts = facts
        self._setting = setting
        self._seconds = seconds
        self._callers = ThreadPoolExecutor(parallel, thread_name_prefix="sandbox")
        self._wanted = threading.Semaphore(parallel if setting.warm else 0)
        self._children: queue.SimpleQueue[Worker | OSError] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._starter = threading.Thread(target=self._start_children, name="sandbox starter", daemon=True)
        self._starter.start()

    @classmethod
    def open(
        cls,
        rungs: Sequence[Rung] = LADDER,
        limits: Limits | None = None,
        seconds: float = 6.0,
        parallel: int | None = None,
        command: Sequence[str] = (),
    ) -> Self:
        """The first of ``rungs`` whose self-test passes. ``seconds`` is the wall-clock time of one call.

        Raises SandboxUnavailable, naming each rung's reason, when none does.
        """
        limits, interpreter = limits or Limits(), find_interpreter()
        refused: dict[str, str] = {}
        for rung in rungs:
            begin = time.monotonic()
            try:
                setting = confinement(rung, interpreter, limits, command)
                child = tried(setting)
            except SandboxUnavailable as error:
                refused[rung] = str(error)
                continue
            facts = SandboxFacts(rung, child, tuple(PROBES), refused, round(time.monotonic() - begin, 3))
            return cls(setting, facts, parallel or max(1, len(os.sched_getaffinity(0))), seconds)
        raise SandboxUnavailable(
            "generated code cannot be run safely on this machine, so it is not run",
            found="; ".join(f"{rung}: {reason}" for rung, reason in refused.items()),
            fix=FIX,
        )

    def run(self, job: Job) -> Outcome:
        """Raises SandboxUnavailable when the machinery fails; what the code does wrong is an Outcome."""
        line = job.to_line()
        for _ in range(ATTEMPTS):
            try:
                return self._child().run(line, self._seconds)
            except NotStarted as error:
                reason = str(error)
        raise SandboxUnavailable(f"{ATTEMPTS} children of the sandbox were gone before they began", found=reason)

    def run_all(self, jobs: Sequence[Job]) -> list[Outcome]:
        """In the order of ``jobs``, several at a time."""
        return list(self._callers.map(self.run, jobs))

    def _child(self) -> Worker:
        if self._closed.is_set():
            raise SandboxUnavailable("the sandbox was closed")
        self._wanted.release()
        try:
            child = self._children.get(timeout=WARM_SECONDS)
        except queue.Empty as error:
            raise SandboxUnavailable("no child of the sandbox could be started in time") from error
        if isinstance(child, OSError):
            raise SandboxUnavailable("a child of the sandbox could not be started", found=str(child)) from child
        return child

    def _start_children(self) -> None:
        while True:
            self._wanted.acquire()
            if self._closed.is_set():
                return
            try:
                self._children.put(Worker(self._setting))
            except OSError as error:
                self._children.put(error)

    def close(self) -> None:
        """Ends every child."""
        self._closed.set()
        self._wanted.release()
        self._callers.shutdown(cancel_futures=True)
        self._starter.join()
        while not self._children.empty():
            child = self._children.get()
            if isinstance(child, Worker):
                child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def tried(setting: Confinement) -> dict[str, Any]:
    """The child's facts, once every probe has been turned away. Raises SandboxUnavailable."""
    try:
        first = Worker(setting)
    except OSError as error:
        raise SandboxUnavailable("the sandbox did not start", found=str(error)) from error
    try:
        facts = first.ready()
    except SandboxUnavailable as error:
        raise SandboxUnavailable(error.what, found=f"{error.found} {explained(setting)}") from error
    finally:
        first.kill()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as secret:
        Path(secret.name).chmod(0o644)
        secret.write("secret")
        secret.flush()
        for name, code in PROBES.items():
            job = Job(code, "probe", [secret.name, os.getpid()])
            try:
                outcome = Worker(setting).run(job.to_line(), 10.0)
            except NotStarted as error:
                raise SandboxUnavailable(f"self-test {name}: the child was gone", found=str(error)) from error
            if not passes(name, outcome):
                raise SandboxUnavailable(
                    f"self-test {name}: the sandbox does not hold",
                    found=f"{outcome.kind} {outcome.detail} {outcome.value}",
                )
    return facts
