"""Which token comes next: one uniform number a token, fixed by where the token stands, turned into a draw.

    uniforms  float64 [sequences, max_new_tokens], a function of (seed, attempt, step, prompt, sample) and position
    draw      inverse CDF: the first token whose cumulative probability exceeds the uniform number

A response therefore depends on its prompt and its own numbers, never on which sequences share its batch. The whole
distribution at the temperature is sampled: no top-k, no top-p, so that the log-prob of a draw is the trainer's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tightrope.config.errors import NonFiniteNumbers
from tightrope.maths.ragged import widen
from tightrope.types import SampleKey

BLOCK = 64
"""Tokens that are summed first: the search runs over blocks, then inside one (3x faster than one long scan)."""


class NonFiniteLogits(NonFiniteNumbers):
    """The policy's logits are not numbers: its weights have been destroyed by an earlier update."""


def uniforms(key: SampleKey, sequences: Sequence[tuple[int, int]], max_new_tokens: int) -> Tensor:
    """Numbers in [0, 1), float64 [sequences, max_new_tokens], for (prompt index, sample index) pairs.

    A longer limit only appends numbers. Counter-based (Philox): nothing is carried from one call to the next.

    >>> numbers = uniforms(SampleKey(0, 0, 3), [(7, 0), (7, 1)], 4)
    >>> bool((numbers[1] == uniforms(SampleKey(0, 0, 3), [(7, 1)], 6)[0, :4]).all())
    True
    """
    table = np.empty((len(sequences), max_new_tokens))
    for row, (prompt, sample) in enumerate(sequences):
        counter = np.random.SeedSequence([key.seed, key.attempt, key.step, prompt, sample])
        np.random.Generator(np.random.Philox(counter)).random(out=table[row])
    return torch.from_numpy(table)


def draw(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """(token, log π(token)) of each row, int64 and float32 or wider [rows]; logits [rows, vocab], uniform [rows].

    The log-prob is log_softmax(logits / T), in float32 as in the trainer's pass. A token of probability 0 is never
    drawn. Where a row's logits hold NaN or +∞, or nothing but −∞, its log-prob is not finite: the caller looks.

    >>> draw(torch.tensor([[0.0, 0.0, -torch.inf]]), 1.0, torch.tensor([0.75], dtype=torch.float64))
    (tensor([1]), tensor([-0.6931]))
    """
    logprobs = (widen(logits) / temperature).log_softmax(-1)
    width = logprobs.shape[-1]
    whole_blocks = logprobs.new_zeros(len(logprobs), width + -width % BLOCK)  # what fills the last one has no mass
    torch.exp(logprobs, out=whole_blocks[:, :width])
    probabilities = whole_blocks.unflatten(-1, (-1, BLOCK))
    masses = probabilities.sum(-1).double()
    block, rest = _search(masses, uniform * masses.sum(-1))
    inside, _ = _search(probabilities[torch.arange(len(block), device=block.device), block].double(), rest)
    # Only rows that are not numbers can point beyond the vocabulary; their log-prob says so.
    token = (block * BLOCK + inside).clamp(max=width - 1)
    return token, logprobs.gather(-1, token[:, None]).squeeze(-1)


def _search(masses: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """First piece whose cumulative mass exceeds ``target``, and how far into that piece the target lies; each [rows].

    The cumulative mass rises only at pieces with mass, so a piece without any is never found. A target that rounding
    put at the very end falls into the last piece with mass.
    """
    upper = masses.cumsum(-1)
    target = torch.minimum(target, torch.nextafter(upper[:, -1], torch.zeros_like(target)))
    found = torch.searchsorted(upper, target[:, None], right=True).clamp(max=masses.shape[-1] - 1)
    lower = upper.gather(-1, found) - masses.gather(-1, found)
    return found.squeeze(-1), target - lower.squeeze(-1)
