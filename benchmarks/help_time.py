"""How long until the help stands on the screen? Median wall-clock seconds, children started one after another.

python benchmarks/help_time.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 9
WORDS = (("--help",), ("ppo", "--help"), ("demo", "--help"), ("ppoo",))
CODE = "from tightrope.cli.main import main; main()"


def seconds(words: tuple[str, ...]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", CODE, *words], check=False, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    seconds(("--help",))  # byte code and the disk's cache
    for words in WORDS:
        print(f"tightrope {' '.join(words):<14} {statistics.median(seconds(words) for _ in range(ROUNDS)):.2f} s")


if __name__ == "__main__":
    main()
