"""What did the last whole run find, and does it still speak of the equations as they are?

Needs no tool and runs nothing.

``result.json`` is written by a whole run and committed. ``sources`` are the bytes of ``src/tightrope/maths``, ``tests``
those of the tests that kill.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULT = Path(__file__).with_name("result.json")
MATHS = "src/tightrope/maths"


@dataclass(frozen=True)
class Result:
    """``equivalent``: those that survived and are listed, by reason; ``stale``: those listed that do not survive."""

    sources: str
    tests: str
    mutants: int
    killed: int
    survived: int
    stale: int
    equivalent: Mapping[str, int]
    left_out: Mapping[str, int]
    seconds: int
    versions: Mapping[str, str]

    @property
    def equivalents(self) -> int:
        return sum(self.equivalent.values())

    @property
    def equivalent_share(self) -> float:
        return self.equivalents / max(self.mutants, 1)

    @property
    def score(self) -> float:
        """Killed, as a share of the mutants that can be."""
        return self.killed / max(self.mutants - self.equivalents, 1)

    def write(self) -> None:
        RESULT.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_result() -> Result:
    return Result(**json.loads(RESULT.read_text(encoding="utf-8")))


def sources_digest(root: Path = ROOT) -> str:
    return digest(root, (root / MATHS).glob("*.py"))


def tests_digest(root: Path = ROOT) -> str:
    return digest(root, (*(root / "tests/maths").iterdir(), *(root / "tests/faults").glob("test_maths_*.py")))


def digest(root: Path, paths: Iterable[Path]) -> str:
    """Of names and bytes, whatever the order."""
    found = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file()):
        found.update(f"{path.relative_to(root)}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:16]
