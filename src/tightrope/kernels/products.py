"""x · Wᵀ + b, by the faster of the two libraries that torch brings for it on a CPU.

torch hands float32 products to MKL, which does not use 512-bit vectors on every processor that has them: 90 GFLOP/s a
core where oneDNN gives 200 (docs/design/0005-speed.md). Both round to float32; only the order of sums differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from jaxtyping import Float

THIN = 32
"""A side this short, like the rank of an adapter, goes to MKL: oneDNN's call takes longer than its arithmetic."""
WIDE_VECTORS = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"


def linear(
    x: Float[Tensor, "*rows inputs"], weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"] | None
) -> Float[Tensor, "*rows outputs"]:
    """y = x · Wᵀ + b, as torch.nn.functional.linear. Gradients reach all three, once (no double backward).

    >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), torch.tensor([0.5])).tolist()
    [[11.5]]
    """
    if not fast(x, weight, bias):
        return torch.nn.functional.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return _onednn(x, weight, bias)
    return cast("Callable[..., Tensor]", _Linear.apply)(x, weight, bias)  # pyright: ignore[reportUnknownMemberType]


def product(x: Float[Tensor, "rows inner"], weight: Float[Tensor, "columns inner"]) -> Float[Tensor, "rows columns"]:
    """x · Wᵀ of matrices in any layout, for hand-written backward passes. Not differentiated.

    >>> product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]).T).tolist()
    [[11.0]]
    """
    return _onednn(x, weight, None) if fast(x, weight) and not thin(x, weight) else x @ weight.T


def sum_of_products(
    left: tuple[Float[Tensor, "rows inner"], Float[Tensor, "columns inner"]], right: Float[Tensor, "rows columns"]
) -> Float[Tensor, "rows columns"]:
    """x · Wᵀ + y in one pass over the result; ``right``, which is y, may be overwritten. Not differentiated.

    >>> sum_of_products((torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])), torch.tensor([[5.0]])).tolist()
    [[16.0]]
    """
    x, weight = left
    if fast(x, weight, right) and not thin(x, weight):
        return torch.ops.mkldnn._linear_pointwise.binary(x, right, weight, None, "add")
    return right.addmm_(x, weight.T)


def thin(x: Tensor, weight: Tensor) -> bool:
    """
    >>> thin(torch.zeros(500, 16), torch.zeros(200, 16)), thin(torch.zeros(500, 200), torch.zeros(200, 200))
    (True, False)
    """
    return min(*x.shape, *weight.shape) <= THIN


def recurring(rows: int) -> int:
    """The next of few row counts: 16 from one power of 2 to the next, and multiples of 16.

    oneDNN compiles a kernel for each shape it meets, in half a millisecond and half a megabyte. Minibatches of ever
    different size would compile for a third of their time.

    >>> [recurring(rows) for rows in (0, 1, 16, 255, 513, 5000)]
    [0, 16, 16, 256, 544, 5120]
    """
    step = max(16, 2 ** (rows.bit_length() - 5))
    return -(-rows // step) * step


def fast(*tensors: Tensor | None) -> bool:
    """Is oneDNN's product the better one here? Only on wide vectors, in float32, and where there is something to do."""
    return WIDE_VECTORS and all(
        x is None or (x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0) for x in tensors
    )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """dx = dy · W, dW = dyᵀ · x, db = Σ dy over rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight if ctx.needs_input_grad[0] else None)
        return _onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,) = grads
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        grad_x = None if weight is None else _onednn(grad, weight.T, None)
        grad_weight = None if x is None else _onednn(rows.T, x.flatten(0, -2).T, None)
        return grad_x, grad_weight, rows.sum(0) if ctx.needs_input_grad[2] else None
