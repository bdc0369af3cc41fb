"""The layers of transformers and peft, computed faster: same weights, same names, same files, the same numbers.

A layer's class is exchanged after the model is built. What is not known here stays as it is.

    Dense, DenseConv1D    x · Wᵀ + b by the faster library (kernels/products.py)
    RMSNorm               with a backward pass that keeps one number a row
    Adapted               x · Wᵀ + b + s · (x · Aᵀ) · Bᵀ as one function with the gradients of x, A and B (peft's layer)
    GatedMLP              down(silu(gate(x)) · up(x)) that keeps what gate and up gave, and not what is made of them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import Linear as PeftLinear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.activations import SiLUActivation
from transformers.pytorch_utils import Conv1D

from tightrope.kernels.gates import gate_gradients, gate_values, gated
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
        if not self._adapts():
            return self.base_layer(x)
        return _adapted(self, (x,)) if self._fast(x) else super().forward(x)

    def of_gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Of silu(gate) · up, which is computed again in the backward pass where it can be."""
        if self._adapts() and self._fast(gate):
            return _adapted(self, (gate, up))
        return self(gated(gate, up))

    def _adapts(self) -> bool:
        """Not where another role's adapter reaches this layer and this one's does not."""
        return not self._disable_adapters and self._active_adapter[0] in self.lora_A

    def _fast(self, x: Tensor) -> bool:
        weight, bias, a, b, _ = self.matrices()
        return not weight.requires_grad and fast(x, weight, bias, a, b)

    def matrices(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor, float]:
        """W [outputs, inputs], b, A [rank, inputs], B [outputs, rank] and s of the adapter that is on."""
        base, (name,) = self.base_layer, self._active_adapter
        assert isinstance(base, nn.Linear | Conv1D)
        a, b = self.lora_A[name].weight, self.lora_B[name].weight
        assert isinstance(a, Tensor) and isinstance(b, Tensor)
        return base.weight.T if isinstance(base, Conv1D) else base.weight, base.bias, a, b, self.scaling[name]


def _adapted(layer: Adapted, inputs: tuple[Tensor, ...]) -> Tensor:
    """``inputs``: x, or gate and up that x = silu(gate) · up is made of."""
    weight, bias, a, b, scaling = layer.matrices()
    rows = [each.flatten(0, -2) for each in inputs]
    return _Adapted.apply((weight, bias, scaling), a, b, *rows).unflatten(0, inputs[0].shape[:-1])


class _Adapted(torch.autograd.Function):
    """y = x · Wᵀ + b + z · Bᵀ with z = s · x · Aᵀ. Backward: dz = s · dy · B, dx = dy · W + dz · A, dA = dzᵀ · x and
    dB = dyᵀ · z. Against peft's layer nothing of the result's size is kept, scaled or added.
    """

    @staticmethod
    def forward(ctx: Any, base: tuple[Tensor, Tensor | None, float], a: Tensor, b: Tensor, *inputs: Tensor) -> Tensor:
        weight, bias, scaling = base
        x = _made_of(inputs)
        z = product(x, a).mul_(scaling)
        ctx.save_for_backward(z, weight, a, b, *inputs)
        ctx.scaling = scaling
        return sum_of_products((z, b), linear(x, weight, bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        z, weight, a, b, *inputs = ctx.saved_tensors
        x = _made_of(inputs)
        grad_z = product(grad, b.T).mul_(ctx.scaling)
        # The short side first: of the two factors, oneDNN copies the left one.
        grad_a, grad_b = product(grad_z.T, x.T), product(z.T, grad.T).T
        del x
        if not any(ctx.needs_input_grad[3:]):
            return None, grad_a, grad_b, *(None for _ in inputs)
        grad_x = sum_of_products((grad_z, a.T), product(grad, weight.T))
        return None, grad_a, grad_b, *((grad_x,) if len(inputs) == 1 else gate_gradients(grad_x, *inputs))


def _made_of(inputs: Sequence[Tensor]) -> Tensor:
    return inputs[0] if len(inputs) == 1 else gate_values(*inputs)


class GatedMLP(nn.Module):
    """Of transformers' families that compute just this, with silu."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = self.gate_proj(x), self.up_proj(x), self.down_proj
        if isinstance(down, Adapted) and torch.is_grad_enabled():
            return down.of_gated(gate, up)
        return down(gated(gate, up))


class RMSNorm(nn.Module):
    """Of transformers' families that scale by ``weight`` alone. In float32 and wider; narrower types keep their own."""

    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)


RMS_NORMS = tuple(
    f"{family}RMSNorm" for family in ("Granite", "Llama", "Mistral", "Olmo2", "Phi3", "Qwen2", "Qwen3", "SmolLM3")
)
GATED_MLPS = tuple(f"{family}MLP" for family in ("Granite", "Llama", "Mistral", "Olmo2", "Qwen2", "Qwen3", "SmolLM3"))
EXCHANGED: Mapping[type[nn.Module], type[nn.Module]] = {nn.Linear: Dense, Conv1D: DenseConv1D, PeftLinear: Adapted}
"""By exact class: a subclass may compute something else."""
OURS = (*EXCHANGED.values(), RMSNorm, GatedMLP)


def exchange_layers(model: nn.Module) -> None:
    """Calling it again changes nothing."""
    for module in model.modules():
        ours = _exchanged(module)
        if ours is not None:
            module.built_as = type(module)  # pyright: ignore[reportArgumentType] (a plain attribute)
            module.__class__ = ours


def _exchanged(module: nn.Module) -> type[nn.Module] | None:
    kind = type(module)
    if not kind.__module__.startswith("transformers.models."):
        return EXCHANGED.get(kind)
    if kind.__name__ in RMS_NORMS:
        weight = next(module.parameters())
        return RMSNorm if weight.dtype in (torch.float32, torch.float64) else None
    if kind.__name__ in GATED_MLPS:
        return GatedMLP if isinstance(module.act_fn, nn.SiLU | SiLUActivation) else None
    return None


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
