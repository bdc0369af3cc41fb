"""Which library multiplies float32 matrices faster on this CPU, at the shapes of a training step?

    OMP_NUM_THREADS=1 python benchmarks/products.py [--repeats 7]

Printed: GFLOP per second of CPU time of torch's own product and of oneDNN's, forward, for the input's gradient and for
the weight's; medians of interleaved repeats.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from tightrope.kernels import products

SHAPES = ((600, 256, 256), (600, 256, 688), (600, 688, 256), (350, 256, 4096), (600, 256, 16), (300, 576, 1536))
"""Rows, inputs, outputs: layers, output matrix and adapters of a small model, and a layer of SmolLM2-135M."""
SECONDS = 0.05


def rate(work: Callable[[], object], flops: float) -> float:
    begin, count = time.process_time(), 0
    while time.process_time() - begin < SECONDS:
        work()
        count += 1
    return count * flops / (time.process_time() - begin) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} thread")
    print("| rows x inputs x outputs | way | torch | oneDNN | ratio |\n|---|---|---|---|---|")
    for rows, inputs, outputs in SHAPES:
        x, weight, grad = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
        ways = {"forward": (x, weight), "input's gradient": (grad, weight.T), "weight's gradient": (grad.T, x.T)}
        for name, (left, right) in ways.items():
            found: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(repeats):
                for wide in (False, True):
                    products.WIDE_VECTORS = wide
                    products.product(left, right)  # the first call compiles
                    found[wide].append(
                        rate(lambda a=left, b=right: products.product(a, b), 2.0 * rows * inputs * outputs)
                    )
            plain, fast = (statistics.median(found[wide]) for wide in (False, True))
            print(f"| {rows} x {inputs} x {outputs} | {name} | {plain:.0f} | {fast:.0f} | {fast / plain:.2f} |")


if __name__ == "__main__":
    main()
