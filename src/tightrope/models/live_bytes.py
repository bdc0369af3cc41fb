"""How many bytes live at the worst moment of a forward and backward pass? Answered without memory and without weights.

The pass runs on torch's meta device, where tensors have a shape and no numbers, while each storage is counted from
its birth to its end. There attention would be written out, with a score for each pair of tokens; the kernels of a real
device hold one number a query instead, and a stand-in does here as they do. Attention that a model writes out itself
(BLOOM, soft-capping) is counted with its scores.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.fx.experimental import _config as meta_config
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tightrope.maths.logprobs import chunked_logprobs
from tightrope.models.backbone import Network
from tightrope.models.packed_forward import gather_rows, network_states
from tightrope.types import TokenRows


@dataclass(frozen=True, slots=True)
class Pass:
    """A network seen through one adapter. ``logits``: log-probs are read from it, else one number a token."""

    network: Network
    adapter: str | None
    logits: bool


class LiveBytes(TorchDispatchMode):
    """``peak``: most bytes of storages that were made inside the block and lived at one time."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._live: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return True  # transformers asks whether the positions are those of a single row
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known or key in self._live:
            return
        self._live[key] = storage.nbytes()
        self.now += self._live[key]
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._live.pop(key)


@contextmanager
def fused_attention() -> Iterator[None]:
    """Puts the stand-in where models call torch's attention, for tensors without storage alone. A function mode would
    be simpler, but is off during the backward pass, where layers are computed again."""
    real = functional.scaled_dot_product_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if query.is_meta:
            return _Attention.apply(query, key, value)
        return real(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = real


class _Attention(torch.autograd.Function):
    """Shapes and what is kept of a fused kernel: query, key, value, result and a float32 a query."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, heads, length, _ = query.shape
        out = query.new_empty(rows, length, heads, value.shape[-1]).transpose(1, 2)
        ctx.save_for_backward(query, key, value, out, query.new_empty(rows, heads, length, dtype=torch.float32))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


@contextmanager
def counting(passes: Iterable[Pass]) -> Iterator[LiveBytes]:
    models = [each.network.model for each in passes]
    known = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
    live = LiveBytes([*known, *(p.grad for p in known if p.grad is not None)])
    selects_all = meta_config.meta_nonzero_assume_all_nonzero
    meta_config.meta_nonzero_assume_all_nonzero = True  # a mask of filling selects every token: there is none
    try:
        with live, fused_attention():
            yield live
    finally:
        meta_config.meta_nonzero_assume_all_nonzero = selects_all


def update_bytes(passes: list[Pass], trained: Iterable[Tensor], tokens: int, row: int) -> int:
    """Of one micro-batch of ``tokens`` in rows of ``row``, half of them actions: all passes, then one backward pass
    through them. The networks are on the meta device; the gradients of ``trained`` exist already, as in every
    micro-batch but the first, and are not counted."""
    rows = rows_of(tokens, row)
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    with counting(passes) as live:
        torch.autograd.backward(torch.stack([_result(each, rows) for each in passes]).sum())
    return live.peak


@torch.no_grad()
def scoring_bytes(one: Pass, tokens: int, row: int) -> int:
    """Of a pass that nothing is learned from."""
    with counting([one]) as live:
        _result(one, rows_of(tokens, row))
    return live.peak


def rows_of(tokens: int, row: int) -> TokenRows:
    row = max(2, row)
    prompt, response = (1,) * (row // 2), (1,) * (row - row // 2)
    return TokenRows.of([(prompt, response)] * max(1, tokens // row))


def _result(one: Pass, rows: TokenRows) -> Tensor:
    network = one.network
    with network.using(one.adapter):
        hidden = network_states(network, rows)
    if not one.logits:
        return hidden.float().sum()
    before = gather_rows(hidden, (rows.action_positions - 1).to(hidden.device))
    del hidden
    logprobs, _ = chunked_logprobs(
        before,
        network.unembedding_weight,
        network.unembedding_bias,
        rows.tokens[rows.action_positions].to(before.device),
        1.0,
        rule=network.logit_rule,
        with_entropy=False,
    )
    return logprobs.sum()
