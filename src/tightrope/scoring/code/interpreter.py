"""What of this machine must generated code see to run at all? One interpreter, its standard library, its libraries.

Installed packages are hidden: a data set's answers may lie among them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tightrope.scoring.code.errors import SandboxUnavailable

FLAGS = ("-s", "-S", "-B", "-X", "utf8")
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "HOME": "/", "TMPDIR": "/tmp"}
"""A fixed hash seed: the order of a set, and so a reward, does not change from call to call."""
HIDDEN = ("site-packages", "dist-packages")
TOP = ("/lib", "/lib64", "/usr/lib64")
PROBE = """
import json, os, sys, sysconfig
for name in "ctypes hashlib ssl sqlite3 lzma bz2 zlib decimal uuid readline".split():
    try:
        __import__(name)
    except ImportError:
        pass
files = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if len(line.split(None, 5)) == 6}
print(json.dumps([sysconfig.get_path("stdlib"), sorted(f for f in files if ".so" in f)]))
"""


@dataclass(frozen=True)
class Interpreter:
    """``libraries`` are folders and files outside ``stdlib``; ``hidden`` folders lie inside it."""

    executable: Path
    stdlib: Path
    libraries: tuple[Path, ...]
    hidden: tuple[Path, ...]

    @property
    def search_path(self) -> str:
        return ":".join(sorted({str(p if p.is_dir() else p.parent) for p in self.libraries}))

    @property
    def readable(self) -> list[str]:
        """For rules that can only add: the standard library's entries one by one, without the hidden ones."""
        entries = [entry for entry in sorted(self.stdlib.iterdir()) if entry not in self.hidden]
        return [str(path) for path in (*entries, *self.libraries)]

    @property
    def readable_by_all(self) -> bool:
        """Could another user run it? Every folder above it lets him through."""
        return all(
            parent.stat().st_mode & 0o001
            for place in (self.executable, self.stdlib / "os.py")
            for parent in place.parents
        )


def find_interpreter(executable: str | None = None) -> Interpreter:
    """The interpreter under this one's virtual environment, or the one named. Raises SandboxUnavailable."""
    path = Path(executable or sys._base_executable or sys.executable).resolve()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        done = subprocess.run(
            [path, *FLAGS, "-c", PROBE], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True
        )
        stdlib, mapped = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(
            "the interpreter for generated code does not run", where=str(path), found=str(error)
        ) from error
    stdlib = Path(os.path.realpath(stdlib))
    hidden = tuple(stdlib / name for name in HIDDEN if (stdlib / name).is_dir())
    return Interpreter(path, stdlib, libraries_of([Path(file) for file in mapped], stdlib), hidden)


def libraries_of(files: list[Path], stdlib: Path) -> tuple[Path, ...]:
    """Folders of shared libraries; where such a folder holds the standard library too, its files and their names."""
    found: set[Path] = set()
    for file in files:
        if stdlib in file.parents:
            continue
        if file.parent not in stdlib.parents:
            found.add(file.parent)
            continue
        found.add(file)
        found.update(name for name in file.parent.iterdir() if name.is_symlink() and name.resolve() == file)
    return tuple(sorted(found))
