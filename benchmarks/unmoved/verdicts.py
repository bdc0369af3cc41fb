"""What differs between the product and a run with a switch, and is it more than luck?

Runs of one seed start from the same weights and meet the same prompts and the same random numbers. A difference of the
last bit changes a drawn token sooner or later, and from there two runs part as two seeds do: differences are then as
large as the spread of the seeds, with a mean of zero. Before that, they are rounding.

    spread       standard deviation of the product's end over the seeds
    interval     mean difference of the ends, seed by seed, ± t · standard error, at 99 %
    moved        the interval of reward or KL leaves out zero, and the mean is more than a tenth of the spread;
                 or the first update of the policy, from the same rollouts, is another one
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import t as students

from benchmarks.unmoved.runs import WARMUP

CONFIDENCE = 0.99
"""Two numbers of some twenty switches are looked at: at 95 % two of them would be called moved by luck alone."""
SMALL = 0.1
"""Of the spread: a difference below it changes nothing that a user of one seed could see, however sure it is."""
ANOTHER = 1e-3
"""Distance of two updates as a share of their length: rounding is three hundred times smaller."""
BIT_EQUAL, WITHIN, MOVED = "bit-equal", "within the seed spread", "moved"
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """Of the ends, product to switch: mean, standard error and the product's ``spread``, over the seeds."""

    mean: float
    error: float
    spread: float
    seeds: int

    @property
    def moved(self) -> bool:
        factor = float(students.ppf((1 + CONFIDENCE) / 2, self.seeds - 1))
        return abs(self.mean) > factor * self.error and abs(self.mean) > SMALL * self.spread


@dataclass(frozen=True)
class Comparison:
    """``equal_weights`` and ``equal_draws``: steps after which all bits of the trained weights are equal, and whose
    rollouts are. ``first`` and ``last``: how far apart the policies are, as a share of the way the product's went, at
    most; ``first`` of the seeds whose rollouts were the same until then, None where there is none.
    ``curve``: the largest difference of the mean reward of a step."""

    steps: int
    equal_weights: int
    equal_draws: int
    first: float | None
    last: float
    curve: float
    reward: Difference
    kl: Difference

    @property
    def verdict(self) -> str:
        if self.equal_weights == self.steps and self.curve == 0 and self.reward.mean == self.kl.mean == 0:
            return BIT_EQUAL
        another = self.first is not None and self.first > ANOTHER
        return MOVED if another or self.reward.moved or self.kl.moved else WITHIN


def compared(pairs: Sequence[tuple[Figures, Figures]]) -> Comparison:
    """(product, with the switch), seed by seed; at least two."""
    same_start = [(p, o) for p, o in pairs if p["drawn"][: WARMUP + 1] == o["drawn"][: WARMUP + 1]]
    return Comparison(
        steps=sum(len(product["weights"]) for product, _ in pairs),
        equal_weights=equal(pairs, "weights"),
        equal_draws=equal(pairs, "drawn"),
        first=max((apart(p["moved"]["first"], o["moved"]["first"]) for p, o in same_start), default=None),
        last=max(apart(product["moved"]["last"], other["moved"]["last"]) for product, other in pairs),
        curve=max(abs(a - b) for p, o in pairs for a, b in zip(p["reward"], o["reward"], strict=True)),
        reward=difference_of(pairs, "reward"),
        kl=difference_of(pairs, "kl"),
    )


def equal(pairs: Sequence[tuple[Figures, Figures]], what: str) -> int:
    return sum(a == b for product, other in pairs for a, b in zip(product[what], other[what], strict=True))


def apart(product: Sequence[float], other: Sequence[float]) -> float:
    """|a - b| / |a| from the projections of both.

    >>> apart([3.0, 4.0], [3.0, 4.5])
    0.1
    """
    return math.dist(product, other) / math.hypot(*product)


def difference_of(pairs: Sequence[tuple[Figures, Figures]], what: str) -> Difference:
    differences = [other["end"][what] - product["end"][what] for product, other in pairs]
    mean, deviation = moments(differences)
    return Difference(
        mean, deviation / math.sqrt(len(pairs)), moments([p["end"][what] for p, _ in pairs])[1], len(pairs)
    )


def moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation, of a sample."""
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
