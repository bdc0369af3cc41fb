"""The engine with a model that says what it is told: only where responses end is the engine's own doing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tightrope.rollout import local_engine
from tightrope.rollout.local_engine import LocalEngine
from tightrope.types import Prompt, Rollout, SampleKey, Sampling


class Tape:
    """A decoder whose hidden states are the numbers of the running rows."""

    def __init__(self, rows: int) -> None:
        self.running = torch.arange(rows)

    def step(self, token: Tensor) -> Tensor:
        return self.running[:, None]

    def keep(self, running: Tensor) -> Tensor:
        self.running = self.running[running]
        return running.nonzero()[:, 0]


@contextmanager
def scripted(script: Sequence[Sequence[int]]) -> Iterator[None]:
    tokens, position = torch.tensor(script), iter(range(len(script[0])))

    def prefill(network: Any, prompts: Any, row_of: Tensor, new_tokens: int) -> tuple[Tape, Tensor]:
        tape = Tape(len(row_of))
        return tape, tape.running[:, None]

    def draw(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
        drawn = tokens[logits[:, 0], next(position)]
        return drawn, torch.zeros(len(drawn))

    with patch.object(local_engine, "prefill", prefill), patch.object(local_engine, "draw", draw):
        yield


def rollout_of(
    script: Sequence[Sequence[int]], eos_ids: tuple[int, ...], stop_ids: tuple[int, ...], after: int
) -> Rollout:
    """One response for each row of ``script`` (all of one length), as the engine ends it."""
    network = SimpleNamespace(
        using=lambda adapter: nullcontext(),
        adapter=None,
        trunk=torch.nn.Module(),
        context_length=1 + len(script[0]),
        device=torch.device("cpu"),
        unembedding_weight=torch.zeros(1, 1),
        logits=lambda hidden: hidden,
    )
    policy: Any = SimpleNamespace(network=network, adapter=None)
    tokenizer: Any = SimpleNamespace(batch_decode=lambda rows, skip_special_tokens: [str(ids) for ids in rows])
    prompts = [Prompt(index, (1,), "p", {"prompt": "p"}) for index in range(len(script))]
    with scripted(script):
        engine = LocalEngine(policy, tokenizer, lambda: 0)
        return engine.generate(prompts, 1, Sampling(1.0, len(script[0]), eos_ids, stop_ids, after), SampleKey(0, 0, 0))
