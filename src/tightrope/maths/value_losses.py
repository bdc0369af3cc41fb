"""How well does the critic predict the return: its clipped loss, and how much of the returns it explains."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tightrope.maths.ragged import require_same_shape, widen

if TYPE_CHECKING:
    from jaxtyping import Float


class ValueLoss(NamedTuple):
    """Per action: the loss, and whether the clipped branch decided it (detached)."""

    losses: Tensor
    clipped: Tensor


def clipped_value_loss(
    values: Float[Tensor, " actions"],
    old_values: Float[Tensor, " actions"],
    returns: Float[Tensor, " actions"],
    clip: float | None,
) -> ValueLoss:
    """Lᵢ = ½ max((V − R)², (V_old + clip(V − V_old, ±c) − R)²), the loss of lm-human-preferences (Ziegler et al. 2019).

    The maximum is pessimistic: moving more than ``clip`` from the *old* value never pays. ``clip`` None: ½ (V − R)².
    Units: reward². Raises ValueError on different shapes or a clip that is not positive.

    >>> one = lambda number: torch.tensor([number])
    >>> round(clipped_value_loss(one(5.0), one(1.0), one(10.0), 0.2).losses.item(), 4)
    38.72
    """
    require_same_shape({"values": values, "old_values": old_values, "returns": returns})
    values, old_values, returns = widen(values), widen(old_values), widen(returns)
    unclipped = (values - returns).square()
    if clip is None:
        return ValueLoss(unclipped / 2, torch.zeros_like(unclipped, dtype=torch.bool))
    if clip <= 0:
        raise ValueError(f"value clip must be positive, found {clip}; leave it out for no clip")
    near = values.clamp(old_values - clip, old_values + clip)  # V itself, to the last bit, inside the range
    pessimistic = (near - returns).square()
    return ValueLoss(torch.maximum(unclipped, pessimistic) / 2, pessimistic > unclipped)


@torch.no_grad()
def explained_variance(values: Float[Tensor, " actions"], returns: Float[Tensor, " actions"]) -> dict[str, float]:
    """Two definitions that differ by the critic's bias, under their names; population variances, in float64.

        explained_variance      = 1 − Var(R − V) / Var(R)       blind to a constant offset
        explained_variance_mse  = 1 − mean (R − V)² / Var(R)    what the loss sees (lm-human-preferences)

    1 is perfect, 0 no better than a constant, below 0 worse. Empty when the returns do not vary: then neither exists.
    Raises ValueError on different shapes.

    >>> explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))
    {'explained_variance': 1.0, 'explained_variance_mse': -3.0}
    """
    require_same_shape({"values": values, "returns": returns})
    if len(returns) == 0 or bool((returns == returns[0]).all()):
        return {}
    target = returns.double()
    error = target - values
    spread = target.var(correction=0)
    return {
        "explained_variance": float(1.0 - error.var(correction=0) / spread),
        "explained_variance_mse": float(1.0 - error.square().mean() / spread),
    }
