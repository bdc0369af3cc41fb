"""What an unwanted form costs: the length of a response, and not having ended by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from tightrope.maths.ragged import require_same_shape, result_dtype, widen

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def length_cost(
    scores: Float[Tensor, " sequences"], lengths: Int[Tensor, " sequences"], cost: float
) -> Float[Tensor, " sequences"]:
    """score ← score − cost · length, ``cost`` in reward per token. Raises ValueError on different shapes.

    >>> length_cost(torch.tensor([2.0]), torch.tensor([50]), 0.01).tolist()
    [1.5]
    """
    require_same_shape({"scores": scores, "lengths": lengths})
    return (scores - cost * lengths.double()).to(result_dtype(scores))


def over_budget(
    scores: Float[Tensor, " sequences"], lengths: Int[Tensor, " sequences"], cost: float, budget: int
) -> Float[Tensor, " sequences"]:
    """score ← score − cost · max(0, length − budget), ``cost`` in reward per token.

    >>> over_budget(torch.tensor([1.0, 1.0]), torch.tensor([60, 80]), 0.01, 64).tolist()
    [1.0, 0.8399999737739563]
    """
    return length_cost(scores, (lengths - budget).clamp(min=0), cost)


def soft_overlong(
    scores: Float[Tensor, " sequences"], lengths: Int[Tensor, " sequences"], cost: float, budget: int, buffer: int
) -> Float[Tensor, " sequences"]:
    """score ← score − cost · clip((length − (budget − buffer)) / buffer, 0, 1). DAPO, Yu et al. 2025, eq. 13.

    Raises ValueError unless 0 < buffer ≤ budget.

    >>> soft_overlong(torch.ones(4), torch.tensor([40, 50, 60, 99]), 1.0, 60, 20).tolist()
    [1.0, 0.5, 0.0, 0.0]
    """
    if not 0 < buffer <= budget:
        raise ValueError(f"need 0 < buffer <= budget, found {buffer} and {budget}")
    share = ((lengths.double() - (budget - buffer)) / buffer).clamp(0.0, 1.0)
    require_same_shape({"scores": scores, "lengths": lengths})
    return (scores - cost * share).to(result_dtype(scores))


def stop_properly(
    scores: Float[Tensor, " sequences"], stopped: Bool[Tensor, " sequences"], factor: float
) -> Float[Tensor, " sequences"]:
    """Where a response was cut: score · ``factor``. ProRL, Liu et al. 2025.

    >>> stop_properly(torch.tensor([1.0, 2.0]), torch.tensor([True, False]), 0.5).tolist()
    [1.0, 1.0]
    """
    require_same_shape({"scores": scores, "stopped": stopped})
    return torch.where(stopped, scores, factor * widen(scores))


def missing_eos(
    scores: Float[Tensor, " sequences"],
    stopped: Bool[Tensor, " sequences"],
    value: float,
    mode: Literal["subtract", "replace", "off"],
) -> Float[Tensor, " sequences"]:
    """Where a response was cut: score − ``value`` (subtract), −``value`` itself (replace), or the score (off).

    Replace pays a bad response for being cut: its score may rise to −value. ``stopped`` is the sampler's finish reason.
    Raises ValueError on different shapes, a negative value or an unknown mode.

    >>> scores, stopped = torch.tensor([2.0, -3.0, 1.0]), torch.tensor([True, False, False])
    >>> missing_eos(scores, stopped, 1.0, "subtract").tolist(), missing_eos(scores, stopped, 1.0, "replace").tolist()
    ([2.0, -4.0, 0.0], [2.0, -1.0, -1.0])
    """
    require_same_shape({"scores": scores, "stopped": stopped})
    if value < 0:
        raise ValueError(f"the penalty must not be negative, found {value}")
    scores = widen(scores)
    match mode:
        case "subtract":
            return torch.where(stopped, scores, scores - value)
        case "replace":
            return torch.where(stopped, scores, -value)
        case "off":
            return scores.clone()
        case _:
            raise ValueError(f"mode must be subtract, replace or off, found {mode!r}")
