"""How far may one update move the policy: clipped surrogates, per action (PPO) and per sequence (RLOO).

ratio    ρ = π(a) / π_old(a) = exp(logprobs − old_logprobs), the log-ratio clamped to ±20 before exp
losses   to be minimised, one number an item; divide their sum by the global count
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tightrope.maths.advantages import require_per_sequence
from tightrope.maths.kl import clamp_log_ratio
from tightrope.maths.ragged import require_same_shape, segment_sum, widen

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class PolicyLoss(NamedTuple):
    """Per item: the loss, the ratio, and where the clip took the gradient away: below 1, above 1, and by the dual clip.
    Detached but the first."""

    losses: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    dual_clipped: Tensor

    @property
    def clipped(self) -> Tensor:
        return self.clipped_low | self.clipped_high


def ppo_clip(
    logprobs: Float[Tensor, " actions"],
    old_logprobs: Float[Tensor, " actions"],
    advantages: Float[Tensor, " actions"],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """Lᵢ = −min(ρᵢ Aᵢ, clip(ρᵢ, 1 − clip_low, 1 + clip_high) Aᵢ). Schulman et al. 2017, eq. 7.

    ``clip_low`` = ``clip_high`` is PPO; a higher ``clip_high`` is DAPO's clip-higher. ``dual_clip`` c bounds the loss
    of a bad action too: where A < 0, Lᵢ ← min(Lᵢ, −c A) (Ye et al. 2020, eq. 5). Beyond the clamp of the log-ratio the
    gradient is 0. Raises ValueError on different shapes, clips outside 0 < clip_low < 1, clip_high > 0, or c ≤ 1.

    >>> loss = ppo_clip(torch.tensor([1.5]).log(), torch.zeros(1), torch.ones(1), 0.2, 0.2)
    >>> round(loss.losses.item(), 6), loss.clipped.tolist()
    (-1.2, [True])
    """
    require_same_shape({"logprobs": logprobs, "old_logprobs": old_logprobs, "advantages": advantages})
    return _clipped_surrogate(widen(logprobs) - widen(old_logprobs), advantages, clip_low, clip_high, dual_clip)


def sequence_clip(
    logprobs: Float[Tensor, " actions"],
    old_logprobs: Float[Tensor, " actions"],
    advantages: Float[Tensor, " sequences"],
    action_offsets: Int[Tensor, " bounds"],
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """PPO's clip on the ratio of whole responses: ρⱼ = Π_{i in j} π(aᵢ)/π_old(aᵢ) = exp Σᵢ (logprobs − old_logprobs)ᵢ.

    The product, not the geometric mean (Ahmadian et al. 2024 with the clip of Schulman et al. 2017). A response without
    actions has ratio 1 and loss 0. Raises ValueError like ``ppo_clip`` and when the offsets do not fit.

    >>> loss = sequence_clip(torch.tensor([0.1, 0.2]), torch.zeros(2), torch.ones(1), torch.tensor([0, 2]), 0.2, 0.5)
    >>> round(loss.losses.item(), 6)
    -1.349859
    """
    require_same_shape({"logprobs": logprobs, "old_logprobs": old_logprobs})
    require_per_sequence("advantages", advantages, action_offsets)
    log_ratio = segment_sum(widen(logprobs) - widen(old_logprobs), action_offsets)
    present = (action_offsets.diff() > 0).to(advantages.device)
    return _clipped_surrogate(log_ratio, torch.where(present, advantages, 0.0), clip_low, clip_high)


def aggregation_weights(
    action_offsets: Int[Tensor, " bounds"], aggregation: str, max_tokens: int
) -> tuple[Float[Tensor, " actions"], int]:
    """(wᵢ, n): the aggregated loss is Σ wᵢ Lᵢ / n with n added up over the whole minibatch, so micro-batches change
    nothing.

        token_mean                wᵢ = 1                         n = actions
        sequence_mean_token_mean  wᵢ = 1 / length of i's response   n = responses     (GRPO)
        sequence_mean_token_sum   wᵢ = 1                         n = responses
        token_sum_const           wᵢ = 1 / max_tokens            n = responses     (Dr. GRPO, Liu et al. 2025)

    A response without actions is not counted. Raises ValueError for an unknown aggregation.

    >>> weights, count = aggregation_weights(torch.tensor([0, 2, 3]), "sequence_mean_token_mean", 4)
    >>> weights.tolist(), count
    ([0.5, 0.5, 1.0], 2)
    """
    lengths = action_offsets.diff()
    ones, responses = torch.ones(int(action_offsets[-1]), dtype=torch.float64), int((lengths > 0).sum())
    match aggregation:
        case "token_mean":
            return ones, len(ones)
        case "sequence_mean_token_mean":
            return ones / lengths.repeat_interleave(lengths), responses
        case "sequence_mean_token_sum":
            return ones, responses
        case "token_sum_const":
            return ones / max_tokens, responses
        case _:
            raise ValueError(f"unknown aggregation {aggregation!r}")


def _clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> PolicyLoss:
    if not (0.0 < clip_low < 1.0 and clip_high > 0.0):
        raise ValueError(f"clip range must satisfy 0 < low < 1 and high > 0, found {clip_low} and {clip_high}")
    advantages = widen(advantages)
    ratio = clamp_log_ratio(log_ratio).exp()
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high))
    seen = ratio.detach()
    dual_clipped = torch.zeros_like(seen, dtype=torch.bool)
    if dual_clip is not None:
        if dual_clip <= 1.0:
            raise ValueError(f"dual_clip must be over 1, found {dual_clip}")
        dual_clipped = (advantages < 0) & (losses > -dual_clip * advantages)
        losses = torch.where(dual_clipped, -dual_clip * advantages, losses)
    return PolicyLoss(
        losses=losses,
        ratio=seen,
        clipped_low=(seen < 1.0 - clip_low) & (advantages < 0),
        clipped_high=(seen > 1.0 + clip_high) & (advantages > 0),
        dual_clipped=dual_clipped,
    )
