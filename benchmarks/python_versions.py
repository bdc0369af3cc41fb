"""Which Pythons does it work with? Every interpreter found here, in an environment of its own: install, then tests.

python -m benchmarks.python_versions [--all] [PYTHON ...]

Without names: the interpreters of pyenv and of PATH within the range of pyproject.toml. ``constraints.txt`` has lines
of its own for old versions. Tests: units and equations; ``--all`` takes everything but the slow ones. Where the index
has no CPU build of torch for a version, its CUDA build is installed: gigabytes, taken away again after the tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
SHORT = ("tests/unit", "tests/maths")
COUNTS = re.compile(r"\d+ (?:passed|failed|errors?|skipped)")


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--all"]
    tests = ("tests",) if "--all" in sys.argv else SHORT
    print(f"{'python':<10} {'install':<8} tests")
    results = [row(python, tests) for python in words or found()]
    return 0 if results and all(results) else 1


def found() -> list[str]:
    """One interpreter a version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    pythons: list[str] = []
    for version in VERSIONS:
        installed = sorted(str(path) for path in pyenv.glob(f"versions/{version}.*/bin/python"))
        on_path = shutil.which(f"python{version}")
        pythons += (installed or [on_path] if on_path else installed)[-1:]
    return pythons


def row(python: str, tests: tuple[str, ...]) -> bool:
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([python, "-m", "venv", name], check=True)
        binaries = Path(name) / "bin"
        install = [binaries / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", f"{ROOT}[demo,dev]"]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{version:<10} {'FAILED':<8} {done.stderr.strip().splitlines()[-1]}", flush=True)
            return False
        words = [binaries / "python", "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *tests]
        # The options of pyproject.toml say -q, which leaves out the counts where it stands twice only.
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        counts = COUNTS.findall(done.stdout.strip().splitlines()[-1])
        print(f"{version:<10} {'ok':<8} {', '.join(counts) or f'exit code {done.returncode}'}", flush=True)
        return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
