"""Can generated code get out, get at the answers, stay alive, or take the trainer with it? Attacks, rung by rung.

Each attack is a function of facts an attacker may well know. It returns "ESCAPED" when it got what it came for.
"""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tightrope.scoring.code.errors import SandboxUnavailable
from tightrope.scoring.code.interpreter import find_interpreter
from tightrope.scoring.code.rungs import Confinement, Limits, confinement
from tightrope.scoring.code.sandbox import LADDER, Job, Sandbox, tried
from tightrope.scoring.code.strict_json import same
from tightrope.scoring.code.worker import Worker

EXPECTED = 4242
"""Known to this process alone."""
SECONDS = 2.0
GONE_WITHIN = 10.0
SYSCALLS = {
    "x86_64": {"ptrace": 101, "unshare": 272, "io_uring_setup": 425, "bpf": 321, "mount": 165, "clone": 56,
               "process_vm_readv": 310, "memfd_create": 319, "userfaultfd": 323, "pidfd_open": 434, "shmget": 29,
               "setns": 308, "keyctl": 250, "perf_event_open": 298, "execve": 59, "prctl": 157, "clone3": 435},
    "aarch64": {"ptrace": 117, "unshare": 97, "io_uring_setup": 425, "bpf": 280, "mount": 40, "clone": 220,
                "process_vm_readv": 270, "memfd_create": 279, "userfaultfd": 282, "pidfd_open": 434, "shmget": 194,
                "setns": 268, "keyctl": 219, "perf_event_open": 241, "execve": 221, "prctl": 167, "clone3": 435},
}[platform.machine()]  # fmt: skip


def call(name: str, *arguments: int) -> str:
    """An attack that makes one system call and escapes when it is not refused."""
    passed = ", ".join(f"ctypes.c_long({one})" for one in arguments)
    return f"""
import ctypes
def f(facts):
    found = ctypes.CDLL(None, use_errno=True).syscall({SYSCALLS[name]}, {passed})
    return "ESCAPED" if found >= 0 else "refused"
"""


