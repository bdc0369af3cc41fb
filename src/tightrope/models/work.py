"""How much does a network compute? Tokens through its trunk and operations of its matrix products, counted as it runs.

    forward    2 operations a weight and token; logits only where an action is predicted
    backward   2 for what flows through a weight, 2 more for the gradient of a weight that is trained

Attention, normalisation and what stands between the products are left out: real tokens through real weights are the
arithmetic that nothing can avoid. What was computed beyond them, filling and layers computed again, is counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FORWARD, THROUGH, TRAINED = 2, 4, 6
Kind = Literal["scored", "trained"]
"""A pass that nothing is learned from, or one with a backward pass."""


@dataclass(slots=True)
class Computed:
    """``tokens`` that were asked for, ``filling`` beside them, ``recomputed`` once more in the backward pass."""

    tokens: int = 0
    filling: int = 0
    recomputed: int = 0
    operations: int = 0

    def __add__(self, other: Computed) -> Computed:
        return Computed(
            self.tokens + other.tokens,
            self.filling + other.filling,
            self.recomputed + other.recomputed,
            self.operations + other.operations,
        )

    def __sub__(self, other: Computed) -> Computed:
        return Computed(
            self.tokens - other.tokens,
            self.filling - other.filling,
            self.recomputed - other.recomputed,
            self.operations - other.operations,
        )


def products(weights: int, *, backward: bool, trained: bool) -> int:
    """Operations of one token through so many weights.

    >>> [products(10, backward=b, trained=t) for b, t in ((False, True), (True, False), (True, True))]
    [20, 40, 60]
    """
    return weights * (FORWARD if not backward else TRAINED if trained else THROUGH)
