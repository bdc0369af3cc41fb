"""How far from a model's own forward is ours, for every tiny architecture of the tests, or for folders that are given?

    python benchmarks/probe_differences.py [FOLDER ...]

Prints the table of docs/models.md: the probe's difference as a share of the largest logit, and the probe's time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.tiny import SHAPES, tiny_family
from tightrope.config.schema import ModelSection
from tightrope.models.load import load_network
from tightrope.models.probe import difference_of


def main(folders: list[str]) -> None:
    print("| architecture | path | float32 | bfloat16 | milliseconds (float32) |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        named = {Path(folder).name: Path(folder) for folder in folders}
        for name, folder in (named or {kind: tiny_family(kind, Path(temporary) / kind) for kind in SHAPES}).items():
            exact = load_network(folder, ModelSection(name=str(folder), dtype="float32"))
            begin = time.perf_counter()
            differences = [difference_of(exact)]
            milliseconds = 1000 * (time.perf_counter() - begin)
            differences.append(difference_of(load_network(folder, ModelSection(name=str(folder), dtype="bfloat16"))))
            path = "packed" if exact.family.packed else "padded"
            print(f"| {name} | {path} | {differences[0]:.0e} | {differences[1]:.0e} | {milliseconds:.0f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
