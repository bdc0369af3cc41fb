"""Direct preference optimisation (Rafailov et al. 2023, eq. 7), with label smoothing (Mitchell 2023).

    loss   -log sigmoid(beta * ((log pi - log ref)_chosen - (log pi - log ref)_rejected)), sums over pairs

The summed reference log-probs are computed once, before the first step, and travel with the batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tightrope.algorithms.options import DPOOptions
from tightrope.algorithms.reward_modelling import pairs_ordered
from tightrope.maths.preference_losses import dpo
from tightrope.maths.ragged import segment_sum
from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import Role
from tightrope.types import Loss, LossTerm, Preferences, TokenRows


class DPO:
    def __init__(self, policy: Role, options: DPOOptions) -> None:
        self._policy = policy
        self._options = options

    def counts(self, batch: Preferences) -> Mapping[str, int]:
        return {"preference": len(batch)}

    def loss(self, batch: Preferences) -> Loss:
        if batch.ref_logprobs is None:
            raise ValueError("DPO needs reference log-probs in its batches")
        policy, reference = answer_logprobs(self._policy, batch.rows).reshape(-1, 2), batch.ref_logprobs.reshape(-1, 2)
        pairs = dpo(
            policy[:, 0],
            policy[:, 1],
            reference[:, 0],
            reference[:, 1],
            beta=self._options.beta,
            label_smoothing=self._options.label_smoothing,
        )
        total, count = pairs.losses.sum(), len(batch)
        return Loss(
            terms={"preference": LossTerm(total, count)},
            stats={
                "loss": (float(total.detach()), count),
                "accuracy": (pairs_ordered(pairs.chosen_rewards, pairs.rejected_rewards), count),
                "reward_chosen": (float(pairs.chosen_rewards.sum()), count),
                "reward_rejected": (float(pairs.rejected_rewards.sum()), count),
                "logp_chosen": (float(policy[:, 0].detach().sum()), count),
                "logp_rejected": (float(policy[:, 1].detach().sum()), count),
            },
        )


def answer_logprobs(role: Role, rows: TokenRows) -> Tensor:
    """Summed log-prob of each answer at temperature 1, f32 [sequences]."""
    return segment_sum(token_logprobs(role, rows, temperature=1.0).logprobs, rows.action_offsets)


@torch.no_grad()
def reference_logprobs(reference: Role, pairs: Preferences, token_budget: int | None) -> Tensor:
    """``Preferences.ref_logprobs`` for a whole data set, f32 [2 * pairs]."""
    return torch.cat([answer_logprobs(reference, batch.rows) for batch in pairs.microbatches(token_budget)])
