"""The gate of a gated feed-forward layer (Shazeer 2020, SwiGLU): h = silu(g) · u with silu(g) = g · σ(g).

Written with torch's operations, four tensors of the size of h are kept for the backward pass: g, u, silu(g) and h, the
input of the product that follows; here g and u, and the others are computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu

if TYPE_CHECKING:
    from jaxtyping import Float


def gated(gate: Float[Tensor, "*rows width"], up: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
    """silu(gate) · up. Gradients reach both, once (no double backward).

    >>> gated(torch.tensor([0.0, 2.0]), torch.tensor([5.0, 3.0]))
    tensor([0.0000, 5.2848])
    """
    if not torch.is_grad_enabled():
        return gate_values(gate, up)
    return cast("Callable[..., Tensor]", _Gated.apply)(gate, up)  # pyright: ignore[reportUnknownMemberType]


def gate_values(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up, for hand-written passes. Not differentiated."""
    return silu(gate).mul_(up)


def gate_gradients(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Of silu(gate) · up to gate and up, from the gradient ``grad`` to the result. Not differentiated."""
    return torch.ops.aten.silu_backward(grad * up, gate), silu(gate).mul_(grad)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return gate_values(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gate_gradients(grads[0], *ctx.saved_tensors)
