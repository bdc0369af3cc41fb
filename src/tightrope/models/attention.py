"""One attention function for every packed model: the layout object of the call decides who attends to whom.

transformers calls ``tightrope`` attention with the query, key and value of one layer; the caller of the model passes
``layout=...`` through the model's keyword arguments. The packed forward and the decode loop each bring a layout.

    window     a token sees itself and the window - 1 tokens before it; None: everything before it
    softcap    scores s become softcap · tanh(s / softcap) before the softmax (Gemma 2); None: they stay
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from tightrope.config.errors import TightropeError
from tightrope.maths.ragged import result_dtype

ATTENTION = "tightrope"
WITHOUT_EFFECT = ("position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states")
"""Passed to attention functions by some families for kernels that are not used here."""


@dataclass(frozen=True, slots=True)
class Scores:
    """How the scores of one layer are made of its queries and keys, and how far back they reach."""

    scale: float
    window: int | None = None
    softcap: float | None = None


class Layout(Protocol):
    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """query [rows, heads, q_len, dim], key and value [rows, kv_heads, kv_len, dim] -> [rows, q_len, heads, dim]."""
        ...


def layout_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    *,
    layout: Layout,
    **others: Any,  # the third-party boundary: transformers passes what each family needs
) -> tuple[Tensor, None]:
    """Raises TightropeError for anything that changes attention and is not understood here: it is never ignored."""
    others["dropout"], others["attention_mask"] = dropout, attention_mask
    for name, given in others.items():
        if (
            name not in WITHOUT_EFFECT
            and given is not None
            and not (isinstance(given, bool | int | float) and not given)
        ):
            raise TightropeError(
                "this architecture's attention cannot run packed", where=type(module).__name__, found=f"{name} is set"
            )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return layout.attend(query, key, value, Scores(scale, sliding_window, softcap)), None


def attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, scores: Scores) -> Tensor:
    """softmax(scores) · value over [rows, heads, length, dim]; ``visible`` None: causal, else bool, True is seen.

    Key heads may be fewer than query heads. torch's own kernels know no soft-capping, so it is written out.
    """
    groups = query.shape[1] // key.shape[1]
    if scores.softcap is None:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, visible, is_causal=visible is None, scale=scores.scale, enable_gqa=groups > 1
        )
    if visible is None:
        visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    capped = scores.softcap * torch.tanh(query @ key.transpose(2, 3) * (scores.scale / scores.softcap))
    weights = capped.masked_fill(~visible, -torch.inf).softmax(-1, dtype=result_dtype(capped))
    return weights.to(value.dtype) @ value


def no_mask(*args: Any, **kwargs: Any) -> None:
    """The layout knows who attends to whom, so no mask tensor is built."""
    return None


def register() -> None:
    """Make ``attn_implementation="tightrope"`` known to transformers. Calling it again changes nothing."""
    AttentionInterface.register(ATTENTION, layout_attention)
    AttentionMaskInterface.register(ATTENTION, no_mask)
