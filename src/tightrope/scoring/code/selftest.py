"""Does the sandbox hold on this machine, and does honest code still run? Small attempts to break out, each refused.

A probe is a function of (path of a file that all may read, process id of the trainer). It returns the list of what
succeeded and should not have; honest work is wrong when it fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from tightrope.scoring.code.worker import Outcome

OUTSIDE = """
import os, socket, threading, ctypes
def probe(path, trainer):
    broken = []
    def attempt(name, action):
        try:
            action()
            broken.append(name)
        except (OSError, RuntimeError):
            pass
    attempt("read a file of the trainer", lambda: open(path).read())
    attempt("read /proc", lambda: open("/proc/self/status").read())
    attempt("read /etc", lambda: open("/etc/passwd").read())
    attempt("write outside", lambda: open(os.__file__ + ".new", "w"))
    attempt("write at the top", lambda: open("/new", "w"))
    attempt("open a socket", socket.socket)
    attempt("start a process", os.fork)
    attempt("start a program", lambda: os.execv("/bin/true", ["true"]))
    attempt("start a thread", threading.Thread(target=int).start)
    attempt("signal the trainer", lambda: os.kill(trainer, 0))
    return broken
"""
HONEST = """
import collections, math, re
def probe(path, trainer):
    return sorted(collections.Counter(re.findall("[a-z]", "hello")).items()) + [math.gcd(12, 18)]
"""
PROBES: Mapping[str, str] = {
    "doors": OUTSIDE,
    "memory": "def probe(path, trainer):\n    return len(bytearray(1 << 30))",
    "honest work": HONEST,
}


def passes(name: str, outcome: Outcome) -> bool:
    if name == "memory":
        return outcome.kind in ("error", "died")
    return outcome.kind == "value" and outcome.value == (
        [] if name == "doors" else [["e", 1], ["h", 1], ["l", 2], ["o", 1], 6]
    )
