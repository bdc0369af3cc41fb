"""Starts ``warm_tests`` in the environment of the tests and asks it about mutants."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.mutation.result import ROOT

TESTS_PYTHON = Path(os.environ.get("TESTS_PYTHON", ROOT / ".venv" / "bin" / "python"))
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}


class WarmTests:
    """``versions``: what the tests run with."""

    def __init__(self, address: str, versions: dict[str, str]) -> None:
        self._address = address
        self.versions = versions

    def ask(self, path: Path, text: str, line: int | None) -> tuple[bool, str]:
        """(whether a test fails when ``path`` holds ``text``, which one); ``line`` is where its function starts."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._address)
            with connection.makefile("rw", encoding="utf-8") as stream:
                print(json.dumps({"path": str(path), "text": text, "line": line}), file=stream, flush=True)
                killed, by = json.loads(stream.read())
        return killed, by


@contextmanager
def warm_tests(copy: Path) -> Iterator[WarmTests]:
    """Of the copy of the repository. SystemExit when they do not pass there."""
    address = f"/tmp/tightrope-mutants-{os.getpid()}"
    python_path = os.pathsep.join(map(str, (copy / "src", copy, ROOT)))
    environment = os.environ | QUIET | {"PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": ""}
    command = [str(TESTS_PYTHON), "-m", "benchmarks.mutation.warm_tests", address]
    with subprocess.Popen(command, cwd=copy, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for said in process.stdout:
                if said.startswith("ready "):
                    yield WarmTests(address, json.loads(said.removeprefix("ready ")))
                    break
                print(said, end="", file=sys.stderr)
            else:
                raise SystemExit("the tests do not run")
        finally:
            process.terminate()
            Path(address).unlink(missing_ok=True)
