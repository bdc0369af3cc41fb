"""Do imports only go down, and does what people read and write come without torch?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
FORBIDDEN = next(contract for contract in CONTRACTS if contract["type"] == "forbidden")
LAYERS = next(contract for contract in CONTRACTS if contract["type"] == "layers")

IMPORT_ALL = """
import importlib, pkgutil, sys
module = importlib.import_module(sys.argv[1])
for found in pkgutil.walk_packages(getattr(module, "__path__", []), module.__name__ + "."):
    importlib.import_module(found.name)
print(*[name for name in sys.argv[2:] if name in sys.modules])
"""


def test_the_contracts_of_the_layers_hold() -> None:
    command = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 kept, 0 broken" in done.stdout


def test_every_part_has_its_layer() -> None:
    parts = {path.stem for path in (ROOT / "src/tightrope").iterdir() if not path.name.startswith("_")} - {"py"}
    named = {name.strip() for layer in LAYERS["layers"] for name in layer.split("|")}
    assert parts == named


def test_every_folder_of_the_source_is_a_package() -> None:
    """A folder without __init__.py is left out of the wheel, and its imports are seen by no contract."""
    folders = {path.parent for path in (ROOT / "src/tightrope").rglob("*.py")}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").exists()]


@pytest.mark.parametrize(
    "name", [*FORBIDDEN["source_modules"], "tightrope.cli.main", "tightrope.api", "tightrope.algorithms.plugins"]
)
def test_importing_it_brings_no_torch(name) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, name, *FORBIDDEN["forbidden_modules"]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
