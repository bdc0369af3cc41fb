"""One child, one job, one answer, and then it is gone with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Any, Literal

from tightrope.scoring.code.errors import SandboxUnavailable
from tightrope.scoring.code.rungs import Confinement
from tightrope.scoring.code.strict_json import NotJson, parsed

READY_SECONDS = 30.0
ANSWER_BYTES = 1 << 20
Kind = Literal["value", "error", "died", "deadline", "flood", "not JSON"]


@dataclass(frozen=True)
class Outcome:
    """What came back: ``value`` where ``kind`` is value, else ``detail`` tells what happened instead."""

    kind: Kind
    value: Any = None
    detail: str = ""


class NotStarted(Exception):
    """The child was gone before it began with the job: nothing is known about the code."""


class Worker:
    """A child that is starting, or waits for its job."""

    def __init__(self, confinement: Confinement) -> None:
        self._process = subprocess.Popen(
            confinement.command,
            env=confinement.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        os.set_blocking(self._output.fileno(), False)
        self._received = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self, seconds: float = READY_SECONDS) -> dict[str, Any]:
        """Facts about the child, once every door is shut. Raises SandboxUnavailable with the reason."""
        line = self._line(time.monotonic() + seconds)
        if isinstance(line, str):
            raise SandboxUnavailable("the sandbox did not start", found=line)
        content = json.loads(line)
        if "ready" not in content:
            raise SandboxUnavailable("the sandbox did not start", found=str(content.get("failed")))
        return content["ready"]

    def run(self, job: bytes, seconds: float) -> Outcome:
        """``job``: one line of JSON. The child is gone when this returns. Raises NotStarted, SandboxUnavailable."""
        try:
            self.ready()
            deadline = time.monotonic() + seconds
            self._send(job, deadline)
            line = self._line(deadline)
            if isinstance(line, str):
                raise NotStarted(line)
            return self._answer(deadline)
        except BrokenPipeError as error:
            raise NotStarted("the child was gone") from error
        finally:
            self.kill()

    def _answer(self, deadline: float) -> Outcome:
        line = self._line(deadline)
        if line == "deadline":
            return Outcome("deadline", detail="no answer in time")
        if line == "flood":
            return Outcome("flood", detail="more than one answer may hold")
        if isinstance(line, str):
            return Outcome("died", detail="it ended without an answer")
        try:
            content = parsed(line)
        except NotJson as error:
            return Outcome("not JSON", detail=str(error))
        if not isinstance(content, dict) or len(content) != 1 or self._received:
            return Outcome("not JSON", detail="not one answer")
        if "value" in content:
            return Outcome("value", content["value"])
        return Outcome("error", detail=str(content.get("error")))

    def _send(self, data: bytes, deadline: float) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._input, selectors.EVENT_WRITE)
            while data and time.monotonic() < deadline:
                if waiting.select(max(0.0, deadline - time.monotonic())):
                    with contextlib.suppress(BlockingIOError):
                        data = data[os.write(self._input.fileno(), data) :]
        if data:
            raise NotStarted("the child did not read its job")

    def _line(self, deadline: float) -> bytes | Literal["deadline", "flood", "ended"]:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._output, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if len(self._received) > ANSWER_BYTES:
                    return "flood"
                left = deadline - time.monotonic()
                if left <= 0 or not waiting.select(left):
                    return "deadline"
                piece = os.read(self._output.fileno(), 1 << 16)
                if not piece:
                    return "ended"
                self._received += piece
        line, self._received = self._received.split(b"\n", 1)
        return line

    def kill(self) -> None:
        """The whole group; with bubblewrap the kernel ends everything in its process namespace."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._input, self._output):
            with contextlib.suppress(OSError):
                pipe.close()


def explained(confinement: Confinement) -> str:
    """What a child that did not start says on standard error."""
    try:
        done = subprocess.run(
            confinement.command, env=confinement.environment, capture_output=True, timeout=READY_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (done.stderr or done.stdout).decode(errors="replace").strip()[-300:]
