"""Supervised fine-tuning: the mean negative log-likelihood of the trained tokens (completions only)."""

from __future__ import annotations

from collections.abc import Mapping

from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import Role
from tightrope.types import Demonstrations, Loss, LossTerm


class SFT:
    def __init__(self, policy: Role) -> None:
        self._policy = policy

    def counts(self, batch: Demonstrations) -> Mapping[str, int]:
        return {"nll": batch.rows.n_actions}

    def loss(self, batch: Demonstrations) -> Loss:
        logprobs = token_logprobs(self._policy, batch.rows, temperature=1.0).logprobs
        nll = -logprobs.sum()
        count = batch.rows.n_actions
        return Loss({"nll": LossTerm(nll, count)}, {"nll_tok": (float(nll.detach()), count)})