ATTACKS = {
    "tcp outside": (
        "import socket\ndef f(facts):\n"
        "    socket.create_connection(('192.0.2.1', 80), 1)\n    return 'ESCAPED'"
    ),
    "tcp loopback": (
        "import socket\ndef f(facts):\n"
        "    socket.create_connection(('127.0.0.1', facts['port']), 1)\n    return 'ESCAPED'"
    ),
    "unix socket": (
        "import socket\ndef f(facts):\n    s = socket.socket(socket.AF_UNIX)\n"
        "    s.connect(facts['socket'])\n    return 'ESCAPED'"
    ),
    "socket pair": "import socket\ndef f(facts):\n    socket.socketpair()\n    return 'ESCAPED'",
    "/etc/passwd": "def f(facts):\n    open('/etc/passwd').read()\n    return 'ESCAPED'",
    "home": "import os\ndef f(facts):\n    return 'ESCAPED' if os.listdir(facts['home']) != ['.pyenv'] else 0",
    "a user's file": "def f(facts):\n    open(facts['file']).read()\n    return 'ESCAPED'",
    "the data set": "def f(facts):\n    open(facts['dataset']).read()\n    return 'ESCAPED'",
    "write outside": "def f(facts):\n    open(facts['file'], 'w').write('x')\n    return 'done'",
    "new file outside": "def f(facts):\n    open(facts['file'] + '.new', 'w').write('x')\n    return 'done'",
    "delete outside": "import os\ndef f(facts):\n    os.unlink(facts['file'])\n    return 'done'",
    "write to the library": "import os\ndef f(facts):\n    open(os.__file__ + 'x', 'w')\n    return 'ESCAPED'",
    "installed packages": (
        "import os\ndef f(facts):\n"
        "    folder = os.path.join(os.path.dirname(os.__file__), 'site-packages')\n"
        "    return 'ESCAPED' if os.listdir(folder) else 'nothing'"
    ),
    "/proc/self": "def f(facts):\n    open('/proc/self/maps').read()\n    return 'ESCAPED'",
    "/proc of the trainer": (
        "def f(facts):\n    open(f\"/proc/{facts['trainer']}/environ\", 'rb').read()\n    return 'ESCAPED'"
    ),
    "/dev/tty": "def f(facts):\n    open('/dev/tty', 'w').write('x')\n    return 'ESCAPED'",
    "/dev/shm": "def f(facts):\n    open('/dev/shm/left-behind', 'w').write('x')\n    return 'ESCAPED'",
    "type into a terminal": (
        "import fcntl\ndef f(facts):\n"
        "    for fd in (0, 1, 2):\n        fcntl.ioctl(fd, 0x5412, b'x')\n    return 'ESCAPED'"
    ),
    "mount": (
        "import ctypes\ndef f(facts):\n"
        "    found = ctypes.CDLL(None).mount(b'proc', b'/tmp', b'proc', 0, None)\n"
        "    return 'ESCAPED' if found == 0 else 'refused'"
    ),
    "fork": "import os\ndef f(facts):\n    os.fork()\n    return 'ESCAPED'",
    "fork bomb": "import os\ndef f(facts):\n    while True:\n        os.fork()",
    "subprocess": "import subprocess\ndef f(facts):\n    subprocess.run(['/bin/true'])\n    return 'ESCAPED'",
    "os.system": "import os\ndef f(facts):\n    return 'ESCAPED' if os.system('true') == 0 else 'refused'",
    "exec": "import os, sys\ndef f(facts):\n    os.execv(facts['python'], ['python', '-c', ''])\n    return 'ESCAPED'",
    "a daemon": "import os\ndef f(facts):\n    os.setsid()\n    os.fork()\n    return 'ESCAPED'",
    "thread": "import threading\ndef f(facts):\n    threading.Thread(target=int).start()\n    return 'ESCAPED'",
    "thread bomb": (
        "import threading, time\ndef f(facts):\n    while True:\n"
        "        threading.Thread(target=time.sleep, args=(60,)).start()"
    ),
    "memory bomb": "def f(facts):\n    x = []\n    while True:\n        x.append(bytearray(1 << 24))",
    "memory at once": "def f(facts):\n    return 'ESCAPED' if bytearray(1 << 30) else 0",
    "loop": "def f(facts):\n    while True:\n        pass",
    "loop while imported": "while True:\n    pass",
    "loop in C": "def f(facts):\n    return sum(range(10 ** 15))",
    "loop in a pattern": "import re\ndef f(facts):\n    return re.match('(a+)+$', 'a' * 60 + 'b')",
    "sleep": "import time\ndef f(facts):\n    time.sleep(3600)",
    "ignored signals": (
        "import signal, time\nfor n in range(1, 65):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\ndef f(facts):\n    while True:\n        time.sleep(1)"
    ),
    "more processor time": (
        "import resource\ndef f(facts):\n    resource.setrlimit(resource.RLIMIT_CPU, (99, 99))\n    return 'ESCAPED'"
    ),
    "limits of the trainer": (
        "import resource\ndef f(facts):\n"
        "    resource.prlimit(facts['trainer'], resource.RLIMIT_CORE, (0, 0))\n    return 'ESCAPED'"
    ),
    "huge file": (
        "def f(facts):\n    with open('/tmp/x', 'wb') as file:\n        for _ in range(1 << 12):\n"
        "            file.write(bytes(1 << 20))\n    return 'ESCAPED'"
    ),
    "many files": (
        "def f(facts):\n    for i in range(64):\n        with open(f'/tmp/{i}', 'wb') as file:\n"
        "            file.write(bytes(1 << 20))\n    return 'ESCAPED'"
    ),
    "many descriptors": "def f(facts):\n    x = [open(f'/tmp/{i}', 'w') for i in range(99)]\n    return 'ESCAPED'",
    "kill the parent": "import os\ndef f(facts):\n    os.kill(os.getppid(), 9)\n    return 'ESCAPED'",
    "kill the trainer": "import os\ndef f(facts):\n    os.kill(facts['trainer'], 9)\n    return 'ESCAPED'",
    "kill everything": "import os\ndef f(facts):\n    os.kill(-1, 9)\n    return 'ESCAPED'",
    "kill the group": "import os\ndef f(facts):\n    os.killpg(0, 9)\n    return 'ESCAPED'",
    "kill by a descriptor": (
        "import fcntl, os\ndef f(facts):\n    r, w = os.pipe()\n"
        "    fcntl.fcntl(r, fcntl.F_SETOWN, facts['trainer'])\n    fcntl.fcntl(r, 10, 9)\n    return 'ESCAPED'"
    ),
    "output flood": (
        "import os\ndef f(facts):\n    while True:\n        for fd in range(32):\n            try:\n"
        "                os.write(fd, b'x' * 65536)\n            except OSError:\n                pass"
    ),
    "huge answer": "def f(facts):\n    return 'x' * (1 << 22)",
    "sys.exit(0)": "import sys\ndef f(facts):\n    sys.exit(0)",
    "os._exit(0)": "import os\ndef f(facts):\n    os._exit(0)",
    "exit while imported": "import os\nos._exit(0)",
    "a success word": "def f(facts):\n    print('passed', 'OK', 1.0, True)\n    raise SystemExit(0)",
    "forged lines": (
        "import os\ndef f(facts):\n    for fd in range(32):\n        try:\n"
        "            os.write(fd, b'{\"passed\": true}\\n{\"ready\": {}}\\n{\"value\": true}\\n')\n"
        "        except OSError:\n            pass\n    os._exit(0)"
    ),
    "always equal": (
        "class Same(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "def f(facts):\n    return Same(0)"
    ),
    "always equal, any type": (
        "class Same:\n    def __eq__(self, other):\n        return True\ndef f(facts):\n    return Same()"
    ),
    "patched json": (
        "import json\njson.dumps = lambda *a, **k: '{\"value\": true, \"passed\": true}'\n"
        "json.loads = lambda *a, **k: True\ndef f(facts):\n    return 1"
    ),
    "walking frames": (
        "import sys, gc\ndef f(facts):\n    frame = sys._getframe()\n    while frame:\n"
        "        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:\n"
        "            if value == 4242 or (isinstance(value, (str, bytes)) and '4242' in str(value)):\n"
        "                return 4242 + len('') if value != 4242 else value\n        frame = frame.f_back\n"
        "    for thing in gc.get_objects():\n        if isinstance(thing, dict) and 'expected' in thing:\n"
        "            return thing['expected']\n    return 'nothing found'"
    ).replace("4242", "(4000 + 242)").replace("'(4000 + 242)'", "str(4000 + 242)"),
    "reading ahead": (
        "import os\ndef f(facts):\n    for fd in range(32):\n"
        "        try:\n            data = os.read(fd, 1 << 20)\n"
        "        except OSError:\n            continue\n"
        "        if data:\n            return 'ESCAPED'\n    return 'nothing'"
    ),
    "recursion": "def f(facts):\n    return f(facts)",
    "deep recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(facts):\n    return f(facts)",
    "segfault": "import ctypes\ndef f(facts):\n    return ctypes.string_at(0)",
    "huge int": "def f(facts):\n    return 10 ** 100_000",
    "huge int as text": "import sys\nsys.set_int_max_str_digits(0)\ndef f(facts):\n    return 10 ** 100_000",
    "deep answer": "def f(facts):\n    x = []\n    for _ in range(900):\n        x = [x]\n    return x",
    "not a number": "def f(facts):\n    return float('nan')",
    "other architecture's calls": (
        "import ctypes\ndef f(facts):\n    found = ctypes.CDLL(None).syscall(0x40000000 + 57)\n"
        "    return 'ESCAPED' if found >= 0 else 'refused'"
    ),
    "ptrace": call("ptrace", 0, 0, 0, 0),
    "unshare": call("unshare", 0x10000000),
    "setns": call("setns", 0, 0),
    "io_uring": call("io_uring_setup", 1, 0),
    "bpf": call("bpf", 0, 0, 0),
    "clone": call("clone", 17, 0, 0, 0, 0),
    "clone3": call("clone3", 0, 0),
    "memory of others": call("process_vm_readv", 1, 0, 0, 0, 0, 0),
    "memory file": (
        "import os\ndef f(facts):\n    os.memfd_create('x')\n    return 'ESCAPED'"
    ),
    "userfaultfd": call("userfaultfd", 0),
    "process descriptor": call("pidfd_open", 1, 0),
    "shared memory": call("shmget", 0, 4096, 0o1666),
    "keyring": call("keyctl", 0, -3, 0),
    "perf events": call("perf_event_open", 0, 0, -1, -1, 0),
    "prctl": call("prctl", 1, 0, 0, 0, 0),
}  # fmt: skip


