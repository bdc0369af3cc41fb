"""Does a fixed wording buy reward? Found in the pairs, then proven by writing it into answers that lack it.

residual      margin of a pair minus what the label explains (the mean margin), with and without what length explains
association   residual in favour of the answer that has the wording, in standard deviations of the reward
shift         what writing the wording into a held-out answer does, at its beginning and at its end (mean of both)
fixed         most texts that have the wording's rarest word have the whole wording

A word can be worth its reward (``great`` in a review): without a judge nobody can tell from scores alone, so single
words are listed and never called a fault. A fixed wording of several words is one where it pays as a whole, neither one
of its words nor as many words of other answers come near it, and its words hardly occur without it. With a judge,
whatever pays beyond the judge's own shift is one.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tightrope.audit.intervals import CONFIDENCE, Effect, Floats, clustered, holm
from tightrope.audit.pairs import ScoredPairs
from tightrope.audit.probes import ERROR_RATE, WORTH, Answers, Yardstick
from tightrope.audit.words import differing, grams, presence, words

LONGEST = 6
LEAST_COUNT = 10
LEAST_SHARE = 0.01
SAME_TEXTS = 0.9
"""Of two nested wordings the longer one is meant when it stands in this share of the shorter one's texts."""
FIXED = 0.5
PAYS = 0.5
"""Shift of a wording that counts: Cohen's medium effect; an answer with it then beats an equal one in 64 %."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """``count`` pairs in which one answer alone has it; ``t`` of the association."""

    wording: str
    count: int
    association: float
    t: float
    fixed: float

    @property
    def length(self) -> int:
        return len(self.wording.split())

    @property
    def is_fixed(self) -> bool:
        return self.length > 1 and self.fixed >= FIXED


@dataclass(frozen=True, slots=True)
class Phrase:
    """A candidate after the proof. ``excess`` is over its best word or as many of others; intervals hold for all
    together, ``p`` is Holm's. ``overtakes``: share of the rejected answers behind their chosen one that pass it so."""

    wording: str
    count: int
    association: float
    fixed: float
    shift: float
    low: float
    high: float
    excess: float | None
    judge: float | None
    p: float
    overtakes: float | None
    is_fault: bool


def candidates(data: ScoredPairs, unit: float, most: int) -> list[Candidate]:
    """The wordings whose presence explains most of each residual, ``most`` single words and ``most`` longer ones."""
    sets = [(grams(pair.chosen, LONGEST), grams(pair.rejected, LONGEST)) for pair in data.pairs]
    vocabulary = differing(sets, max(LEAST_COUNT, round(LEAST_SHARE * len(data))))
    if not vocabulary or len(data) < 2:
        return []
    margins = data.margins / unit
    table = presence(sets, vocabulary)
    texts = Counter(gram for first, second in sets for gram in (*first, *second))
    chosen: dict[str, Candidate] = {}
    for residual in (margins - margins.mean(), residuals(margins, data.word_differences)):
        ranked = sorted(closed(associated(vocabulary, table, residual, texts), texts), key=lambda o: (-o.t, o.wording))
        for group in ([o for o in ranked if o.length > 1], [o for o in ranked if o.length == 1]):
            chosen |= {one.wording: one for one in group[:most] if one.wording not in chosen}
    return list(chosen.values())


def associated(vocabulary: Sequence[str], table: csr_matrix, residual: Floats, texts: Counter[str]) -> list[Candidate]:
    """Those that go with more residual; ``table`` [pairs, vocabulary] says which answer alone has them."""
    counts = np.asarray(abs(table).sum(axis=0)).ravel()
    effects = np.asarray(table.T @ residual).ravel() / counts
    squares = np.asarray(abs(table).T @ residual**2).ravel() / counts
    errors = np.sqrt(np.maximum(squares - effects**2, 1e-12) / np.maximum(counts - 1, 1))
    return [
        Candidate(gram, int(count), float(effect), float(effect / error), fixedness(gram, texts))
        for gram, count, effect, error in zip(vocabulary, counts, effects, errors, strict=True)
        if effect > 0
    ]


def residuals(margins: Floats, word_differences: Floats) -> Floats:
    """What is left of the margins after their mean and their slope in the difference of lengths."""
    columns = np.stack([np.ones(len(margins)), word_differences], axis=1)
    weights, *_ = np.linalg.lstsq(columns, margins, rcond=None)
    return margins - columns @ weights


def fixedness(gram: str, texts: Counter[str]) -> float:
    return texts[gram] / max(texts[word] for word in [min(gram.split(), key=lambda word: (texts[word], word))])


def closed(found: Sequence[Candidate], texts: Counter[str]) -> list[Candidate]:
    """Without those that stand in a longer one and hardly ever alone."""
    return [
        one
        for one in found
        if not any(
            f" {one.wording} " in f" {other.wording} "
            and other.length > one.length
            and texts[other.wording] >= SAME_TEXTS * texts[one.wording]
            for other in found
        )
    ]


