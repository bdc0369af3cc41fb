"""Which rows come next? A function of (seed, position) alone, so that the position is all a checkpoint needs.

Every epoch is one permutation of all rows: each row is used exactly once an epoch, whatever the batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from tightrope.protocols import State
from tightrope.types import Prompt

Purpose = Literal["prompts", "rows", "corpus"]
STREAMS: dict[Purpose, int] = {"prompts": 1, "rows": 2, "corpus": 3}
"""Keeps the orders of prompts, of offline rows and of a corpus apart under the same seed."""


def epoch_order(seed: int, purpose: Purpose, epoch: int, n: int) -> list[int]:
    """The order of ``n`` rows in one epoch.

    >>> sorted(epoch_order(0, "rows", 3, 4))
    [0, 1, 2, 3]
    """
    stream = np.random.SeedSequence([seed, STREAMS[purpose], epoch])
    return np.random.Generator(np.random.Philox(stream)).permutation(n).tolist()


class EpochOrders:
    """The orders of one stream of epochs; keeps the newest two, which a batch over an epoch's border needs."""

    def __init__(self, seed: int, purpose: Purpose, n: int) -> None:
        self.n = n
        self._seed = seed
        self._purpose: Purpose = purpose
        self._known: dict[int, list[int]] = {}

    def order(self, epoch: int) -> list[int]:
        if epoch not in self._known:
            self._known = {old: rows for old, rows in self._known.items() if old == epoch - 1}
            self._known[epoch] = epoch_order(self._seed, self._purpose, epoch, self.n)
        return self._known[epoch]

    def at(self, position: int) -> int:
        """The row at a position counted over all epochs."""
        epoch, within = divmod(position, self.n)
        return self.order(epoch)[within]


class RowSampler:
    """Rows (or pairs) of one optimizer step after the other. The last, smaller batch of an epoch is used too.

    >>> sampler = RowSampler(rows=5, batch_size=2, seed=0)
    >>> epoch = [sampler.next_rows() for _ in range(3)]
    >>> [len(batch) for batch in epoch], sorted(sum(epoch, []))
    ([2, 2, 1], [0, 1, 2, 3, 4])
    """

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        if rows < 1:
            raise ValueError("a sampler needs at least one row")
        self._orders = EpochOrders(seed, "rows", rows)
        self._batch_size = batch_size
        self.position = 0

    @property
    def batches_per_epoch(self) -> int:
        return -(-self._orders.n // self._batch_size)

    def next_rows(self) -> list[int]:
        epoch, batch = divmod(self.position, self.batches_per_epoch)
        self.position += 1
        start = batch * self._batch_size
        return self._orders.order(epoch)[start : start + self._batch_size]

    def state_dict(self) -> State:
        """``position``: batches drawn so far."""
        return {"position": self.position}

    def load_state_dict(self, state: State) -> None:
        self.position = state["position"]


class PromptSampler:
    """Always ``per_step`` prompts: a batch goes on into the next epoch where one ends.

    A prompt that comes twice in one batch (at an epoch's border, or when there are fewer prompts than ``per_step``)
    gets another ``index`` the second time, so that its responses are drawn anew instead of being repeated.
    ``fixed`` gives the first batch at every step.
    """

    def __init__(self, prompts: Sequence[Prompt], per_step: int, seed: int, fixed: bool = False) -> None:
        if not prompts:
            raise ValueError("a sampler needs at least one prompt")
        self._prompts = tuple(prompts)
        self._orders = EpochOrders(seed, "prompts", len(prompts))
        self._stride = 1 + max(prompt.index for prompt in prompts)
        self._per_step = per_step
        self._fixed = fixed
        self.position = 0

    def next_batch(self) -> list[Prompt]:
        start = 0 if self._fixed else self.position
        self.position += self._per_step
        batch: list[Prompt] = []
        seen: dict[int, int] = {}
        for position in range(start, start + self._per_step):
            prompt = self._prompts[self._orders.at(position)]
            repeat = seen.get(prompt.index, 0)
            seen[prompt.index] = repeat + 1
            batch.append(replace(prompt, index=prompt.index + repeat * self._stride) if repeat else prompt)
        return batch

    def state_dict(self) -> State:
        """``position``: prompts drawn so far."""
        return {"position": self.position}

    def load_state_dict(self, state: State) -> None:
        self.position = state["position"]
