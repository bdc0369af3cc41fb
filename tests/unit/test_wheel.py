"""Do wheel and sdist hold what a person installs and a packager builds from, and nothing else?"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/tightrope"
TRACKED = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "constraints.txt")
BUILD = """
import os, sys
from setuptools import build_meta
os.chdir(sys.argv[1])
print(build_meta.build_sdist(sys.argv[2]) if sys.argv[3] == "sdist" else build_meta.build_wheel(sys.argv[2]))
"""


def built(kind: str, source: Path, to: Path) -> Path:
    """The file that ``pip wheel`` would make; the build backend of the test's own environment needs no network."""
    to.mkdir(exist_ok=True)
    words = [sys.executable, "-c", BUILD, source, to, kind]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return to / done.stdout.splitlines()[-1]


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_package_and_the_sdist_gives_the_same_wheel(tmp_path):
    sdist = built("sdist", copy_of_the_repository(tmp_path / "repository"), tmp_path / "dist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    names = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert {*TRACKED, "tests/tiny.py", "tests/maths/golden.json", "docs/build.py"} <= names
    assert not [name for name in names if name.endswith(".pyc") or "__pycache__" in name or ".venv" in name]

    ours = contents(built("wheel", tmp_path / "repository", tmp_path / "ours"))
    package = {name.removeprefix("tightrope/") for name in ours if name.startswith("tightrope/")}
    here = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*") if path.is_file()}
    assert package == {name for name in here if "__pycache__" not in name}
    assert "py.typed" in package
    others = {name.split("/", 1)[1] for name in ours if not name.startswith("tightrope/")}
    assert {"METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE"} <= others
    assert contents(built("wheel", unpacked, tmp_path / "again")) == ours


def copy_of_the_repository(to: Path) -> Path:
    """Without what a build leaves behind, so that nothing old is packed."""
    to.mkdir()
    for name in (*TRACKED, "MANIFEST.in"):
        (to / name).write_bytes((ROOT / name).read_bytes())
    for folder in ("src/tightrope", "tests", "docs", "examples", "benchmarks"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                target = to / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
    return to
