"""Root-mean-square normalisation (Zhang and Sennrich 2019): y = w · x / rms(x), rms(x) = sqrt(mean x² + ε).

Written with torch's operations, seven tensors of the size of x are made and five kept for the backward pass; here three
and none beyond x itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from jaxtyping import Float


def rms_norm(
    x: Float[Tensor, "*rows width"], weight: Float[Tensor, " width"], epsilon: float
) -> Float[Tensor, "*rows width"]:
    """Over the last axis. Gradients reach x and weight, once (no double backward).

    >>> rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)
    tensor([[0.8485, 2.2627]])
    """
    return cast("Callable[..., Tensor]", _RMSNorm.apply)(x, weight, epsilon)  # pyright: ignore[reportUnknownMemberType]


class _RMSNorm(torch.autograd.Function):
    """With n = x / rms(x) and d = dy · w:  dx = (d - n · mean(d · n)) / rms(x), dw = Σ dy · n over rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = norms.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,) = grads
        x, weight, inverse = ctx.saved_tensors
        normed = x * inverse
        grad_weight = (grad * normed).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        grad_x = None
        if ctx.needs_input_grad[0]:
            scaled = grad * weight
            shares = torch.linalg.vecdot(scaled, normed).div_(x.shape[-1]).unsqueeze(-1)
            grad_x = scaled.sub_(normed.mul_(shares)).mul_(inverse)
        return grad_x, grad_weight, None
