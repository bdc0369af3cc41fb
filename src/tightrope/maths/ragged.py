"""Sums and scans over pieces of different length that lie back to back, without padding.

x        [items]       all pieces, one after the other
offsets  [pieces + 1]  start of each piece and the end of the last; an empty piece repeats its start
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def segment_sum(x: Float[Tensor, " items"], offsets: Int[Tensor, " bounds"]) -> Float[Tensor, " pieces"]:
    """sⱼ = Σ_{i in piece j} xᵢ. Differentiable; added up in float64; an empty piece sums to 0.

    Raises ValueError when the offsets do not end at the number of items.

    >>> segment_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 2, 2, 3])).tolist()
    [3.0, 0.0, 4.0]
    """
    require_offsets(x, offsets)
    sums = torch.zeros(len(offsets) - 1, dtype=torch.float64, device=x.device)
    return sums.index_add(0, segment_ids(offsets).to(x.device), x.double()).to(result_dtype(x))


def segment_ids(offsets: Int[Tensor, " bounds"]) -> Int[Tensor, " items"]:
    """The piece each item belongs to.

    >>> segment_ids(torch.tensor([0, 2, 2, 3])).tolist()
    [0, 0, 2]
    """
    return torch.arange(len(offsets) - 1, device=offsets.device).repeat_interleave(offsets.diff())


def segment_last_index(offsets: Int[Tensor, " bounds"]) -> Int[Tensor, " nonempty"]:
    """Index of the last item of every piece that has one, in order. Empty pieces have no entry.

    >>> segment_last_index(torch.tensor([0, 2, 2, 3])).tolist()
    [1, 2]
    """
    return offsets[1:][offsets.diff() > 0] - 1


def discounted_to_go(
    x: Float[Tensor, " items"], offsets: Int[Tensor, " bounds"], discount: float | Float[Tensor, " pieces"]
) -> Float[Tensor, " items"]:
    """Gᵢ = xᵢ + c · Gᵢ₊₁ inside each piece, G after the last item = 0. ``discount`` c is one number or one a piece.

    One vectorised step for each position of the longest piece, over the pieces that reach it: pieces are visited in
    order of length, so those are a prefix, and no padding exists that could leak. Float64 inside. Not differentiable.

    >>> discounted_to_go(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 2, 3]), 0.5).tolist()
    [2.0, 2.0, 4.0]
    """
    require_offsets(x, offsets)
    offsets = offsets.to(x.device)
    lengths, order = offsets.diff().sort(descending=True)
    starts = offsets[order]
    factor = torch.as_tensor(discount, dtype=torch.float64, device=x.device).expand(len(lengths))[order]
    reaching = [(lengths > position).sum() for position in range(int(lengths.max()) if len(lengths) else 0)]
    source = x.detach().double()
    result = torch.empty_like(source)
    carry = torch.zeros(len(lengths), dtype=torch.float64, device=x.device)
    for position in reversed(range(len(reaching))):
        count = int(reaching[position])
        index = starts[:count] + position
        carry[:count] = source[index] + factor[:count] * carry[:count]
        result[index] = carry[:count]
    return result.to(result_dtype(x))


def result_dtype(x: Tensor) -> torch.dtype:
    """Float64 stays float64; everything else is reported in float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def widen(x: Tensor) -> Tensor:
    """At least float32, so that nothing narrower is ever exponentiated."""
    return x.to(result_dtype(x))


def require_same_shape(tensors: Mapping[str, Tensor]) -> None:
    """Refuse what would broadcast: [n, 1] against [n] silently becomes [n, n]. Raises ValueError naming the shapes."""
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"shapes must be equal: {shapes}")


def require_offsets(x: Tensor, offsets: Tensor) -> None:
    """Raises ValueError unless ``offsets`` [pieces + 1] start at 0 and end at the number of items of the flat ``x``."""
    if x.dim() != 1 or offsets.dim() != 1 or len(offsets) == 0 or int(offsets[0]) != 0 or int(offsets[-1]) != len(x):
        raise ValueError(f"offsets {list(offsets.shape)} do not partition a tensor of shape {list(x.shape)}")
