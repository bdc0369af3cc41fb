"""How does decoding multiply a few rows with every matrix of the network? By reading each once, as it lies in memory.

A product of few rows is bound by reading the matrix. While responses are drawn, each matrix of the trunk is used in the
order of memory that oneDNN reads (models/weight_layout.py), a copy where the policy itself is trained whole; and a LoRA
layer adds B (A x) in place. The network's weights are not touched. Elsewhere than on a CPU in float32 nothing changes.
docs/design/0006-rollout-speed.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from tightrope.models.backbone import Network
from tightrope.models.weight_layout import by_inputs, suits, weight_of

Product = Callable[[Tensor], Tensor]
FEWEST_TOKENS = 16
"""Shorter responses do not win back what copies cost."""
FEWEST_TOKENS_HEAD = 32
"""The output matrix, which always needs a copy."""
ROWS = 64
"""What the copy's blocks are made for; measured, they serve 1 to 512 rows alike."""
SMALL = 2**19
"""Multiplications of one product below which calling oneDNN takes longer than MKL does for all of it."""


@contextmanager
def decode_products(network: Network, new_tokens: int) -> Iterator[None]:
    """Within, the layers of the trunk compute so, with the adapter that is switched on."""
    exchanged: list[nn.Module] = []
    try:
        for module, product in products(network, new_tokens):
            module.forward = product
            exchanged.append(module)
        yield
    finally:
        for module in exchanged:
            del module.forward


def products(network: Network, new_tokens: int) -> Iterator[tuple[nn.Module, Product]]:
    name = network.adapter
    for module, base in layers(network):
        weight = weight_of(base)
        if not suits(weight) or (new_tokens < FEWEST_TOKENS and weight.is_contiguous()):
            continue
        product = product_with(by_inputs(weight.detach()), base.bias)
        if isinstance(module, LoraLayer) and name is not None and name in module.lora_A:
            a, b = module.lora_A[name].weight, module.lora_B[name].weight
            assert isinstance(a, Tensor) and isinstance(b, Tensor)
            product = with_adapter(product, a.detach(), b.detach().t() * module.scaling[name])
        yield module, product
    if new_tokens >= FEWEST_TOKENS_HEAD and suits(network.unembedding_weight):
        yield network.unembedding, packed_product(network.unembedding_weight.detach(), network.unembedding_bias)


def layers(network: Network) -> Iterator[tuple[nn.Module, nn.Linear | Conv1D]]:
    """Each layer x · Wᵀ + b of the trunk: what is called, and what holds W; they differ where adapters were put in."""
    inside = set[nn.Module]()
    for module in network.trunk.modules():
        if isinstance(module, LoraLayer):
            inside |= set(module.modules())
            base = module.get_base_layer()
            assert isinstance(base, nn.Linear | Conv1D)
            yield module, base
        elif isinstance(module, nn.Linear | Conv1D) and module not in inside:
            yield module, module


def product_with(weight: Tensor, bias: Tensor | None) -> Product:
    onednn = torch.ops.mkldnn._linear_pointwise.default
    few_rows = SMALL // weight.numel()

    def product(x: Tensor) -> Tensor:
        if x.numel() <= few_rows * x.shape[-1]:
            return linear(x, weight, bias)
        return onednn(x, weight, bias, "none", [], "")

    return product


def packed_product(weight: Tensor, bias: Tensor | None) -> Product:
    """From a copy in oneDNN's own blocks: for a matrix with very many outputs the order by inputs is no better than the
    usual one, one input's weights lie too far apart."""
    onednn = torch.ops.mkldnn._linear_pointwise.default
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
    return lambda x: onednn(x, packed, bias, "none", [], "")


def with_adapter(product: Product, a: Tensor, b: Tensor) -> Product:
    """a [rank, inputs], b [rank, outputs]."""
    b = b.contiguous()

    def adapted(x: Tensor) -> Tensor:
        result = product(x)
        result.flatten(0, -2).addmm_(linear(x, a).flatten(0, -2), b)
        return result

    return adapted
