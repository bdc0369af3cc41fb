"""Who says whether a text is positive? Two judges that share nothing with each other.

Gold judge          TF-IDF and logistic regression, fitted on its own half of the reviews. It labels the
                    synthetic preference pairs, so what is trained is trained towards its taste.
Independent judge   VADER's lexicon. Nothing is ever trained on it; it says whether the change is real.

Both read the whole text, prompt and response. ``gold`` and ``independent`` have the form of a reward function
(``tightrope.demo.judges:independent``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightrope.config.errors import TightropeError
from tightrope.demo.corpus import Review, continued

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    from tightrope.types import Sample

GOLD_NAME = "gold judge (TF-IDF + logistic regression on reviews)"
JUDGE_COLUMN = "gold_judge"
"""Column of the demo's prompts that names the gold judge's file, for ``gold`` as a reward function."""

RARE = 5
"""Words in fewer reviews are left out of the gold judge."""
REGULARISATION = 4.0


@dataclass(frozen=True)
class GoldJudge:
    """Log-odds of a positive author: ``intercept + sum of coefficient x TF-IDF weight`` over words."""

    terms: tuple[str, ...]
    idf: NDArray[np.float64]
    coefficients: NDArray[np.float64]
    intercept: float

    @staticmethod
    def fit(reviews: Sequence[Review]) -> GoldJudge:
        """On whole reviews by single words: fitted on sentences it is less sure of the sentences it will read."""
        require_sklearn()
        from sklearn.linear_model import LogisticRegression

        weights = tfidf()
        features = weights.fit_transform([review.text.lower() for review in reviews])
        model = LogisticRegression(C=REGULARISATION, max_iter=300).fit(features, [r.positive for r in reviews])
        terms = tuple(weights.get_feature_names_out().tolist())
        return GoldJudge(terms, np.array(weights.idf_, np.float64), model.coef_[0], float(model.intercept_[0]))

    def log_odds(self, texts: Sequence[str]) -> NDArray[np.float64]:
        weights = tfidf({term: index for index, term in enumerate(self.terms)})
        weights.idf_ = self.idf
        features: Any = weights.transform(texts)
        return features @ self.coefficients + self.intercept

    def probabilities(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """That the author liked the movie, 0-1."""
        return 1.0 / (1.0 + np.exp(-self.log_odds(texts)))

    def save(self, path: Path) -> None:
        """Plain arrays, no pickle."""
        np.savez(
            path,
            terms=np.array(self.terms),
            idf=self.idf,
            coefficients=self.coefficients,
            intercept=np.array(self.intercept),
        )

    @staticmethod
    def load(path: Path) -> GoldJudge:
        try:
            with np.load(path, allow_pickle=False) as arrays:
                terms = tuple(arrays["terms"].tolist())
                return GoldJudge(terms, arrays["idf"], arrays["coefficients"], float(arrays["intercept"]))
        except (OSError, ValueError, KeyError) as error:
            raise TightropeError(
                f"not a gold judge: {error}", where=str(path), fix="run `tightrope demo` again"
            ) from error


def tfidf(vocabulary: dict[str, int] | None = None) -> TfidfVectorizer:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(min_df=RARE, sublinear_tf=True, vocabulary=vocabulary)


def vader_scores(texts: Sequence[str]) -> list[float]:
    """VADER's compound score of each text, -1 to 1."""
    analyzer = vader()
    return [float(analyzer.polarity_scores(text)["compound"]) for text in texts]


def gold(samples: list[Sample]) -> list[float]:
    """Reward function: the gold judge's log-odds. Each row names the judge's file in its column ``gold_judge``."""
    if not samples:
        return []
    row = samples[0].prompt.row
    if JUDGE_COLUMN not in row:
        raise TightropeError(f"no column {JUDGE_COLUMN!r}", fix="use the prompts that `tightrope demo` wrote")
    return loaded(Path(row[JUDGE_COLUMN])).log_odds([text_of(sample) for sample in samples]).tolist()


def independent(samples: list[Sample]) -> list[float]:
    """Reward function: VADER's compound score."""
    return vader_scores([text_of(sample) for sample in samples])


def text_of(sample: Sample) -> str:
    return continued(sample.prompt.text, sample.response)


def first_is_preferred(first: Sequence[float], second: Sequence[float], seed: int) -> list[bool]:
    """One noisy vote a pair, after Bradley and Terry: P(first preferred) = sigmoid(first log-odds - second's)."""
    votes = random.Random(f"votes {seed}")
    return [votes.random() < 1.0 / (1.0 + math.exp(b - a)) for a, b in zip(first, second, strict=True)]


@cache
def loaded(path: Path) -> GoldJudge:
    return GoldJudge.load(path)


@cache
def vader() -> SentimentIntensityAnalyzer:
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError as error:
        raise TightropeError("the demo needs vaderSentiment", fix="pip install 'tightrope[demo]'") from error
    return SentimentIntensityAnalyzer()


def require_sklearn() -> None:
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise TightropeError("the demo needs scikit-learn", fix="pip install 'tightrope[demo]'") from error
