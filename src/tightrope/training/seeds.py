"""Counter-based randomness of the update: a permutation is a function of where the run stands, not of its past."""

from __future__ import annotations

import numpy as np


def permutation(seed: int, attempt: int, step: int, epoch: int, n: int) -> list[int]:
    """The order of ``n`` sequences in one epoch of one step.

    >>> sorted(permutation(0, 0, 3, 1, 4))
    [0, 1, 2, 3]
    >>> permutation(0, 0, 3, 1, 64) == permutation(0, 0, 3, 1, 64) != permutation(0, 1, 3, 1, 64)
    True
    """
    stream = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, attempt, step, epoch])))
    return stream.permutation(n).tolist()
