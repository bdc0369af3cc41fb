"""Which labels look wrong, and how many? What a simple model learns from the other pairs says so.

A logistic regression on words and word pairs is fitted on four fifths of the prompts and asked about the rest. Noise of
a close call shows where the model is undecided; a flipped label also where it is sure. So the flip rate is the share of
labels that stay wrong however large the margin is, the lapse rate of a psychometric function (Wichmann & Hill 2001):

    P(label agrees | margin m) = flips + (1 - 2 flips) * sigmoid(scale * m)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats
from scipy.sparse import csr_matrix, hstack

from tightrope.audit.intervals import Floats
from tightrope.audit.pairs import TextPair
from tightrope.audit.words import differing, grams, presence
from tightrope.maths.diagnostics import Interval

FOLDS = 5
LEAST_PAIRS = 100
"""Fewer pairs teach a word model nothing."""
RARE = 5
PENALTIES = (1.0, 4.0, 16.0)
GRID = np.linspace(0.0, 0.5, 101)


@dataclass(frozen=True, slots=True)
class FlipRate:
    """Share of wrong labels with its 95 % interval, and the scale that makes margins log-odds."""

    rate: Interval
    scale: float


def cross_fitted_margins(pairs: Sequence[TextPair], clusters: Sequence[int], seed: int = 0) -> Floats | None:
    """For each pair the log-odds of its label, of a model that was fitted without its prompt; f64 [pairs]. Of several
    strengths of regularisation the one with the likeliest labels. None for fewer than LEAST_PAIRS pairs."""
    if len(pairs) < LEAST_PAIRS or len(set(clusters)) < FOLDS:
        return None
    sets = [(grams(pair.chosen, 2), grams(pair.rejected, 2)) for pair in pairs]
    lengths = np.array([len(pair.chosen.split()) - len(pair.rejected.split()) for pair in pairs], np.float64)
    spread = float(lengths.std()) or 1.0
    features: Any = hstack([presence(sets, differing(sets, RARE)), csr_matrix(lengths[:, None] / spread)]).tocsr()
    fold_of = np.random.default_rng(seed).integers(0, FOLDS, max(clusters) + 1)
    folds = fold_of[np.asarray(clusters)]
    every = [crossed(features, folds, penalty) for penalty in PENALTIES]
    return min(every, key=lambda margins: float(np.logaddexp(0, -margins).sum()))


def crossed(features: csr_matrix, folds: NDArray[np.int64], penalty: float) -> Floats:
    margins = np.zeros(len(folds))
    for fold in np.unique(folds):
        if (folds != fold).any():
            margins[folds == fold] = features[folds == fold] @ fitted(features[folds != fold], penalty)
    return margins


def fitted(features: csr_matrix, penalty: float) -> Floats:
    """Weights w that minimise sum log(1 + exp(-x.w)) + penalty |w|^2 / 2; each row's label is 1 by construction."""

    def loss(weights: Floats) -> tuple[float, Floats]:
        margins = features @ weights
        value = float(np.logaddexp(0, -margins).sum() + penalty * weights @ weights / 2)
        return value, penalty * weights - features.T @ special.expit(-margins)

    start = np.zeros(features.get_shape()[1])
    return optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x


def flip_rate(margins: Floats, clusters: Sequence[int]) -> FlipRate | None:
    """Maximum likelihood over both unknowns; the interval is that of the profile likelihood, with as many trials as
    there are prompts. None where no margin differs from 0."""
    unit = float(np.abs(margins).mean())
    if not unit:
        return None
    scaled, trials = margins / unit, len(set(clusters)) / len(margins)

    def at(flips: float) -> tuple[float, float]:
        def loss(log_scale: float) -> float:
            right = flips + (1 - 2 * flips) * special.expit(math.exp(log_scale) * scaled)
            return -float(np.log(np.maximum(right, 1e-300)).sum())

        starts = np.linspace(math.log(0.01), math.log(100.0), 25)
        best = starts[int(np.argmin([loss(float(start)) for start in starts]))]
        found = optimize.minimize_scalar(loss, bounds=(best - 0.5, best + 0.5), method="bounded")
        return float(found.fun), math.exp(float(found.x))

    profile = [at(float(flips)) for flips in GRID]
    losses = np.array([loss for loss, _ in profile])
    place = int(losses.argmin())
    inside = GRID[(losses - losses.min()) * trials <= stats.chi2.ppf(0.95, 1) / 2]
    return FlipRate(Interval(float(GRID[place]), float(inside.min()), float(inside.max())), profile[place][1] / unit)


def suspicion(margins: Sequence[tuple[Floats, FlipRate]]) -> Floats:
    """Probability that a label is wrong, the mean over several models' margins and rates; f64 [pairs].

    flips * sigmoid(-a m) / P(label agrees), Bayes' rule in the model above, with at least one flip in a hundred.
    """
    votes = list[Floats]()
    for values, rate in margins:
        flips = min(max(rate.rate.estimate, 0.01), 0.49)
        wrong = flips * special.expit(-rate.scale * values)
        right = (1 - flips) * special.expit(rate.scale * values)
        votes.append(wrong / (wrong + right))
    return np.mean(votes, axis=0)


def without_flips(accuracy: float, flips: float) -> float:
    """Accuracy on the true labels when ``flips`` of the observed ones are wrong at random.

    >>> round(without_flips(0.68, 0.2), 3)
    0.8
    """
    return 0.5 if flips >= 0.5 else min(1.0, max(0.0, (accuracy - flips) / (1 - 2 * flips)))
