"""How many bytes live at the worst moment of a forward and backward pass? Answered without memory and without weights.

The pass runs on torch's meta device, where tensors have a shape and no numbers, while each storage is counted from
its birth to its end. The rows are two tokens long: on the meta device attention is written out, with a score for each
pair of tokens, which the kernels of a real device never hold; two tokens a row make that small.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tightrope.maths.logprobs import chunked_logprobs
from tightrope.models.backbone import Network
from tightrope.models.packed_forward import gather_rows, network_states
from tightrope.types import TokenRows


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


def pass_bytes(network: Network, adapter: str | None, trained: Iterable[Tensor], tokens: int, logits: bool) -> int:
    """Of a micro-batch of ``tokens``, half of them actions. ``network`` is on the meta device; the gradients of
    ``trained`` exist already, as in every micro-batch but the first, and are not counted."""
    rows = TokenRows.of([((1,), (1,))] * max(1, tokens // 2))
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    known = [*network.model.parameters(), *network.model.buffers()]
    live = LiveBytes([*known, *(p.grad for p in known if p.grad is not None)])
    with live, network.using(adapter):
        hidden = network_states(network, rows)
        if not logits:
            hidden.float().sum().backward()
            return live.peak
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
        logprobs.sum().backward()
    return live.peak
