"""Are all cores ever slower than one, beside other programs?

    python -m benchmarks.speed.threads [--steps 3] [--busy 0 2 4]

PPO steps of size S, product default, on one thread and on every core in turns, in one process, while ``busy`` other
processes count as fast as they can. Wall seconds, medians; over 1 in the last column: more threads are faster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tightrope.cli.main import quiet_libraries

quiet_libraries()  # as the command does, before torch is there

import torch  # noqa: E402

from benchmarks.speed.ours import config_of, mathematics_of  # noqa: E402
from benchmarks.speed.sizes import S  # noqa: E402
from tightrope.assemble.own_loop import parts_of  # noqa: E402
from tightrope.training.step import train_step  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="of each number of threads")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 2, 4], help="other processes that count")
    asked = parser.parse_args()
    cores = os.cpu_count() or 1
    run = parts_of(config_of(S, mathematics_of("default", S)))
    train_step(run)
    print(f"| others | 1 thread, s | {cores} threads, s | 1 / {cores} |\n|---|---|---|---|")
    for others in asked.busy:
        seconds: dict[int, list[float]] = {1: [], cores: []}
        with busy(others):
            for threads in [1, cores] * asked.steps:
                torch.set_num_threads(threads)
                began = time.monotonic()
                train_step(run)
                seconds[threads].append(time.monotonic() - began)
        one, many = (statistics.median(seconds[threads]) for threads in (1, cores))
        print(f"| {others} | {one:.1f} | {many:.1f} | {one / many:.2f} |", flush=True)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that never wait."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()
