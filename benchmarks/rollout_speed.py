"""How fast does the local engine decode, and how far is that from reading every weight once a token?

    python -m benchmarks.rollout_speed M lora --batches 1 8 16 --repeats 3

Ways, in turns: "torch" leaves each layer as it is, "reading order" is the product's (rollout/decode_products.py). CPU
seconds of one thread (set OMP_NUM_THREADS=1), medians; nothing ends a response, so that every step has all sequences.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from benchmarks.speed.material import Material, material
from benchmarks.speed.sizes import LORA, SIZES
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.models.backbone import Network
from tightrope.models.roles import Role, offline_roles
from tightrope.rollout.decode_products import decode_products
from tightrope.rollout.decoders import prefill
from tightrope.rollout.sampling import draw, uniforms
from tightrope.types import SampleKey

Way = Callable[[Network, int], AbstractContextManager[None]]
WAYS: dict[str, Way] = {"torch": lambda network, new_tokens: nullcontext(), "reading order": decode_products}
LAID_OUT = 64
"""New tokens that the ways are told to expect, whatever is timed."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Decoding, timed.")
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("training", choices=("full", "lora"))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    made = material(SIZES[asked.size])
    policy = policy_of(made.model, asked.training)
    read = sum(p.numel() for p in policy.network.model.parameters()) * 4 / bandwidth()
    print(f"{asked.size} {asked.training}: reading the weights takes {1e3 * read:.1f} ms a step")
    print("| batch | way | prefill, tokens/s | layout, ms | ms a step | tokens/s | over reading |")
    print("|---|---|---|---|---|---|---|")
    for batch in asked.batches:
        prompts = prompts_of(made, batch)
        rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in WAYS}
        for _ in range(asked.repeats + 1):
            for name, way in WAYS.items():
                rows[name].append(timed(policy, prompts, way, asked.steps))
        for name, taken in rows.items():
            layout, first, step = (statistics.median(column) for column in zip(*taken[1:], strict=True))
            tokens = sum(len(ids) for ids in prompts)
            print(
                f"| {batch} | {name} | {tokens / first:.0f} | {1e3 * layout:.0f} | {1e3 * step:.2f} "
                f"| {batch / step:.0f} | {step / read:.1f}x |",
                flush=True,
            )


def policy_of(folder: Path, training: str) -> Role:
    """An adapter whose B is not zero costs the same as one that is."""
    lora = LoraSection.model_validate(LORA) if training == "lora" else None
    policy = offline_roles(ModelSection(name=str(folder), device="cpu", lora=lora), "sft", 0).policy
    assert policy is not None
    return policy


def prompts_of(made: Material, count: int) -> list[list[int]]:
    rows = [json.loads(line)["ids"] for line in made.prompts.read_text().splitlines()]
    return [rows[index % len(rows)] for index in range(count)]


@torch.no_grad()
def timed(policy: Role, prompts: Sequence[Sequence[int]], way: Way, steps: int) -> tuple[float, float, float]:
    """CPU seconds: of making the layout, of the prompts' pass, of one step with its draw."""
    network = policy.network
    uniform = uniforms(SampleKey(0, 0, 0), [(index, 0) for index in range(len(prompts))], steps)
    begin = time.process_time()
    with network.using(policy.adapter), way(network, LAID_OUT):
        laid_out = time.process_time()
        decoder, hidden = prefill(network, prompts, torch.arange(len(prompts)), steps)
        filled = time.process_time()
        for position in range(steps):
            token, _ = draw(network.logits(hidden), 1.0, uniform[:, position])
            hidden = decoder.step(token)
        return laid_out - begin, filled - laid_out, (time.process_time() - filled) / steps


def bandwidth() -> float:
    """Bytes a second that one thread reads: the best of a few sums over memory too large for any cache."""
    memory = torch.ones(2**26)
    best = float("inf")
    for _ in range(5):
        begin = time.process_time()
        memory.sum()
        best = min(best, time.process_time() - begin)
    return memory.numel() * 4 / best


if __name__ == "__main__":
    main()
