"""Learning from "this answer is better than that one": Bradley-Terry for reward models, DPO for policies.

Every function takes one number per answer, [pairs], and returns one number per pair, to be minimised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tightrope.maths.ragged import require_same_shape, widen

if TYPE_CHECKING:
    from jaxtyping import Float


class DPOLoss(NamedTuple):
    """Per pair: the loss, and the implicit rewards β (log π − log π_ref) of both answers (detached)."""

    losses: Tensor
    chosen_rewards: Tensor
    rejected_rewards: Tensor


def bradley_terry(
    chosen: Float[Tensor, " pairs"],
    rejected: Float[Tensor, " pairs"],
    margin: Float[Tensor, " pairs"] | None = None,
    label_smoothing: float = 0.0,
) -> Float[Tensor, " pairs"]:
    """L = −(1 − ε) log σ(d) − ε log σ(−d), d = r_chosen − r_rejected − margin. Bradley & Terry 1952; Stiennon et al.
    2020, eq. 1; margin as in Touvron et al. 2023 (Llama 2), eq. 2; ε = ``label_smoothing`` is the assumed share of
    wrong labels.

    Scores and margin in units of reward. Stable for any d. Raises ValueError on shapes that differ (a margin [pairs, 1]
    would broadcast) or ε outside [0, 0.5).

    >>> round(bradley_terry(torch.tensor([1.0]), torch.tensor([0.0])).item(), 6)
    0.313262
    """
    tensors = {"chosen": chosen, "rejected": rejected}
    require_same_shape(tensors if margin is None else tensors | {"margin": margin})
    difference = widen(chosen) - widen(rejected)
    return _preference_loss(difference if margin is None else difference - margin, label_smoothing)


def centering(chosen: Float[Tensor, " pairs"], rejected: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
    """L = (r_chosen + r_rejected)²: keeps scores near 0, which Bradley-Terry leaves free. Eisenstein et al. 2023.

    >>> centering(torch.tensor([1.0]), torch.tensor([0.5])).tolist()
    [2.25]
    """
    require_same_shape({"chosen": chosen, "rejected": rejected})
    return (widen(chosen) + widen(rejected)).square()


def dpo(
    policy_chosen: Float[Tensor, " pairs"],
    policy_rejected: Float[Tensor, " pairs"],
    ref_chosen: Float[Tensor, " pairs"],
    ref_rejected: Float[Tensor, " pairs"],
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> DPOLoss:
    """L = −(1 − ε) log σ(d) − ε log σ(−d), d = β [(log π − log π_ref)_chosen − (log π − log π_ref)_rejected].

    Rafailov et al. 2023, eq. 7; ε > 0 is conservative DPO (Mitchell 2023). Inputs are summed log-probs of whole
    answers, nats. ln 2 when the policy is the reference. Raises ValueError on shapes that differ, beta ≤ 0 or ε outside
    [0, 0.5).

    >>> policy, reference = torch.tensor([[-9.0], [-14.0]]), torch.tensor([[-10.0], [-12.0]])
    >>> round(dpo(*policy, *reference, beta=0.1).losses.item(), 6)
    0.554355
    """
    require_same_shape(
        {
            "policy_chosen": policy_chosen,
            "policy_rejected": policy_rejected,
            "ref_chosen": ref_chosen,
            "ref_rejected": ref_rejected,
        }
    )
    if beta <= 0:
        raise ValueError(f"beta must be positive, found {beta}")
    chosen_rewards = beta * (widen(policy_chosen) - widen(ref_chosen))
    rejected_rewards = beta * (widen(policy_rejected) - widen(ref_rejected))
    losses = _preference_loss(chosen_rewards - rejected_rewards, label_smoothing)
    return DPOLoss(losses, chosen_rewards.detach(), rejected_rewards.detach())


def _preference_loss(difference: Tensor, label_smoothing: float) -> Tensor:
    if not 0.0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing must lie in [0, 0.5), found {label_smoothing}")
    if label_smoothing == 0.0:
        return -torch.nn.functional.logsigmoid(difference)
    return -(1.0 - label_smoothing) * torch.nn.functional.logsigmoid(
        difference
    ) - label_smoothing * torch.nn.functional.logsigmoid(-difference)
