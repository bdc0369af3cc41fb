"""Reward-model training: Bradley-Terry on pairs, one scalar an answer (Stiennon et al. 2020, eq. 1).

loss      -log sigmoid(r_chosen - r_rejected) + center_coef * (r_chosen + r_rejected)^2, sums over pairs
accuracy  1 where the chosen answer scores higher, 0.5 for a tie
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tightrope.algorithms.options import RewardModelOptions
from tightrope.maths.diagnostics import pair_outcomes
from tightrope.maths.preference_losses import bradley_terry, centering
from tightrope.models.packed_forward import sequence_scores
from tightrope.models.roles import Role
from tightrope.types import Loss, LossTerm, Preferences


class RewardModelling:
    def __init__(self, reward: Role, options: RewardModelOptions) -> None:
        self._reward = reward
        self._options = options

    def counts(self, batch: Preferences) -> Mapping[str, int]:
        return {"preference": len(batch), "centering": len(batch)}

    def loss(self, batch: Preferences) -> Loss:
        scores = sequence_scores(self._reward, batch.rows).reshape(-1, 2)
        chosen, rejected = scores[:, 0], scores[:, 1]
        preference = bradley_terry(chosen, rejected).sum()
        return Loss(
            terms={
                "preference": LossTerm(preference, len(batch)),
                "centering": LossTerm(centering(chosen, rejected).sum(), len(batch), self._options.center_coef),
            },
            stats={
                "loss": (float(preference.detach()), len(batch)),
                "accuracy": (pairs_ordered(chosen.detach(), rejected.detach()), len(batch)),
                "margin": (float((chosen - rejected).detach().sum()), len(batch)),
            },
        )


def pairs_ordered(chosen: Tensor, rejected: Tensor) -> float:
    """Pairs in the right order; a tie counts one half.

    >>> import torch
    >>> pairs_ordered(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 1.0]))
    1.5
    """
    outcomes = pair_outcomes(chosen, rejected)
    return outcomes.right + outcomes.tied / 2
