"""How should sequences of different length share attention calls on a CPU?

    OMP_NUM_THREADS=1 python benchmarks/packed_attention.py [--repeats 15]

Forward and backward of one attention layer, and of a whole small Llama around it. The ways are interleaved in every
repeat, in turning order, so that a busy machine slows all of them alike. Printed: the median time of each way, and the
median of its ratio to buckets of 16 in the same repeat. Results are compared too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tightrope.models.attention import ATTENTION, Layout, Scores, register
from tightrope.models.packed_forward import BUCKET, PackedLayout, positions_of
from tightrope.types import offsets_of

SHAPES = ((64, 8, 24), (64, 16, 64), (16, 32, 256))
"""Sequences, shortest and longest of a batch; lengths are uniform between them."""
HEADS, HEAD_WIDTH, LAYERS = 4, 32, 3
VOCABULARY = 1000
BASELINE = f"buckets of {BUCKET}"


class LoopLayout:
    """One attention call a sequence: nothing is filled up, nothing is shared."""

    def __init__(self, offsets: Tensor) -> None:
        self._lengths = offsets.diff().tolist()

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        pieces = zip(*(x.split(self._lengths, dim=2) for x in (query, key, value)), strict=True)
        attended = [
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scores.scale)
            for q, k, v in pieces
        ]
        return torch.cat(attended, dim=2).transpose(1, 2)


WAYS: Mapping[str, Callable[[Tensor], Layout]] = {
    BASELINE: PackedLayout,
    "loop over sequences": LoopLayout,
    "equal lengths only": lambda offsets: PackedLayout(offsets, bucket_width=1),
    "one padded call": lambda offsets: PackedLayout(offsets, bucket_width=int(offsets.diff().max())),
    "buckets of 8": lambda offsets: PackedLayout(offsets, bucket_width=8),
    "buckets of 32": lambda offsets: PackedLayout(offsets, bucket_width=32),
}


Pass = Callable[[Layout], float]
"""Runs forward and backward with a layout; returns the loss."""


def attention_pass(tokens: int) -> Pass:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, HEADS, tokens, HEAD_WIDTH, generator=generator).requires_grad_() for _ in range(3)
    )

    def run(layout: Layout) -> float:
        for x in (query, key, value):
            x.grad = None
        loss = layout.attend(query, key, value, Scores(HEAD_WIDTH**-0.5)).square().mean()
        loss.backward()
        return float(loss.detach())

    return run


def model_pass(ids: Tensor, offsets: Tensor) -> Pass:
    register()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HEADS * HEAD_WIDTH,
        intermediate_size=3 * HEADS * HEAD_WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
    )
    config._attn_implementation = ATTENTION
    model = LlamaForCausalLM(config).eval()

    def run(layout: Layout) -> float:
        model.zero_grad(set_to_none=True)
        inputs = {"input_ids": ids[None], "position_ids": positions_of(offsets)[None]}
        loss = model.model(**inputs, layout=layout, use_cache=False).last_hidden_state.square().mean()
        loss.backward()
        return float(loss.detach())

    return run


def measured(run: Pass, offsets: Tensor, repeats: int) -> dict[str, list[float]]:
    """Seconds of each way in each repeat, after one pass to warm up. Raises ValueError when a loss differs."""
    names = list(WAYS)
    losses = {name: run(WAYS[name](offsets)) for name in names}
    if max(losses.values()) - min(losses.values()) > 1e-5 * abs(losses[BASELINE]):
        raise ValueError(f"the ways do not compute the same: {losses}")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            began = time.perf_counter()
            run(WAYS[name](offsets))
            seconds[name].append(time.perf_counter() - began)
    return seconds


def show(title: str, seconds: Mapping[str, list[float]]) -> None:
    print(f"\n{title}")
    for name, times in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(times, seconds[BASELINE], strict=True))
        print(f"  {name:<22} {1000 * statistics.median(times):8.1f} ms   x {ratio:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    for count, shortest, longest in SHAPES:
        generator = torch.Generator().manual_seed(0)
        offsets = offsets_of(torch.randint(shortest, longest + 1, (count,), generator=generator))
        ids = torch.randint(0, VOCABULARY, (int(offsets[-1]),), generator=generator)
        batch = f"{count} sequences of {shortest} to {longest} tokens, {torch.get_num_threads()} thread(s)"
        show(f"attention alone: {batch}", measured(attention_pass(len(ids)), offsets, repeats))
        show(f"whole model: {batch}", measured(model_pass(ids, offsets), offsets, repeats))


if __name__ == "__main__":
    main()
