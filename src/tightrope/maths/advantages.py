"""Which action earned the reward: token rewards, GAE, whitening, leave-one-out baselines.

Index convention: ``values[i]`` is V of the state in which action i was taken, read at the position that predicts it;
``rewards[i]`` follows action i; the score of a response sits on its last action. A sequence may be empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tightrope.maths.ragged import (
    discounted_to_go,
    require_offsets,
    require_same_shape,
    result_dtype,
    segment_last_index,
    widen,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int


@torch.no_grad()
def token_rewards(
    scores: Float[Tensor, " sequences"],
    kl: Float[Tensor, " actions"],
    beta: float,
    action_offsets: Int[Tensor, " bounds"],
    score_clip: float | None = None,
) -> Float[Tensor, " actions"]:
    """rᵢ = −β · klᵢ + [i is the last action of its response] · score     (Ziegler et al. 2019, eq. 2, per token)

    ``kl`` in nats per action (k1), ``beta`` in reward per nat; Σᵢ rᵢ = score − β · KL of the response. ``score_clip``
    bounds the score to ±score_clip first. The score of a response without actions has no place and is left out.
    Raises ValueError when offsets, scores and kl do not belong together.

    >>> token_rewards(torch.tensor([2.0]), torch.tensor([0.5, -0.5]), 0.1, torch.tensor([0, 2])).tolist()
    [-0.05000000074505806, 2.049999952316284]
    """
    require_offsets(kl, action_offsets)
    require_per_sequence("scores", scores, action_offsets)
    offsets = action_offsets.to(kl.device)
    clipped = scores if score_clip is None else scores.double().clamp(-score_clip, score_clip)
    rewards = -beta * kl.double()
    rewards[segment_last_index(offsets)] += clipped[offsets.diff() > 0]
    return rewards.to(result_dtype(kl))


@torch.no_grad()
def gae(
    rewards: Float[Tensor, " actions"],
    values: Float[Tensor, " actions"],
    action_offsets: Int[Tensor, " bounds"],
    gamma: float,
    lam: float | Float[Tensor, " sequences"],
    bootstrap: Float[Tensor, " sequences"] | None = None,
) -> tuple[Float[Tensor, " actions"], Float[Tensor, " actions"]]:
    """Generalised advantage estimation; returns (advantages, returns). Schulman et al. 2016, eq. 11-16:

        δᵢ = rᵢ + γ Vᵢ₊₁ − Vᵢ        Aᵢ = δᵢ + γλ Aᵢ₊₁        Rᵢ = Aᵢ + Vᵢ

    V after the last action is ``bootstrap`` of the sequence: V(s_T) where it was cut, 0 where it ended; None is 0
    everywhere. ``lam`` is one number or one per sequence. Units of reward. Raises ValueError on shapes that differ.

    >>> rewards, values = torch.tensor([0.0, 0.0, 1.0]).double(), torch.tensor([0.5, 0.4, 0.3]).double()
    >>> advantages, returns = gae(rewards, values, torch.tensor([0, 3]), gamma=1.0, lam=0.95)
    >>> [round(a, 5) for a in advantages.tolist()], [round(r, 5) for r in returns.tolist()]
    ([0.43675, 0.565, 0.7], [0.93675, 0.965, 1.0])
    """
    require_same_shape({"rewards": rewards, "values": values})
    require_offsets(values, action_offsets)
    offsets, v = action_offsets.to(values.device), values.double()
    ends = segment_last_index(offsets)
    next_values = v.roll(-1)
    next_values[ends] = 0.0
    if bootstrap is not None:
        require_per_sequence("bootstrap", bootstrap, offsets)
        next_values[ends] = bootstrap.double()[offsets.diff() > 0]
    deltas = rewards + gamma * next_values - v
    advantages = discounted_to_go(deltas, offsets, lam * gamma)
    dtype = result_dtype(values)
    return advantages.to(dtype), (advantages + v).to(dtype)


def decoupled_gae(
    rewards: Float[Tensor, " actions"],
    values: Float[Tensor, " actions"],
    action_offsets: Int[Tensor, " bounds"],
    gamma: float,
    lam_policy: float | Float[Tensor, " sequences"],
    lam_critic: float | Float[Tensor, " sequences"],
    bootstrap: Float[Tensor, " sequences"] | None = None,
) -> tuple[Float[Tensor, " actions"], Float[Tensor, " actions"]]:
    """Advantages at the policy's λ, returns at the critic's λ (VC-PPO, Yuan et al. 2025; VAPO, arXiv 2504.05118).

    >>> one = torch.ones(2).double()
    >>> advantages, returns = decoupled_gae(one, one, torch.tensor([0, 2]), 1.0, 0.0, 1.0)
    >>> advantages.tolist(), returns.tolist()
    ([1.0, 0.0], [2.0, 1.0])
    """
    advantages, _ = gae(rewards, values, action_offsets, gamma, lam_policy, bootstrap)
    _, returns = gae(rewards, values, action_offsets, gamma, lam_critic, bootstrap)
    return advantages, returns


def length_adaptive_lambda(action_offsets: Int[Tensor, " bounds"], alpha: float) -> Float[Tensor, " sequences"]:
    """λ = 1 − 1 / (α · length), never below 0 (VAPO, arXiv 2504.05118, eq. 9); an empty sequence gets 0.

    Raises ValueError unless alpha > 0.

    >>> length_adaptive_lambda(torch.tensor([0, 4, 5]), 0.5).tolist()
    [0.5, 0.0]
    """
    if alpha <= 0:
        raise ValueError(f"alpha must be positive, found {alpha}")
    return (1.0 - 1.0 / (alpha * action_offsets.diff().double())).clamp(min=0.0)


@torch.no_grad()
def whiten(
    x: Float[Tensor, " items"], shift_mean: bool = True, ddof: int = 0, eps: float = 1e-8
) -> Float[Tensor, " items"]:
    """xᵢ ← (xᵢ − μ) / √(σ² + ε), plus μ again unless ``shift_mean``; μ, σ² over all items, divisor n − ddof.

    Exact cases: no items give no items; one item, or items that are all equal, have no scale and are only centred
    (0, or unchanged without ``shift_mean``). ``ddof`` 0 as in lm-human-preferences, else 1; others raise ValueError.

    >>> [round(v, 6) for v in whiten(torch.tensor([1.0, 2.0, 3.0]).double(), eps=0.0).tolist()]
    [-1.224745, 0.0, 1.224745]
    """
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, found {ddof}")
    if len(x) == 0 or bool((x == x[0]).all()):
        return torch.zeros_like(widen(x)) if shift_mean else widen(x).clone()
    wide = x.double()
    mean = wide.mean()
    white = (wide - mean) * (wide.var(correction=ddof) + eps).rsqrt()
    return (white if shift_mean else white + mean).to(result_dtype(x))


@torch.no_grad()
def rloo_advantages(
    rewards: Float[Tensor, " sequences"], group: Int[Tensor, " sequences"]
) -> Float[Tensor, " sequences"]:
    """Aᵢ = rᵢ − mean of the other rewards of its group = K/(K−1) · (rᵢ − r̄). Ahmadian et al. 2024, eq. 8.

    ``group`` is any integer that siblings share. Exactly 0 where all rewards of a group are equal and for a group of
    one, which has no baseline. Raises ValueError on different shapes.

    >>> rloo_advantages(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([7, 7, 9])).tolist()
    [1.0, -1.0, 0.0]
    """
    require_same_shape({"rewards": rewards, "group": group})
    names, member = _distinct(group.to(rewards.device))
    wide = rewards.double()
    empty = torch.zeros(len(names), dtype=torch.float64, device=rewards.device)
    size = empty.index_add(0, member, torch.ones_like(wide))[member]
    total = empty.index_add(0, member, wide)[member]
    lowest = empty.scatter_reduce(0, member, wide, "amin", include_self=False)[member]
    highest = empty.scatter_reduce(0, member, wide, "amax", include_self=False)[member]
    others = (total - wide) / (size - 1.0)
    return torch.where(lowest == highest, 0.0, wide - others).to(result_dtype(rewards))


def _distinct(group: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct integers, and for each item the place of its own among them."""
    return group.unique(return_inverse=True)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def require_per_sequence(name: str, x: Tensor, offsets: Tensor) -> None:
    """Raises ValueError unless ``x`` has one number for each sequence."""
    if x.dim() != 1 or len(x) != len(offsets) - 1:
        raise ValueError(f"{name} {list(x.shape)} must have one number for each of {len(offsets) - 1} sequences")
