"""Runs the tests on one mutant after another, each in a child of a process that has imported and collected everything.

    python -m benchmarks.mutation.warm_tests SOCKET    in the copy of the repository

It is a pytest session whose loop waits for mutants instead of running the tests. For each it forks; the child gives
the changed functions and constants their new code where they stand, so nothing is imported again, and runs the tests
that reach the change until one fails: the quick ones first, and those that failed last for the same function. Where a
decorator, a class or a default of a class is changed, everything is imported afresh, and all tests run.

Asked: one line of JSON {path, text, line}. Answer: [killed, by which test]. Hypothesis draws the same examples each
time and does not shrink: a mutant's fate is no matter of luck.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import platform
import resource
import signal
import socket
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType

import hypothesis
import pytest
import torch

from benchmarks.mutation.code_in_place import change_in_place, skeleton

MATHS = Path("src/tightrope/maths").absolute()
CPU_SECONDS = 20
"""A mutant that loops for ever is killed then."""
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=mutation", "--tb=line")
OURS = ("tightrope", "tests")

BROKEN = "the change could not be made"
Place = tuple[str, int]
"""A function: the file it stands in and its first line."""


class Failures:
    """pytest tells here which test failed."""

    def __init__(self) -> None:
        self.first: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.first is None:
            self.first = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.first is None:
            self.first = report.nodeid


class Server:
    """The loop of the session: reach of each test first, then mutants."""

    def __init__(self, address: str, failures: Failures) -> None:
        self._address, self._failures = address, failures
        self._reached: dict[str, set[Place]] = {}
        self._seconds: dict[str, float] = {}
        self._killers: dict[Place, deque[str]] = defaultdict(lambda: deque(maxlen=3))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        failed, reached = in_child(lambda: self._measure_reach(session.items), cpu_seconds=10 * CPU_SECONDS)
        if failed is not None:
            print(f"the tests fail without any mutant: {failed}", flush=True)
            return True
        self._reached = {test: {(file, line) for file, line in places} for test, (_, places) in reached.items()}
        self._seconds = {test: seconds for test, (seconds, _) in reached.items()}
        gc.collect()
        gc.freeze()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(self._address)
            server.listen()
            print("ready", json.dumps(versions()), flush=True)
            while True:
                connection, _ = server.accept()
                with connection, connection.makefile("rw", encoding="utf-8") as stream:
                    json.dump(self._answer(session.items, **json.loads(stream.readline())), stream)

    def _answer(self, items: Sequence[pytest.Item], path: str, text: str, line: int | None) -> tuple[bool, str]:
        original = Path(path).read_text(encoding="utf-8")
        if skeleton(original) != skeleton(text):
            failed, _ = in_child(lambda: (afresh(Path(path), original, text), None))
            return failed is not None, failed or "all tests pass"
        place = (path, line or 0)
        killers = self._killers[place]
        chosen = [item for item in items if self._reaches(item.nodeid, path, line)]
        chosen.sort(key=lambda item: self._seconds[item.nodeid] * (0.1 if item.nodeid in killers else 1.0))
        failed, _ = in_child(lambda: (self._run_changed(chosen, path, original, text), None))
        if failed is not None and failed not in killers:
            killers.append(failed)
        return failed is not None, failed or f"{len(chosen)} tests pass"

    def _reaches(self, test: str, path: str, line: int | None) -> bool:
        """A test that runs no function of ours may read a constant."""
        if line is None:
            return not self._reached[test] or any(file == path for file, _ in self._reached[test])
        return (path, line) in self._reached[test]

    def _run_changed(self, items: Sequence[pytest.Item], path: str, original: str, text: str) -> str | None:
        module = sys.modules[f"tightrope.maths.{Path(path).stem}"]
        fresh = ModuleType(module.__name__)
        fresh.__dict__.update(__package__=module.__package__, __file__=module.__file__)
        try:
            exec(compile(text, path, "exec"), vars(fresh))
        except Exception as error:
            return f"import: {error!r}"
        try:
            change_in_place(vars(module), vars(fresh), ast.parse(original), ast.parse(text))
        except Exception as error:
            return f"{BROKEN}: {error!r}"
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failures.first is not None:
                return self._failures.first
        return None

    def _measure_reach(self, items: Sequence[pytest.Item]) -> tuple[str | None, dict[str, tuple[float, list[Place]]]]:
        """Seconds of each test, and which functions of ours it runs."""
        reached: dict[str, tuple[float, list[Place]]] = {}
        for item, following in zip(items, [*items[1:], None], strict=True):
            codes: set[CodeType] = set()

            def note(frame: FrameType, event: str, _: object, codes: set[CodeType] = codes) -> None:
                if event == "call":
                    codes.add(frame.f_code)

            begun = time.process_time()
            sys.setprofile(note)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.setprofile(None)
            places = [(code.co_filename, code.co_firstlineno) for code in codes if str(MATHS) in code.co_filename]
            reached[item.nodeid] = (time.process_time() - begun, places)
        return self._failures.first, reached


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__, "hypothesis": hypothesis.__version__}


def in_child(
    work: Callable[[], tuple[str | None, dict | None]], cpu_seconds: int = CPU_SECONDS
) -> tuple[str | None, dict]:
    """What ``work`` gives when it runs in a fork; a child that dies counts as a failure."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        with os.fdopen(writer, "w", encoding="utf-8") as stream:
            json.dump(work(), stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as stream:
        said = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    failed, found = json.loads(said) if status == 0 else (f"exit status {status}", None)
    return failed, found or {}


def afresh(path: Path, original: str, text: str) -> str | None:
    """All tests in a new session, after everything of ours was forgotten."""
    for name, module in list(sys.modules.items()):
        file = str(vars(module).get("__file__"))
        if name.partition(".")[0] in OURS or file.startswith(os.getcwd()):
            del sys.modules[name]
    importlib.invalidate_caches()
    failures = Failures()
    path.write_text(text, encoding="utf-8")
    sys.dont_write_bytecode = True
    try:
        code = pytest.main([*OPTIONS, "-x", *test_files()], plugins=[failures])
    except BaseException as error:
        return f"import: {error!r}"
    finally:
        path.write_text(original, encoding="utf-8")
    return None if code == 0 else failures.first or f"pytest exits with {code}"


def test_files() -> list[str]:
    """Equations first, then the examples in the docstrings, then the list of faults."""
    equations, faults = Path("tests/maths").glob("test_*.py"), Path("tests/faults").glob("test_maths_*.py")
    return [str(path) for paths in (equations, MATHS.glob("*.py"), faults) for path in sorted(paths)]


def main() -> int:
    hypothesis.settings.register_profile(
        "mutation",
        derandomize=True,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    )
    failures = Failures()
    return int(pytest.main([*OPTIONS, "-s", *test_files()], plugins=[failures, Server(sys.argv[1], failures)]))


if __name__ == "__main__":
    sys.exit(main())
