"""How likely was the chosen token, and how undecided was the policy: log-probs and entropy at a temperature.

    y = s · (h · Wᵀ + b)    z = y / T, or c · tanh(y / c) / T with a softcap c (Gemma 2, arXiv 2408.00118 section 2)
    log π(a) = z_a − logsumexp z        H = −Σ_v π_v log π_v        nats, per action

The softmax runs in float32 whatever the model's type (float64 stays): bfloat16 would move ratios by several per cent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tightrope.kernels.products import fast, linear, product, recurring
from tightrope.maths.ragged import result_dtype, widen

if TYPE_CHECKING:
    from jaxtyping import Float, Int

KEEP_BYTES = 32 * 2**20
"""Logits up to this size are kept for the backward pass: recomputing them costs a third more arithmetic."""
MIN_CHUNK = 64
"""Rows below which the output matrix is read again for too little work."""


@dataclass(frozen=True, slots=True)
class LogitRule:
    """What a model does with hidden · weightᵀ + bias: a ``scale`` s, then a ``softcap`` c, None for none."""

    scale: float = 1.0
    softcap: float | None = None

    def applied(self, products: Float[Tensor, "actions vocab"]) -> Float[Tensor, "actions vocab"]:
        """c · tanh(s · products / c), in place."""
        if self.scale != 1.0:
            products = products.mul_(self.scale)
        return products if self.softcap is None else products.div_(self.softcap).tanh_().mul_(self.softcap)


PLAIN = LogitRule()


def output_logits(
    hidden: Float[Tensor, "actions hidden"],
    weight: Float[Tensor, "vocab hidden"],
    bias: Float[Tensor, " vocab"] | None,
    rule: LogitRule = PLAIN,
) -> Float[Tensor, "actions vocab"]:
    """c · tanh(s · (hidden · weightᵀ + bias) / c), float32 or wider. Not differentiated: see chunked_logprobs.

    >>> output_logits(torch.ones(1, 1), torch.tensor([[8.0], [0.0]]), None, LogitRule(0.5, 2.0))
    tensor([[1.9281, 0.0000]])
    """
    return rule.applied(widen(linear(hidden.to(weight.dtype), weight, bias)))


def logprobs_and_entropy(
    logits: Float[Tensor, "actions vocab"], tokens: Int[Tensor, " actions"], temperature: float
) -> tuple[Float[Tensor, " actions"], Float[Tensor, " actions"]]:
    """(log π(tokens), H) of logits that exist already. A logit of −∞ has probability 0 and adds no entropy.

    Raises ValueError for a temperature that is not positive or shapes that do not fit.

    >>> logprobs, entropy = logprobs_and_entropy(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]), 0.7)
    >>> round(logprobs.item(), 5), round(entropy.item(), 5)
    (-0.26012, 0.65057)
    """
    _require_rows(logits, tokens, temperature)
    logp = (widen(logits) / temperature).log_softmax(-1)
    p = logp.exp()
    entropy = -(p * torch.where(p > 0, logp, 0.0)).sum(-1)
    return logp.gather(1, tokens[:, None]).squeeze(1), entropy


def chunked_logprobs(
    hidden: Float[Tensor, "actions hidden"],
    weight: Float[Tensor, "vocab hidden"],
    bias: Float[Tensor, " vocab"] | None,
    tokens: Int[Tensor, " actions"],
    temperature: float,
    *,
    rule: LogitRule = PLAIN,
    chunk_size: int | None = None,
    with_entropy: bool = True,
) -> tuple[Float[Tensor, " actions"], Float[Tensor, " actions"] | None]:
    """(log π(tokens), H or None) for the logits of ``output_logits``, without holding [actions × vocab].

    Logits of ``chunk_size`` rows exist at a time and are computed again in the backward pass; only two numbers a row
    are kept. Logits of at most one chunk and 32 MiB are kept instead. ``chunk_size`` None: rows worth 32 MiB.
    Gradients reach hidden, weight and bias, through both results, once (no double backward).
    Raises ValueError for a temperature or chunk_size that is not positive or shapes that do not fit.

    >>> weight, token = torch.tensor([[2.0], [0.0]]), torch.tensor([0])
    >>> logprobs, entropy = chunked_logprobs(torch.ones(1, 1), weight, None, token, 1.0)
    >>> round(logprobs.item(), 5), round(entropy.item(), 5)
    (-0.12693, 0.36533)
    """
    _require_rows(hidden, tokens, temperature)
    if chunk_size is None:
        chunk_size = max(MIN_CHUNK, KEEP_BYTES // (4 * weight.shape[0]))
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, found {chunk_size}")
    apply = cast("Callable[..., tuple[Tensor, Tensor]]", _ChunkedLogprobs.apply)  # pyright: ignore[reportUnknownMemberType]
    rows = len(hidden)
    filling = _filling(rows, chunk_size) if fast(hidden) else 0
    if filling:
        hidden = torch.cat([hidden, hidden.new_zeros(filling, hidden.shape[1])])
        tokens = torch.cat([tokens, tokens.new_zeros(filling)])
    logprobs, entropy = apply(hidden, weight, bias, tokens, temperature, (rule, chunk_size, with_entropy))
    if filling:
        logprobs, entropy = logprobs[:rows], entropy[:rows]
    return logprobs, entropy if with_entropy else None


def _require_rows(rows: Tensor, tokens: Tensor, temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, found {temperature}")
    if rows.dim() != 2 or tokens.dim() != 1 or len(rows) != len(tokens):
        raise ValueError(f"need one token a row, found rows {list(rows.shape)} and tokens {list(tokens.shape)}")


def _log_softmax_rows(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, rule: LogitRule, with_slope: bool
) -> tuple[Tensor, Tensor | None]:
    """log π of a chunk, [rows, vocab], float32 or wider; finite, so that 0 · log 0 is 0. And dz/dy · T, None for 1."""
    logits = output_logits(hidden, weight, bias, rule)
    slope = None
    if with_slope and rule.softcap is not None:
        slope = (logits / rule.softcap).square_().neg_().add_(1.0)
    if temperature != 1.0:
        logits = logits.div_(temperature)
    logp = logits.sub_(logits.logsumexp(-1, keepdim=True))
    return logp if bias is None else logp.clamp_(min=torch.finfo(logp.dtype).min), slope


class _ChunkedLogprobs(torch.autograd.Function):
    """dz = g · (onehot − π) − g_H · π (log π + H): the gradient of log π(a) and H to z. To the rows h · Wᵀ + b it is
    dz · s / T, with a softcap times 1 − tanh²(y / c).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        temperature: float,
        options: tuple[LogitRule, int, bool],
    ) -> tuple[Tensor, Tensor]:
        rule, chunk_size, with_entropy = options
        rows, dtype = len(hidden), result_dtype(weight)
        logprobs = hidden.new_empty(rows, dtype=dtype)
        entropy = hidden.new_empty(rows if with_entropy else 0, dtype=dtype)
        keep = rows <= chunk_size and 4 * rows * weight.shape[0] <= KEEP_BYTES and any(ctx.needs_input_grad)
        kept = slope = None
        for part in _parts(rows, chunk_size):
            logp, slope = _log_softmax_rows(hidden[part], weight, bias, temperature, rule, keep)
            logprobs[part] = logp.gather(1, tokens[part, None]).squeeze(1)
            kept = logp if keep else None
            if with_entropy:
                entropy[part] = -(logp.exp().mul_(logp)).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, tokens, entropy, kept, slope)
        ctx.temperature, ctx.options = temperature, options
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        grad_logprobs, grad_entropy = grads
        rule, chunk_size, with_entropy = ctx.options
        hidden, weight, bias, tokens, entropy, kept, slope = ctx.saved_tensors
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight: Tensor | None = None
        grad_bias = torch.zeros_like(bias, dtype=result_dtype(bias)) if need_bias else None
        for part in _parts(len(hidden), chunk_size):
            logp = kept
            if logp is None:
                logp, slope = _log_softmax_rows(hidden[part], weight, bias, ctx.temperature, rule, True)
            grad, on_token = logp.exp(), grad_logprobs[part, None]
            if with_entropy:
                grad.mul_((logp + entropy[part, None]).mul_(grad_entropy[part, None]).add_(on_token)).neg_()
            else:
                grad.mul_(-on_token)
            grad.scatter_add_(1, tokens[part, None], on_token)
            grad.div_(ctx.temperature / rule.scale)
            if slope is not None:
                grad.mul_(slope)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = product(grad, weight.T)
            if need_weight:
                added = product(grad.T, hidden[part].to(weight.dtype).T).to(result_dtype(weight))
                grad_weight = added if grad_weight is None else grad_weight.add_(added)
        if need_weight and grad_weight is None:
            grad_weight = torch.zeros_like(weight)
        return grad_hidden, grad_weight, grad_bias, *(None,) * 3  # torch gives each the type of its tensor


def _filling(rows: int, chunk_size: int) -> int:
    """Rows of zeros that make the last chunk one of the sizes that come again, and never too large a one."""
    last = rows % chunk_size
    return min(recurring(last), chunk_size) - last


def _parts(rows: int, chunk_size: int) -> list[slice]:
    return [slice(start, start + chunk_size) for start in range(0, rows, chunk_size)]
