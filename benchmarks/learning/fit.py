"""How do reward and KL depend on each other? Two formulas, with d = sqrt(KL to the start, nats per response).

best of n   KL = log n - (n - 1) / n, and the expected best of n from N samples drawn once
RL          R = d (alpha - beta log d)           Gao, Schulman & Hilton 2022, eq. 1; R is 0 at the start
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

NEAREST = 0.5
"""Points nearer to the start than this d are dropped: there R is small and its noise is not."""


class Fit(NamedTuple):
    """``r2`` is None where fewer than three points are left or R does not vary."""

    alpha: float
    beta: float
    r2: float | None
    points: int


def rl_fit(kl: Sequence[float], reward: Sequence[float]) -> Fit | None:
    """Least squares of R on d and -d log d; None where fewer than two points are left.

    >>> kl = [0.5, 1.0, 4.0, 9.0]
    >>> fit = rl_fit(kl, [math.sqrt(k) * (2.0 - 0.5 * math.log(math.sqrt(k))) for k in kl])
    >>> round(fit.alpha, 6), round(fit.beta, 6), round(fit.r2, 6)
    (2.0, 0.5, 1.0)
    """
    pairs = [(math.sqrt(k), r) for k, r in zip(kl, reward, strict=True) if k >= NEAREST**2]
    if len(pairs) < 2:
        return None
    d, target = (np.array(column) for column in zip(*pairs, strict=True))
    features = np.stack([d, -d * np.log(d)], axis=1)
    alpha, beta = np.linalg.lstsq(features, target, rcond=None)[0].tolist()
    spread = float(((target - target.mean()) ** 2).sum())
    missed = float(((target - features @ [alpha, beta]) ** 2).sum())
    return Fit(alpha, beta, 1.0 - missed / spread if len(d) > 2 and spread > 0 else None, len(d))


def peak_kl(fit: Fit) -> float | None:
    """KL at which the fitted R is highest: log d = alpha / beta - 1. None where it rises for ever."""
    return math.exp(2.0 * (fit.alpha / fit.beta - 1.0)) if fit.beta > 0 else None


def best_of_weights(samples: int, n: int) -> list[float]:
    """How probable it is that the i-th worst of ``samples`` is the best of ``n`` drawn without replacement.

    C(i - 1, n - 1) / C(samples, n), so that a mean with these weights is the unbiased estimate of best-of-n.

    >>> best_of_weights(3, 2)
    [0.0, 0.3333333333333333, 0.6666666666666666]
    """
    return [math.comb(i, n - 1) / math.comb(samples, n) for i in range(samples)]
