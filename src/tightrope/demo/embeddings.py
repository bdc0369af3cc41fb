"""Who says whether a text is positive, without counting words? Logistic regression on a network's hidden states.

    embedding = mean over the text's tokens of the trunk's last hidden state
    score     = 2 sigmoid(intercept + coefficients . (embedding - mean) / spread) - 1        from -1 to 1

Fitted on single sentences of reviews that nobody else sees. The network is the demo's base model and never changes;
nothing is trained on this judge. It shares no words with the gold judge, whose features are single words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tightrope.data.chat_format import ChatFormat
from tightrope.demo.corpus import TOKEN, Review, readable
from tightrope.demo.judges import require_sklearn
from tightrope.maths.diagnostics import Interval, wilson_interval
from tightrope.models.load import load_tokenizer
from tightrope.models.packed_forward import hidden_states
from tightrope.models.roles import load_policy
from tightrope.types import TokenRows, microbatch_indices

STRENGTH = 0.01
"""Of scikit-learn's C: hundreds of features and about a thousand texts."""
TEXT_TOKENS = 48
"""Texts are read up to here."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class EmbeddingJudge:
    """``network``: the folder whose hidden states are read, ``token_budget`` tokens at once."""

    network: Path
    token_budget: int
    mean: Array
    spread: Array
    coefficients: Array
    intercept: float

    @staticmethod
    def fit(
        network: Path, reviews: Sequence[Review], held_out: int, token_budget: int
    ) -> tuple[EmbeddingJudge, Interval]:
        """The judge, and the share of the last ``held_out`` reviews, which it is not fitted on, that it has right."""
        require_sklearn()
        from sklearn.linear_model import LogisticRegression

        seen = embeddings(network, [readable(TOKEN.findall(review.text)) for review in reviews], token_budget)
        fitted, tested = seen[:-held_out], seen[-held_out:]
        positive = np.array([review.positive for review in reviews])
        mean, spread = fitted.mean(0), fitted.std(0) + 1e-6
        model = LogisticRegression(C=STRENGTH, max_iter=1000).fit((fitted - mean) / spread, positive[:-held_out])
        judge = EmbeddingJudge(network, token_budget, mean, spread, model.coef_[0], float(model.intercept_[0]))
        right = int(((judge.log_odds(tested) > 0) == positive[-held_out:]).sum())
        return judge, wilson_interval(right, held_out)

    def __call__(self, texts: Sequence[str]) -> list[float]:
        return np.tanh(self.log_odds(embeddings(self.network, texts, self.token_budget)) / 2).tolist()

    def log_odds(self, seen: Array) -> Array:
        return (seen - self.mean) / self.spread @ self.coefficients + self.intercept

    def save(self, path: Path) -> None:
        """Plain arrays, no pickle."""
        np.savez(
            path,
            mean=self.mean,
            spread=self.spread,
            coefficients=self.coefficients,
            intercept=np.array(self.intercept),
        )


@torch.no_grad()
def embeddings(network: Path, texts: Sequence[str], token_budget: int) -> Array:
    """[texts, hidden]; the network is gone afterwards."""
    role, chat = load_policy(network), ChatFormat(load_tokenizer(network))
    ids = [list(chat.with_prefix(chat.plain_ids(text)))[:TEXT_TOKENS] for text in texts]
    rows = TokenRows.of([([], each) for each in ids])
    means: list[torch.Tensor] = []
    for group in microbatch_indices(rows.lengths, token_budget):
        part = rows.select(group)
        states = hidden_states(role, part).float().cpu()
        means.append(torch.stack([segment.mean(0) for segment in states.split(part.lengths.tolist())]))
    return torch.cat(means).double().numpy()
