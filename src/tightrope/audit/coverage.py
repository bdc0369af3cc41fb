"""What do the pairs cover? Duplicates, lengths, topics, and how far the policy's answers lie from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from tightrope.audit.intervals import Floats
from tightrope.audit.measures import Share, share
from tightrope.audit.pairs import TextPair
from tightrope.audit.words import tfidf

NEAR = 0.9
"""Cosine of word and word-pair weights from which two texts are near-duplicates."""
ROWS_AT_ONCE = 500
FAR_QUANTILE = 0.95
SKETCH = 256


@dataclass(frozen=True)
class Coverage:
    """``near_duplicates``: share of the pairs with a twin among the others (prompt and both answers together),
    ``leaked``: of the held-out pairs with a twin among the training pairs. ``words_...``: 5, 50 and 95 % quantiles of
    the answers' words. ``topics``: number of equally strong directions that spread as the prompts' words do."""

    pairs: int
    prompts: int
    near_duplicates: float
    leaked: float | None
    words_chosen: tuple[float, float, float]
    words_rejected: tuple[float, float, float]
    topics: float


@dataclass(frozen=True)
class Distance:
    """Answers of the policy that lie farther from every training answer than 95 % of the held-out answers do; 5 % would
    be as near. ``farthest``: numbers of the farthest ones, farthest first."""

    beyond: Share
    median: float
    median_held_out: float
    farthest: tuple[int, ...]


def coverage(train: Sequence[TextPair], held_out: Sequence[TextPair], prompts: int) -> Coverage:
    pairs = [*train, *held_out]
    table = tfidf([f"{pair.prompt.text} {pair.chosen} {pair.rejected}" for pair in pairs])
    nearest = nearest_cosine(table, table, apart=True)
    leaked = None
    if train and held_out:
        leaked = float((nearest_cosine(table[len(train) :], table[: len(train)]) >= NEAR).mean())
    return Coverage(
        pairs=len(pairs),
        prompts=prompts,
        near_duplicates=float((nearest >= NEAR).mean()),
        leaked=leaked,
        words_chosen=quantiles([pair.chosen for pair in pairs]),
        words_rejected=quantiles([pair.rejected for pair in pairs]),
        topics=spread(tfidf([pair.prompt.text for pair in pairs])),
    )


def quantiles(texts: Sequence[str]) -> tuple[float, float, float]:
    low, middle, high = np.quantile([len(text.split()) for text in texts], [0.05, 0.5, 0.95])
    return float(low), float(middle), float(high)


def nearest_cosine(rows: csr_matrix, others: csr_matrix, *, apart: bool = False) -> Floats:
    """Largest cosine of each row with any of the others; ``apart``: both are the same texts, none is its own twin."""
    count: int = rows.get_shape()[0]
    found = np.zeros(count)
    for start in range(0, count, ROWS_AT_ONCE):
        block = np.asarray((rows[start : start + ROWS_AT_ONCE] @ others.T).todense())
        if apart:
            inside = np.arange(block.shape[0])
            block[inside, start + inside] = 0.0
        found[start : start + ROWS_AT_ONCE] = block.max(axis=1) if block.shape[1] else 0.0
    return found


def spread(table: csr_matrix) -> float:
    """Participation ratio of the second moments, (sum of eigenvalues)^2 / sum of their squares, in a random sketch: n
    texts that share no word give about n (at most the sketch's width), n equal texts give 1.

    >>> round(spread(tfidf(["one text"] * 5)), 3)
    1.0
    """
    columns = np.unique(table.indices)
    signs = np.random.default_rng(0).standard_normal((len(columns), SKETCH)) / np.sqrt(SKETCH)
    sketch = table[:, columns] @ signs
    values = np.linalg.svd(sketch, compute_uv=False) ** 2
    return float(values.sum() ** 2 / (values**2).sum()) if values.sum() else 0.0


def distance(
    answers: Sequence[str], clusters: Sequence[int], train: Sequence[str], held_out: Sequence[str]
) -> Distance:
    """1 - cosine to the nearest training answer."""
    table = tfidf([*train, *held_out, *answers], idf_of=train)
    known, rest = table[: len(train)], table[len(train) :]
    away = 1 - nearest_cosine(rest, known)
    usual, ours = away[: len(held_out)], away[len(held_out) :]
    border = float(np.quantile(usual, FAR_QUANTILE))
    order = np.argsort(-ours, kind="stable")
    return Distance(
        beyond=share((ours > border).astype(np.float64), clusters),
        median=float(np.median(ours)),
        median_held_out=float(np.median(usual)),
        farthest=tuple(int(i) for i in order[:5] if ours[i] > border),
    )
