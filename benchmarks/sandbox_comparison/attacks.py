"""Hostile programs, the same for each engine. Each is a function ``f(facts)``; what it got is seen from outside.

A ``passes`` attack wants to be called right. The others leave a mark: a file, a connection, a process that is dead or
lives on, an engine that does not come back or is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Seen = Literal["passes", "file", "connection", "victim dead", "survivor", "hangs", "engine gone"]


@dataclass(frozen=True)
class Attack:
    """``about_judging``: meaningless for an engine that gives no verdict. ``expected``: fact that names the value, or
    None for a secret that the program is not given."""

    what: str
    code: str
    seen: Seen
    expected: str | None = None
    about_judging: bool = False


CONTROL = Attack("control: an honest program passes", "def f(facts):\n    return facts['number'] + 1", "passes", "next")

FRAMES = """
import re, sys
def f(facts):
    frame = sys._getframe()
    while frame:
        for thing in [*frame.f_locals.values(), *frame.f_code.co_consts]:
            if isinstance(thing, (str, list, tuple)):
                found = re.search("secret-[0-9a-f]{12}", str(thing))
                if found:
                    return found.group()
        frame = frame.f_back
"""

ATTACKS = (
    Attack(
        "an object that equals everything passes",
        "class Same:\n    def __eq__(self, other):\n        return True\ndef f(facts):\n    return Same()",
        "passes",
        about_judging=True,
    ),
    Attack("the expected value is read from frames", FRAMES, "passes", about_judging=True),
    Attack("reads /etc/passwd", "def f(facts):\n    return open('/etc/passwd').readline()", "passes", "passwd"),
    Attack("reads a file of the user", "def f(facts):\n    return open(facts['file']).read()", "passes", "content"),
    Attack("writes a file of the user", "def f(facts):\n    open(facts['mark'], 'w').write('x')", "file"),
    Attack(
        "connects to a local service",
        "import socket\ndef f(facts):\n    socket.create_connection(('127.0.0.1', facts['port']), 2)",
        "connection",
    ),
    Attack(
        "starts a program",
        "import posix\ndef f(facts):\n    posix.posix_spawn(facts['touch'], ['touch', facts['mark']], {})",
        "file",
    ),
    Attack(
        "leaves a process behind",
        "import posix\ndef f(facts):\n    posix.posix_spawn(facts['sleep'], ['sleep', '30'], {'MARK': facts['id']})",
        "survivor",
    ),
    Attack(
        "kills another process of the user",
        "import posix\ndef f(facts):\n    posix.kill(facts['victim'], 9)",
        "victim dead",
    ),
    Attack(
        "takes 6 GiB of memory within 3 s",
        "def f(facts):\n    return len(bytearray(facts['bytes']))",
        "passes",
        "bytes",
    ),
    Attack("sleeps: the engine does not come back", "import time\ndef f(facts):\n    time.sleep(600)", "hangs"),
    Attack("loops in C: the engine does not come back", "def f(facts):\n    return sum(range(10 ** 13))", "hangs"),
    Attack(
        "a segmentation fault takes the engine along",
        "import ctypes\ndef f(facts):\n    ctypes.string_at(0)",
        "engine gone",
    ),
)  # fmt: skip
