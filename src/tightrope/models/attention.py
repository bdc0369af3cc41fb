"""One attention function for every model: the layout object of the call decides who attends to whom.

transformers calls ``tightrope`` attention with the query, key and value of one layer; the caller of the model passes
``layout=...`` through the model's keyword arguments. The packed forward and the decode loop each bring a layout.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

ATTENTION = "tightrope"


class Layout(Protocol):
    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [rows, heads, q_len, dim], key and value [rows, kv_heads, kv_len, dim] -> [rows, q_len, heads, dim]."""
        ...


def layout_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    layout: Layout,
    **unused: Any,  # the third-party boundary: transformers passes what each family needs
) -> tuple[Tensor, None]:
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return layout.attend(query, key, value, scale), None


def no_mask(*args: Any, **kwargs: Any) -> None:
    """The layout knows who attends to whom, so no mask tensor is built."""
    return None


def register() -> None:
    """Make ``attn_implementation="tightrope"`` known to transformers. Calling it again changes nothing."""
    AttentionInterface.register(ATTENTION, layout_attention)
    AttentionMaskInterface.register(ATTENTION, no_mask)
