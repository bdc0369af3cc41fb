"""The layers of transformers and peft, computed faster: same weights, same names, same files, the same numbers.

A layer's class is exchanged after the model is built. What is not known here stays as it is.

    Dense, DenseConv1D    x · Wᵀ + b by the faster library (kernels/products.py)
    RMSNorm               with a backward pass that keeps one number a row
    Adapted               x · Wᵀ + b + s · (x · Aᵀ) · Bᵀ as one function with the gradients of x, A and B (peft's layer)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import Linear as PeftLinear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.pytorch_utils import Conv1D

from tightrope.kernels.norms import rms_norm
from tightrope.kernels.products import fast, linear, product, sum_of_products


class Dense(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class DenseConv1D(Conv1D):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.T, self.bias)


class Adapted(PeftLinear):
    """peft's own forward where the base is trained too, or where our products have nothing to win."""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        base = self.base_layer
        assert isinstance(base, nn.Linear | Conv1D)
        if self._disable_adapters:
            return base(x)
        (name,) = self._active_adapter
        if name not in self.lora_A:  # another role's adapter reaches this layer, this one's does not
            return base(x)
        a, b = self.lora_A[name].weight, self.lora_B[name].weight
        assert isinstance(a, Tensor) and isinstance(b, Tensor)
        weight = base.weight.T if isinstance(base, Conv1D) else base.weight
        if weight.requires_grad or not fast(x, weight, base.bias, a, b):
            return super().forward(x)
        rows = x.flatten(0, -2)
        return _Adapted.apply(rows, (weight, base.bias), a, b, self.scaling[name]).unflatten(0, x.shape[:-1])


class _Adapted(torch.autograd.Function):
    """y = x · Wᵀ + b + z · Bᵀ with z = s · x · Aᵀ. Backward: dz = s · dy · B, dx = dy · W + dz · A, dA = dzᵀ · x and
    dB = dyᵀ · z. Against peft's layer nothing of the result's size is kept, scaled or added.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, base: tuple[Tensor, Tensor | None], a: Tensor, b: Tensor, scaling: float
    ) -> Tensor:
        z = product(x, a).mul_(scaling)
        ctx.save_for_backward(x, z, base[0], a, b)
        ctx.scaling = scaling
        return sum_of_products((z, b), linear(x, *base))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, z, weight, a, b = ctx.saved_tensors
        grad_z = product(grad, b.T).mul_(ctx.scaling)
        grad_x = sum_of_products((grad_z, a.T), product(grad, weight.T)) if ctx.needs_input_grad[0] else None
        # The short side first: of the two factors, oneDNN copies the left one.
        return grad_x, None, product(grad_z.T, x.T), product(z.T, grad.T).T, None


class RMSNorm(nn.Module):
    """Of transformers' families that scale by ``weight`` alone. In float32 and wider; narrower types keep their own."""

    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)


RMS_NORMS = tuple(
    f"{family}RMSNorm" for family in ("Granite", "Llama", "Mistral", "Olmo2", "Phi3", "Qwen2", "Qwen3", "SmolLM3")
)
EXCHANGED: Mapping[type[nn.Module], type[nn.Module]] = {nn.Linear: Dense, Conv1D: DenseConv1D, PeftLinear: Adapted}
"""By exact class: a subclass may compute something else."""
OURS = (*EXCHANGED.values(), RMSNorm)


def exchange_layers(model: nn.Module) -> None:
    """Calling it again changes nothing."""
    for module in model.modules():
        ours = _exchanged(module)
        if ours is not None:
            module.built_as = type(module)  # pyright: ignore[reportArgumentType] (a plain attribute)
            module.__class__ = ours


def _exchanged(module: nn.Module) -> type[nn.Module] | None:
    kind = type(module)
    if kind.__name__ in RMS_NORMS and kind.__module__.startswith("transformers.models."):
        weight = next(module.parameters())
        return RMSNorm if weight.dtype in (torch.float32, torch.float64) else None
    return EXCHANGED.get(kind)


@contextmanager
def original_layers(model: nn.Module) -> Iterator[None]:
    """With the classes that the model was built with: what ours are compared to."""
    exchanged: list[tuple[nn.Module, type[nn.Module]]] = [
        (module, type(module)) for module in model.modules() if isinstance(module, OURS)
    ]
    for module, _ in exchanged:
        module.__class__ = module.built_as  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for module, ours in exchanged:
            module.__class__ = ours