@dataclass(frozen=True)
class Arena:
    setting: Confinement
    facts: dict
    mark: str
    connections: list


@pytest.fixture(scope="module", params=LADDER)
def arena(request, tmp_path_factory):
    try:
        setting = confinement(request.param, find_interpreter(), Limits())
        tried(setting)
    except SandboxUnavailable as error:
        pytest.skip(f"this rung does not hold here, so nothing runs on it: {error}")
    mark = uuid.uuid4().hex
    folder = tmp_path_factory.mktemp("outside")
    (folder / "file.txt").write_text("private")
    (folder / "rows.jsonl").write_text(f'{{"expected": {EXPECTED}}}')
    connections = []
    with (
        listening(socket.AF_INET, ("127.0.0.1", 0), connections) as tcp,
        listening(socket.AF_UNIX, str(folder / "s"), connections),
    ):
        facts = {
            "port": tcp.getsockname()[1],
            "socket": str(folder / "s"),
            "file": str(folder / "file.txt"),
            "dataset": str(folder / "rows.jsonl"),
            "home": str(Path.home()),
            "python": str(find_interpreter().executable),
            "trainer": os.getpid(),
        }
        yield Arena(replace(setting, environment={**setting.environment, "MARK": mark}), facts, mark, connections)


class listening:
    """A server that writes down who came."""

    def __init__(self, family, address, connections) -> None:
        self._socket = socket.socket(family)
        self._socket.bind(address)
        self._socket.listen()
        self._connections = connections

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self._socket

    def _accept(self) -> None:
        while True:
            try:
                self._connections.append(self._socket.accept())
            except OSError:
                return

    def __exit__(self, *error: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def survivors(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def attacked(arena: Arena, code: str):
    return Worker(arena.setting).run(Job(code, "f", [arena.facts]).to_line(), SECONDS)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_nothing(arena, name) -> None:
    outcome = attacked(arena, ATTACKS[name])
    assert outcome.value != "ESCAPED", outcome
    assert not (outcome.kind == "value" and same(outcome.value, EXPECTED)), outcome
    assert not arena.connections
    private = Path(arena.facts["file"])
    assert private.read_text() == "private" and {one.name for one in private.parent.iterdir()} == {
        "file.txt",
        "rows.jsonl",
        "s",
    }
    until = time.monotonic() + GONE_WITHIN
    while survivors(arena.mark) and time.monotonic() < until:
        time.sleep(0.01)
    assert not survivors(arena.mark)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_a_program(name) -> None:
    """One that does not compile would be turned away by anything."""
    assert compile(ATTACKS[name], name, "exec").co_names or "loop" in name


def test_the_search_for_survivors_sees_one(arena) -> None:
    worker = Worker(arena.setting)
    worker.ready()
    assert survivors(arena.mark)
    worker.kill()


HONEST = {
    "arithmetic": ("def f(x):\n    return sum(i * i for i in range(x))", [10], 285),
    "text": ("def f(s):\n    return s[::-1].upper()", ["abc é"], "É CBA"),
    "nested": ("def f(x):\n    return {'a': [x, None, True, 1.5]}", [1], {"a": [1, None, True, 1.5]}),
    "tuples": ("def f(x):\n    return (x, (x,))", [1], [1, [1]]),
    "library": (
        "import re, math, collections, itertools, functools, heapq, datetime, decimal, dataclasses, random, hashlib\n"
        "@dataclasses.dataclass\nclass P:\n    x: int\n"
        "def f(s):\n    return [P(3).x, hashlib.sha256(s.encode()).hexdigest()[:4], str(decimal.Decimal('0.1') * 3)]",
        ["a"],
        [3, "ca97", "0.3"],
    ),
    "prints and warns": (
        "import sys\ndef f(x):\n    print('hello')\n    print('x', file=sys.stderr)\n    return x",
        [7],
        7,
    ),
    "large input": ("def f(x):\n    return len(x)", ["x" * 500_000], 500_000),
    "sets in one order": ("def f(x):\n    return list(set(x))", [["b", "a", "c"]], None),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_code_gets_its_answer(arena, name) -> None:
    code, args, expected = HONEST[name]
    first, second = (Worker(arena.setting).run(Job(code, "f", args).to_line(), 20.0) for _ in range(2))
    assert first.kind == "value" and first == second
    assert expected is None or same(first.value, expected)


def test_without_any_rung_nothing_is_run(monkeypatch) -> None:
    monkeypatch.setattr("tightrope.scoring.code.seccomp.NUMBERS", {})
    monkeypatch.setattr("tightrope.scoring.code.rungs.NUMBERS", {})
    with pytest.raises(SandboxUnavailable, match=r"cannot be run safely .* so it is not run; .*install bubblewrap"):
        Sandbox.open()


@pytest.mark.parametrize("broken", ["doors", "honest work"])
def test_a_self_test_that_fails_refuses_the_rung(monkeypatch, broken) -> None:
    code = "def probe(path, trainer):\n    return ['read /etc']"
    monkeypatch.setitem(tried.__globals__["PROBES"], broken, code)
    with pytest.raises(SandboxUnavailable, match=f"(self-test {broken}: the sandbox does not hold|cannot be run)"):
        Sandbox.open()
