"""Numbers for people, not for gradients: drift, diversity, and how sure a comparison is.

A number that does not exist (no n-gram, no pair) is None or an error, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tightrope.maths.kl import k3
from tightrope.maths.ragged import require_same_shape

if TYPE_CHECKING:
    from jaxtyping import Float


class PairOutcomes(NamedTuple):
    """Counts of pairs in the right order, scored equal, and in the wrong order."""

    right: int
    tied: int
    wrong: int

    @property
    def accuracy(self) -> float | None:
        """Right pairs plus half the ties, as a share; None for no pairs."""
        pairs = self.right + self.tied + self.wrong
        return (self.right + self.tied / 2) / pairs if pairs else None


class Interval(NamedTuple):
    """An estimate and the interval around it."""

    estimate: float
    low: float
    high: float


@torch.no_grad()
def approx_kl(
    logprobs: Float[Tensor, " actions"], old_logprobs: Float[Tensor, " actions"]
) -> Float[Tensor, " actions"]:
    """KL(π_old ‖ π) from samples of π_old: k3 with d = old_logprobs − logprobs, i.e. ρ − 1 − log ρ; nats per action.

    >>> round(approx_kl(torch.tensor([-1.0]), torch.tensor([-1.5])).item(), 6)
    0.148721
    """
    return k3(old_logprobs, logprobs)


def pair_outcomes(chosen: Float[Tensor, " pairs"], rejected: Float[Tensor, " pairs"]) -> PairOutcomes:
    """How a reward model orders labelled pairs. A tie is a tie, never a success; NaN counts as wrong.

    Raises ValueError on different shapes.

    >>> pair_outcomes(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 1.0]))
    PairOutcomes(right=1, tied=1, wrong=1)
    """
    require_same_shape({"chosen": chosen, "rejected": rejected})
    right, tied = int((chosen > rejected).sum()), int((chosen == rejected).sum())
    return PairOutcomes(right, tied, len(chosen) - right - tied)


def distinct_n(texts: Sequence[str], n: int) -> float | None:
    """Distinct n-grams of words / all n-grams of words, over all texts together. Li et al. 2016, section 4.

    1 when nothing repeats, towards 0 for one answer to everything; falls with the amount of text, so compare equal
    numbers of texts. None when no text has n words. Raises ValueError for n < 1.

    >>> distinct_n(["a b a b", "a b"], 2)
    0.5
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, found {n}")
    rows = [text.split() for text in texts]
    grams = [tuple(words[i : i + n]) for words in rows for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None


def best_of_n_kl(n: int) -> float:
    """KL(best of n ‖ one sample) = log n − (n − 1)/n nats; exact without ties, else an upper bound. Stiennon et al.
    2020, appendix G.3. Raises ValueError for n < 1.

    >>> round(best_of_n_kl(4), 6)
    0.636294
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, found {n}")
    return math.log(n) - (n - 1) / n


def wilson_interval(successes: float, n: int, confidence: float = 0.95) -> Interval:
    """Score interval of a share p̂ = successes / n. Wilson 1927:

        (p̂ + z²/2n ± z √(p̂(1 − p̂)/n + z²/4n²)) / (1 + z²/n)

    Stays inside [0, 1] and keeps its meaning at 0 and n successes. Raises ValueError for n < 1, successes outside
    0 .. n or a confidence outside (0, 1).

    >>> [round(x, 4) for x in wilson_interval(8, 10)]
    [0.8, 0.4902, 0.9433]
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"need n >= 1 and 0 <= successes <= n, found {successes} of {n}")
    z, share = _quantile(confidence), successes / n
    middle = share + z * z / (2 * n)
    reach = z * math.sqrt(share * (1.0 - share) / n + z * z / (4 * n * n))
    low, high = (middle - reach) / (1.0 + z * z / n), (middle + reach) / (1.0 + z * z / n)
    return Interval(share, 0.0 if successes == 0 else low, 1.0 if successes == n else high)


def paired_difference(before: Sequence[float], after: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of dᵢ = afterᵢ − beforeᵢ, ± z · s/√n with the sample deviation s: normal interval of a paired comparison.

    One pair says nothing about its error: the interval is infinite. Raises ValueError for no pairs, different
    lengths or a confidence outside (0, 1).

    >>> [round(x, 4) for x in paired_difference([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])]
    [2.0, 0.8684, 3.1316]
    """
    if len(before) != len(after) or not before:
        raise ValueError(f"need as many numbers after as before, at least one, found {len(before)} and {len(after)}")
    z = _quantile(confidence)
    differences = torch.tensor(after, dtype=torch.float64) - torch.tensor(before, dtype=torch.float64)
    mean = float(differences.mean())
    if len(differences) == 1:
        return Interval(mean, -math.inf, math.inf)
    reach = z * float(differences.std(correction=1)) / math.sqrt(len(differences))
    return Interval(mean, mean - reach, mean + reach)


def clustered_mean(values: Sequence[float], clusters: Sequence[int], confidence: float = 0.95) -> Interval:
    """Mean of all values and its interval when values of one cluster depend on each other. Liang & Zeger 1986:

        x̄ ± z · √( G/(G − 1) · Σ_g (Σ_{i∈g} (xᵢ − x̄))² ) / n        for G clusters, n values

    One value a cluster gives the usual s/√n. One cluster says nothing about its error: the interval is infinite. Raises
    ValueError for no values, different lengths or a confidence outside (0, 1).

    >>> [round(x, 4) for x in clustered_mean([0.0, 2.0, 4.0, 6.0], [0, 0, 1, 1])]
    [3.0, -0.9199, 6.9199]
    """
    if len(values) != len(clusters) or not values:
        raise ValueError(f"need a cluster for each value, at least one, found {len(values)} and {len(clusters)}")
    z, mean = _quantile(confidence), math.fsum(values) / len(values)
    sums: dict[int, float] = {}
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + value - mean
    groups = len(sums)
    if groups == 1:
        return Interval(mean, -math.inf, math.inf)
    squares = math.fsum(total * total for total in sums.values())
    reach = z * math.sqrt(groups / (groups - 1) * squares) / len(values)
    return Interval(mean, mean - reach, mean + reach)


def win_rate(
    ours: Sequence[float], theirs: Sequence[float], clusters: Sequence[int], confidence: float = 0.95
) -> Interval:
    """Share of pairs with ours > theirs, a tie counting half; Wilson's interval over clusters.

    Each cluster counts as one trial whose success is its own share: exact for one pair a cluster without ties, wider
    than needed otherwise, because a share varies less than a win. Raises ValueError as ``clustered_mean`` does.

    >>> [round(x, 4) for x in win_rate([2.0, 1.0, 0.0, 5.0], [1.0, 1.0, 1.0, 1.0], [0, 1, 2, 3])]
    [0.625, 0.2194, 0.9081]
    """
    if not len(ours) == len(theirs) == len(clusters) or not ours:
        raise ValueError(f"need equally many numbers, at least one, found {len(ours)}, {len(theirs)}, {len(clusters)}")
    won: dict[int, list[float]] = {}
    for mine, other, cluster in zip(ours, theirs, clusters, strict=True):
        won.setdefault(cluster, []).append(1.0 if mine > other else 0.5 if mine == other else 0.0)
    shares = [math.fsum(cluster) / len(cluster) for cluster in won.values()]
    return wilson_interval(math.fsum(shares), len(shares), confidence)


def _quantile(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie in (0, 1), found {confidence}")
    return NormalDist().inv_cdf((1.0 + confidence) / 2.0)
