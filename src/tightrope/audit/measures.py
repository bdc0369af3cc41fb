"""How well do scores order labelled pairs? Accuracy, rank agreement, calibration, length, overfitting.

margin   reward of the chosen answer minus that of the rejected one; over 0 is right, 0 a tie
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, special, stats

from tightrope.audit.intervals import Floats, clustered
from tightrope.maths.diagnostics import Interval, wilson_interval

CLOSE_SHARE = 0.1
"""Answers whose numbers of words differ by no more than this share of the longer, or by one word, are equally long."""
BINS = 10
RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class Share:
    """A share of pairs with its 95 % interval, and how many pairs it is of."""

    estimate: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Rank:
    """Agreement of two orders, -1 to 1."""

    kendall: Interval
    spearman: Interval
    count: int


@dataclass(frozen=True, slots=True)
class Bin:
    """Of one range of stated confidences: their mean, the share that was right, and how many."""

    stated: float
    right: Share


@dataclass(frozen=True)
class Calibration:
    """``ece`` mean distance of stated and true confidence, ``brier`` mean squared error of sigmoid(margin) for the
    label; ``slope``: margins x slope would be calibrated, under 1 is overconfident. None where all pairs are ties."""

    ece: float
    brier: float
    slope: Interval | None
    bins: tuple[Bin, ...]


def share_right(margins: Floats, clusters: Sequence[int]) -> Share:
    """Pairs in the right order, a tie counting half.

    >>> share_right(np.array([1.0, -1.0, 0.0, 2.0]), [0, 1, 2, 3]).estimate
    0.625
    """
    return share(np.where(margins > 0, 1.0, np.where(margins == 0, 0.5, 0.0)), clusters)


def share(hits: Floats, clusters: Sequence[int]) -> Share:
    """Mean of numbers in 0 .. 1 with Wilson's interval. Several pairs of a prompt count as so many trials as their
    dependence leaves: at most one a pair, at least one a prompt (Korn & Graubard's effective number)."""
    pairs, prompts = len(hits), len(set(clusters))
    estimate = float(hits.mean())
    trials = float(pairs)
    if prompts < pairs and prompts > 1 and 0 < estimate < 1:
        error = clustered(hits, clusters).error
        trials = min(pairs, max(prompts, estimate * (1 - estimate) / error**2)) if error > 0 else float(prompts)
    elif prompts < pairs:
        trials = float(prompts)
    whole = max(1, round(trials))
    _, low, high = wilson_interval(estimate * whole, whole)
    return Share(estimate, low, high, pairs)


def rank_agreement(rewards: Floats, grades: Floats, clusters: Sequence[int]) -> Rank | None:
    """Kendall's tau-b and Spearman's rho of two numbers an answer; intervals from resampled prompts. None where either
    does not vary."""
    if len(rewards) < 2 or not float(np.ptp(rewards)) or not float(np.ptp(grades)):
        return None

    def kendall(chosen: Any) -> float:
        found: Any = stats.kendalltau(rewards[chosen], grades[chosen])
        return float(found.statistic)

    def spearman(chosen: Any) -> float:
        found: Any = stats.spearmanr(rewards[chosen], grades[chosen])
        return float(found.statistic)

    return Rank(resampled(kendall, clusters), resampled(spearman, clusters), len(rewards))


def resampled(statistic: Callable[[Any], float], clusters: Sequence[int], seed: int = 0) -> Interval:
    """``statistic`` of item numbers, with the 95 % interval over resampled prompts; resamples where it does not exist
    are left out, and with one prompt the interval is infinite."""
    _, group = np.unique(np.asarray(clusters), return_inverse=True)
    members = [np.flatnonzero(group == number) for number in range(int(group.max()) + 1)]
    estimate = statistic(np.arange(len(group)))
    if len(members) == 1:
        return Interval(estimate, -math.inf, math.inf)
    draw = np.random.default_rng(seed)
    values = [
        statistic(np.concatenate([members[i] for i in draw.integers(0, len(members), len(members))]))
        for _ in range(RESAMPLES)
    ]
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return Interval(estimate, -math.inf, math.inf)
    low, high = np.quantile(known, [0.025, 0.975])
    return Interval(estimate, float(low), float(high))


def calibration(margins: Floats, clusters: Sequence[int]) -> Calibration:
    """Bradley-Terry says sigmoid(margin) is the probability of the label. Each pair is looked at from the side the
    model prefers: it states sigmoid(|margin|) >= 1/2, and is right, half right (tie) or wrong. Guo et al. 2017."""
    stated = special.expit(np.abs(margins))
    hits = np.where(margins > 0, 1.0, np.where(margins == 0, 0.5, 0.0))
    place = np.minimum(((stated - 0.5) * 2 * BINS).astype(int), BINS - 1)
    bins = tuple(
        Bin(float(stated[inside].mean()), share(hits[inside], np.asarray(clusters)[inside].tolist()))
        for inside in (place == number for number in range(BINS))
        if inside.any()
    )
    ece = sum(bin_.right.count * abs(bin_.stated - bin_.right.estimate) for bin_ in bins) / len(margins)
    brier = float(np.mean((1 - special.expit(margins)) ** 2))
    slope = resampled(lambda chosen: best_slope(margins[chosen]), clusters) if np.any(margins != 0) else None
    return Calibration(float(ece), brier, slope, bins)


def best_slope(margins: Floats) -> float:
    """The factor that makes the margins most likely under Bradley-Terry, within 0.001 to 1000 x their scale."""
    scale = float(np.abs(margins).mean())
    if scale == 0:
        return math.nan
    unit = margins / scale
    found: Any = optimize.minimize_scalar(
        lambda log_slope: float(np.logaddexp(0, -np.exp(log_slope) * unit).sum()),
        bounds=(math.log(1e-3), math.log(1e3)),
        method="bounded",
    )
    return math.exp(float(found.x)) / scale


def close_lengths(longer: Floats, difference: Floats) -> Any:
    """True for pairs of (nearly) equally long answers, bool [pairs]."""
    return np.abs(difference) <= np.maximum(1.0, CLOSE_SHARE * longer)


def length_matched(
    margins: Floats, words_chosen: Floats, words_rejected: Floats, clusters: Sequence[int]
) -> tuple[Share | None, Share | None]:
    """Accuracy where both answers are about equally long, and where they are not: length explains only the second."""
    close = close_lengths(np.maximum(words_chosen, words_rejected), words_chosen - words_rejected)
    places = np.asarray(clusters)

    def of(chosen: Any) -> Share | None:
        return share_right(margins[chosen], places[chosen].tolist()) if chosen.any() else None

    return of(close), of(~close)


def shorter_wins(difference: Floats, clusters: Sequence[int]) -> Share | None:
    """Share of the pairs of unequal length in which the shorter answer was chosen."""
    unequal = difference != 0
    if not unequal.any():
        return None
    return share((difference[unequal] < 0).astype(np.float64), np.asarray(clusters)[unequal].tolist())


def gap(first: Share, second: Share) -> Interval:
    """First share minus second of different pairs, with the interval of Newcombe 1998, method 10.

    >>> [round(x, 3) for x in gap(Share(0.9, 0.86, 0.93, 200), Share(0.8, 0.74, 0.85, 200))]
    [0.1, 0.036, 0.167]
    """
    difference = first.estimate - second.estimate
    below = math.hypot(first.estimate - first.low, second.high - second.estimate)
    above = math.hypot(first.high - first.estimate, second.estimate - second.low)
    return Interval(difference, difference - below, difference + above)
