"""What an audit reads: pairs as texts, their scores, and single answers. No file and no network here.

cluster   number of the prompt; answers to one prompt are no independent evidence
unit      standard deviation of the reward over held-out answers: what every shift is told in
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tightrope.audit.intervals import Floats
from tightrope.data.splits import prompt_key
from tightrope.types import Prompt, Sample

Scorer = Callable[[Sequence[Sample]], Sequence[float]]
"""A reward model's or a judge's numbers, one a sample."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """``where`` is the file and line it comes from; ``graded`` the numbers behind the label, where the row has them
    (columns ``chosen_score``, ``rejected_score``)."""

    prompt: Prompt
    chosen: str
    rejected: str
    where: str
    graded: tuple[float, float] | None = None


@dataclass(frozen=True)
class ScoredPairs:
    """``chosen`` and ``rejected`` f64 [pairs], ``clusters`` [pairs]."""

    pairs: Sequence[TextPair]
    chosen: Floats
    rejected: Floats
    clusters: Sequence[int]

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def margins(self) -> Floats:
        return self.chosen - self.rejected

    @property
    def std(self) -> float:
        """Of all scores; 0 where they do not vary."""
        scores = np.concatenate([self.chosen, self.rejected])
        return float(scores.std()) if len(scores) and float(np.ptp(scores)) else 0.0

    @property
    def word_differences(self) -> Floats:
        """Words of the chosen answer minus words of the rejected one, f64 [pairs]."""
        return np.array([len(p.chosen.split()) - len(p.rejected.split()) for p in self.pairs], np.float64)


def answer(prompt: Prompt, text: str) -> Sample:
    """An answer that ended by itself."""
    return Sample(prompt, text, "stop", len(text.split()) + 1)


def scored(pairs: Sequence[TextPair], score: Scorer) -> ScoredPairs:
    samples = [answer(pair.prompt, text) for pair in pairs for text in (pair.chosen, pair.rejected)]
    scores = np.array(score(samples) if samples else [], np.float64)
    return ScoredPairs(pairs, scores[0::2], scores[1::2], clusters_of(pairs))


def clusters_of(pairs: Sequence[TextPair]) -> list[int]:
    """Pairs with one prompt have one number.

    >>> a, b = (Prompt(i, (), text, {}) for i, text in enumerate(("x", "y")))
    >>> clusters_of([TextPair(a, "1", "2", ""), TextPair(b, "1", "2", ""), TextPair(a, "3", "4", "")])
    [0, 1, 0]
    """
    numbers: dict[str, int] = {}
    return [numbers.setdefault(prompt_key(pair.prompt.text), len(numbers)) for pair in pairs]
