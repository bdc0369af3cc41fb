"""How sure is an effect, when wordings and answers are both a sample, and when many effects are tested at once?

An effect over several wordings is one of the bias, not of a wording, only if it holds beyond the wordings that were
tried: they are a random factor beside the answers (Clark 1973).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Effect:
    """An estimate, its standard error (infinite where one unit says nothing) and the t distribution's freedom."""

    estimate: float
    error: float
    freedom: float

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        if math.isinf(self.error):
            return -math.inf, math.inf
        reach = float(stats.t.ppf((1 + confidence) / 2, self.freedom)) * self.error
        return self.estimate - reach, self.estimate + reach

    def p_above(self, bound: float) -> float:
        """One-sided p of the effect being ``bound`` or less; 1 where nothing is known about its error."""
        if math.isinf(self.error):
            return 1.0
        if self.error == 0:
            return 0.0 if self.estimate > bound else 1.0
        return float(stats.t.sf((self.estimate - bound) / self.error, self.freedom))


def crossed_effect(values: Floats, clusters: Sequence[int]) -> Effect:
    """Mean of ``values`` [wordings, answers]; its variance is that of the wordings' means plus that of the answers'
    means summed by cluster, which counts the noise of single cells twice and so errs on the wide side. Freedom after
    Satterthwaite. One wording: answers alone.

    >>> crossed_effect(np.array([[1.0, 3.0], [2.0, 4.0]]), [0, 1])
    Effect(estimate=2.5, error=1.118033988749895, freedom=1.4705882352941178)
    """
    wordings, mean = values.shape[0], float(values.mean())
    by_answer = clustered(values.mean(axis=0), clusters)
    if wordings == 1 or math.isinf(by_answer.error):
        return by_answer
    of_wordings = float(values.mean(axis=1).var(ddof=1)) / wordings
    of_answers = by_answer.error**2
    total = of_wordings + of_answers
    if total == 0:
        return Effect(mean, 0.0, by_answer.freedom)
    freedom = total**2 / (of_wordings**2 / (wordings - 1) + of_answers**2 / by_answer.freedom)
    return Effect(mean, math.sqrt(total), freedom)


def clustered(values: Floats, clusters: Sequence[int]) -> Effect:
    """Mean of ``values`` where those of one cluster (answers to one prompt) depend on each other. Liang & Zeger 1986.

    >>> clustered(np.array([0.0, 2.0, 4.0, 6.0]), [0, 0, 1, 1])
    Effect(estimate=3.0, error=2.0, freedom=1.0)
    """
    if not len(values) or len(values) != len(clusters):
        raise ValueError(f"need a cluster for each value, at least one, found {len(values)} and {len(clusters)}")
    mean = float(values.mean())
    _, group = np.unique(np.asarray(clusters), return_inverse=True)
    groups = int(group.max()) + 1
    if groups == 1:
        return Effect(mean, math.inf, 1.0)
    sums = np.bincount(group, values - mean)
    error = math.sqrt(groups / (groups - 1) * float(sums @ sums)) / len(values)
    return Effect(mean, error, float(groups - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number: the family-wise error stays under what a single one promises. Holm 1979.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
