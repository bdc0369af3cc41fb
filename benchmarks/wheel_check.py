"""Does the wheel work where the repository is not? An empty environment, a folder of its own, the whole small demo.

python benchmarks/wheel_check.py dist/tightrope-*.whl [--no-demo]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
WHERE = "import tightrope; print(tightrope.__file__)"


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        binaries = folder / "venv/bin"

        def call(*words: str | Path) -> str:
            """Without any path of the repository."""
            clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
            done = subprocess.run(list(words), cwd=folder, env=clean, check=True, stdout=subprocess.PIPE, text=True)
            return done.stdout

        call(binaries / "pip", "install", "--quiet", "-c", CONSTRAINTS, f"{wheel}[demo]")
        assert Path(call(binaries / "python", "-c", WHERE).strip()).is_relative_to(folder)
        call(binaries / "pip", "check")
        call(binaries / "tightrope", "demo", "--help")
        print(call(binaries / "tightrope", "env"))
        if "--no-demo" not in sys.argv:
            card = json.loads(call(binaries / "tightrope", "demo", "--quiet", "--json").splitlines()[-1])
            print(f"demo: {card['seconds']:.0f} s, {card['peak_rss_bytes'] / 2**20:.0f} MiB")
    print(f"{wheel.name} works in an empty environment")


if __name__ == "__main__":
    main()
