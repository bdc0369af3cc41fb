"""The program inside the sandbox: shut every door, say so, take one job, answer once.

It is handed to the interpreter as text, imports the standard library only, and knows neither expected values nor other
inputs. ``argv[1]`` is a JSON object, see ``rungs.Confinement``. What it writes, a line each: ``{"ready": ...}``,
``{"started": true}``, then ``{"value": ...}`` or ``{"error": ...}``.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
import types

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
CAPSET = {"x86_64": 126, "aarch64": 91}
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_VERSION = 1
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Landlock ABI -> how many rights over files it knows; all of them are taken away."""
LATEST_FILE_RIGHTS = 16
READ_FILE, READ_DIR = 1 << 2, 1 << 3
ERROR_CHARACTERS = 200
LIBC = ctypes.CDLL(None, use_errno=True)


def require(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def prctl(option: int, value: int, pointer: object = 0) -> None:
    require(LIBC.prctl(option, ctypes.c_ulong(value), pointer, 0, 0), f"prctl {option}")


def private_descriptors() -> tuple[int, int]:
    """Where the job comes from and the answer goes; standard input, output and error lead nowhere."""
    source, sink = os.dup(0), os.dup(1)
    os.dup2(2, 0)
    os.dup2(2, 1)
    os.closerange(sink + 1, 4096)
    return source, sink


def give_up_identity(user: int | None) -> None:
    if os.geteuid() == 0 and user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def give_up_capabilities(machine: str) -> None:
    for capability in range(64):
        LIBC.prctl(
            PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0
        )  # fails for those there are not, or without right
    header, nothing = struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24)
    require(LIBC.syscall(CAPSET[machine], header, nothing), "capset")


def landlock_version() -> int:
    return LIBC.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_VERSION)


def restrict_files(readable: list[str]) -> int:
    """Only ``readable`` may be read, nothing written, no TCP; returns the ABI."""
    version = landlock_version()
    if version < 4:
        raise OSError(f"Landlock ABI 4 is needed, this kernel has {max(version, 0)}")
    rights = (1 << FILE_RIGHTS.get(version, LATEST_FILE_RIGHTS)) - 1
    attributes = struct.pack("=QQQ", rights, 0b11, 0b11)[: 16 if version < 6 else 24]
    rules = require(
        LIBC.syscall(LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock rules"
    )
    for path in readable:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = READ_FILE | READ_DIR if os.path.isdir(path) else READ_FILE
        require(LIBC.syscall(LANDLOCK_ADD_RULE, rules, 1, struct.pack("=Qi", allowed, beneath), 0), f"landlock {path}")
        os.close(beneath)
    require(LIBC.syscall(LANDLOCK_RESTRICT_SELF, rules, 0), "landlock")
    os.close(rules)
    return version


def limit_resources(limits: dict[str, int]) -> None:
    for name, value in (
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_CPU, limits["cpu"]),
        (resource.RLIMIT_FSIZE, limits["file"]),
        (resource.RLIMIT_NOFILE, limits["descriptors"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(name, (value, value))


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def filter_calls(instructions: bytes) -> None:
    program = Program(len(instructions) // 8, instructions)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))


def shut(doors: dict) -> dict:
    give_up_identity(doors["user"])
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of identity, which clears it
    give_up_capabilities(doors["machine"])
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    version = None if doors["readable"] is None else restrict_files(doors["readable"])
    limit_resources(doors["limits"])
    filter_calls(bytes.fromhex(doors["filter"]))
    return {"uid": os.getuid(), "landlock": version, "python": sys.version.split()[0]}


def line_from(source: int) -> bytes:
    pieces = []
    while not pieces or not pieces[-1].endswith(b"\n"):
        piece = os.read(source, 1 << 16)
        if not piece:
            os._exit(0)  # nobody asks any more
        pieces.append(piece)
    return b"".join(pieces)


def write(sink: int, content: dict) -> None:
    data = json.dumps(content, allow_nan=False).encode() + b"\n"
    while data:
        data = data[os.write(sink, data) :]


def outcome(job: dict) -> dict:
    try:
        module = types.ModuleType("response")
        sys.modules["response"] = module
        exec(compile(job["code"], "<response>", "exec"), module.__dict__)
        value = module.__dict__[job["entry_point"]](*job["args"], **job["kwargs"])
        return {"value": json.loads(json.dumps(value, allow_nan=False))}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]}


def main() -> None:
    sys.path[:] = [path for path in sys.path if path]
    source, sink = private_descriptors()
    try:
        facts = shut(json.loads(sys.argv[1]))
    except Exception as error:
        write(sink, {"failed": str(error)})
        os._exit(1)
    write(sink, {"ready": facts})
    job = json.loads(line_from(source))
    os.close(source)
    write(sink, {"started": True})
    write(sink, outcome(job))
    os._exit(0)


if __name__ == "__main__":
    main()
