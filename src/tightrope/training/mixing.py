"""Pretraining-loss mixing (PTX): while the policy follows the reward, it goes on predicting plain text.

loss        L = policy terms + coefficient · mean over corpus tokens of -log p(token | the ones before it)

Ouyang et al. 2022 (InstructGPT), eq. 2. Both gradients are added before one optimizer step, so Adam's moments and the
clipping of the norm see their sum. Log-probs of the corpus are at temperature 1, whatever the rollout's is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tightrope.config.schedule import Now
from tightrope.config.schema import PTXSection
from tightrope.data.corpus import CorpusStream
from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import Role
from tightrope.types import Demonstrations, Experience, Loss, LossTerm

Gradients = Mapping[str, Tensor]


@dataclass(frozen=True)
class PretrainingMix:
    """``parameters`` are the policy's; ``trained`` tells the groups that move in a step."""

    options: PTXSection
    corpus: CorpusStream
    policy: Role
    parameters: Mapping[str, nn.Parameter]
    now: Now
    trained: Callable[[int], Collection[str]]

    def draw(self, step: int, minibatch: Experience) -> Demonstrations | None:
        """The corpus side of one optimizer step; None in a step without."""
        options = self.options
        if step % options.every or "policy" not in self.trained(step) or self.now(options.coefficient) == 0:
            return None
        return self.corpus.draw(math.ceil(options.ratio * minibatch.rows.n_actions))

    def counts(self, batch: Demonstrations) -> Mapping[str, int]:
        return {"ptx": batch.rows.n_actions}

    def loss(self, batch: Demonstrations) -> Loss:
        nll = -token_logprobs(self.policy, batch.rows, temperature=1.0).logprobs.sum()
        return Loss({"ptx": LossTerm(nll, batch.rows.n_actions, self.now(self.options.coefficient))})

    def gradients(self, step: int) -> Gradients | None:
        """A copy of the policy's gradients so far, in the steps in which the share is measured."""
        every = self.options.measure_every
        if every == 0 or step % (every * self.options.every):
            return None
        return {name: p.grad.detach().clone() for name, p in self.parameters.items() if p.grad is not None}

    def share(self, before: Gradients) -> dict[str, tuple[float, float]]:
        """What was added to ``before``, against it; nothing where one of them is 0."""
        after = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        own = dot = rest = 0.0
        for name, gradient in after.items():
            other = before.get(name)
            added = (gradient if other is None else gradient - other).double()
            own += float(added.square().sum())
            if other is not None:
                dot += float((added * other).sum())
                rest += float(torch.linalg.vector_norm(other, dtype=torch.float64)) ** 2
        if not (own > 0 and rest > 0):
            return {}
        return {
            "grad_share_ptx": (math.sqrt(own / rest), 1.0),
            "grad_cosine_ptx": (dot / math.sqrt(own * rest), 1.0),
        }
