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
    return (scores.double() - cost * lengths.double()).to(result_dtype(scores))


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