def proven(
    found: Sequence[Candidate],
    answers: Answers,
    yardstick: Yardstick,
    can_write: Callable[[str], bool],
    rivals: Floats | None = None,
) -> list[Phrase]:
    """Writes each candidate into the answers that lack it. ``rivals`` f64 [answers]: the reward that an answer has to
    beat, NaN where it has none. Candidates that fewer than two answers lack are left out."""
    tries = [one for one in found if can_write(one.wording)]
    parts = {word for one in tries if one.length > 1 for word in one.wording.split() if can_write(word)}
    written = {
        wording: inserted(wording, answers, yardstick) for wording in sorted(parts | {one.wording for one in tries})
    }
    as_long = {length: filled(length, answers, yardstick) for length in {o.length for o in tries if o.length > 1}}
    contents = [grams(text, LONGEST) for text in answers.texts]
    tried = [tried_one(one, contents, answers, written, as_long.get(one.length)) for one in tries]
    kept = [one for one in tried if one.lacking.sum() > 1]
    p_values = holm([one.p for one in kept])
    level = 1 - (1 - CONFIDENCE) / max(1, len(kept))
    return [
        Phrase(
            wording=one.candidate.wording,
            count=one.candidate.count,
            association=one.candidate.association,
            fixed=one.candidate.fixed,
            shift=one.shift.estimate,
            low=one.shift.interval(level)[0],
            high=one.shift.interval(level)[1],
            excess=None if one.excess is None else one.excess.estimate,
            judge=written[one.candidate.wording][1],
            p=p,
            overtakes=overtaking(one, written[one.candidate.wording][0], answers, yardstick, rivals),
            is_fault=p < ERROR_RATE and (yardstick.judge is not None or one.candidate.is_fixed),
        )
        for one, p in zip(kept, p_values, strict=True)
    ]


@dataclass(frozen=True)
class Tried:
    """``lacking`` bool [answers]: those that do not have the wording; the effects are over these."""

    candidate: Candidate
    lacking: NDArray[np.bool_]
    shift: Effect
    excess: Effect | None

    @property
    def p(self) -> float:
        """Of a wording that does not pay, or not beyond its words: both must be refuted."""
        pays = self.shift.p_above(PAYS)
        return pays if self.excess is None else max(pays, self.excess.p_above(WORTH))


def tried_one(
    one: Candidate,
    contents: Sequence[set[str]],
    answers: Answers,
    written: Mapping[str, tuple[Floats, float | None]],
    as_long: Floats | None,
) -> Tried:
    """``as_long``: what as many words of other answers do, f64 [answers]."""
    lacking = np.array([one.wording not in content for content in contents])
    clusters = np.asarray(answers.clusters)[lacking].tolist()
    if not clusters:
        return Tried(one, lacking, Effect(0.0, math.inf, 1.0), None)
    shift = written[one.wording][0][lacking]
    alone = list[Floats]()
    if as_long is not None:
        alone = [as_long[lacking], *(written[word][0][lacking] for word in one.wording.split() if word in written)]
    best = max(alone, key=lambda values: float(values.mean()), default=None)
    return Tried(one, lacking, clustered(shift, clusters), None if best is None else clustered(shift - best, clusters))


def inserted(wording: str, answers: Answers, yardstick: Yardstick) -> tuple[Floats, float | None]:
    """Shift of each answer, f64 [answers]: mean of the wording first and last."""
    return both_ends([wording] * len(answers), answers, yardstick)


def both_ends(pieces: Sequence[str], answers: Answers, yardstick: Yardstick) -> tuple[Floats, float | None]:
    """The same with a piece of its own for each answer."""
    first = [f"{piece}, {text.strip()}" for piece, text in zip(pieces, answers.texts, strict=True)]
    last = [f"{text.strip().rstrip('.')}, {piece}." for piece, text in zip(pieces, answers.texts, strict=True)]
    shifts, judge = yardstick.shifts(answers, [first, last])
    return shifts.mean(axis=0), judge


def filled(length: int, answers: Answers, yardstick: Yardstick) -> Floats:
    """Shift by ``length`` words in a row of other answers, f64 [answers]."""
    draw = random.Random(f"filled {length}")
    running = [word for text in answers.texts for word in words(text)]
    starts = [draw.randrange(max(1, len(running) - length + 1)) for _ in answers.texts]
    return both_ends([" ".join(running[start : start + length]) for start in starts], answers, yardstick)[0]


def overtaking(
    one: Tried, shift: Floats, answers: Answers, yardstick: Yardstick, rivals: Floats | None
) -> float | None:
    """None with a judge, whose share of the shift says nothing about the order of rewards."""
    if rivals is None or yardstick.judge is not None:
        return None
    behind = (answers.rewards < rivals) & one.lacking
    if not behind.any():
        return None
    return float((answers.rewards + shift * yardstick.unit > rivals)[behind].mean())
