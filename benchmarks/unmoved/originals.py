"""The plain way of computing what the product computes faster: what a switch puts back.

Each function takes what it replaces and gives what stands there instead, as the patches of ``benchmarks/proof`` do.
Nothing here is fast, and nothing is shared with the code that it is compared to beyond the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from peft.tuners.lora import Linear as PeftLinear
from torch import Tensor, nn

from benchmarks.proof.faults import Function
from tightrope.models import packed_forward
from tightrope.models.families import Family
from tightrope.models.layers import RMS_NORMS
from tightrope.models.packed_forward import hidden_states
from tightrope.models.roles import Role
from tightrope.rollout.decode_products import products
from tightrope.types import PolicyOutput, TokenRows

FEW_TOKENS = 40
"""Of a micro-batch: two or three sequences of the demo."""
FEW_ROWS = 16
"""Of logits that exist at a time."""


def never(fast: Function) -> Function:
    """torch's own products everywhere."""
    return lambda *tensors: False


def norms_as_built(exchanged: Function) -> Function:
    return lambda module: None if type(module).__name__ in RMS_NORMS else exchanged(module)


def adapters_as_built(exchanged: Function) -> Function:
    return lambda module: None if type(module) is PeftLinear else exchanged(module)


def not_packed(family_of: Function) -> Function:
    """Rows filled up, transformers' own attention, masks and key-value cache."""

    def padded(*config: Any) -> Family:
        return replace(family_of(*config), packed=False)

    return padded


def every_logit(token_logprobs: Function) -> Function:
    """Logits of all tokens at once, log-softmax and gradients by torch."""

    def whole(
        role: Role,
        rows: TokenRows,
        temperature: float,
        *,
        with_entropy: bool = False,
        with_values: Role | None = None,
    ) -> PolicyOutput:
        hidden, network = hidden_states(role, rows), role.network
        logits = nn.functional.linear(hidden, network.unembedding_weight, network.unembedding_bias)
        logprobs = (logits / temperature).log_softmax(-1)[rows.action_positions - 1]
        chosen = logprobs.gather(1, rows.tokens[rows.action_positions, None]).squeeze(1)
        entropy = -(logprobs.exp() * logprobs).sum(-1) if with_entropy else None
        if with_values is None:
            return PolicyOutput(chosen, entropy)
        assert with_values.head is not None
        values = with_values.head(hidden)
        return PolicyOutput(
            chosen, entropy, values[rows.action_positions - 1], values[rows.sequence_offsets[1:] - 1].detach()
        )

    return whole


def in_chunks(chunked_logprobs: Function) -> Function:
    """A few rows at a time, their logits computed again in the backward pass."""
    return lambda *inputs, **options: chunked_logprobs(*inputs, chunk_size=FEW_ROWS, **options)


def by_index(gather_rows: Function) -> Function:
    """torch's gradient of an index, which adds row by row."""
    return lambda x, index: x[index]


def not_filled_up(recurring: Function) -> Function:
    return lambda rows: rows


def values_apart(token_logprobs: Function) -> Function:
    """The critic goes through the trunk by itself."""

    def two_passes(
        role: Role, rows: TokenRows, temperature: float, *, with_values: Role | None = None, **options: Any
    ) -> PolicyOutput:
        output = token_logprobs(role, rows, temperature, **options)
        if with_values is None:
            return output
        values, end_values = packed_forward.values_and_end_values(with_values, rows)
        return replace(output, values=values, end_values=end_values)

    return two_passes


def reference_apart(reference_of: Function) -> Function:
    """A copy of the starting policy beside the backbone of the adapters."""
    return lambda network, lora: reference_of(network, False)


def without_critic(engine_of: Function) -> Function:
    """The rollout brings no values: the judge asks the critic, and the policy's log-probs come from the same pass."""
    return lambda policy, tokenizer, version, token_budget, *critic, **options: engine_of(
        policy, tokenizer, version, token_budget
    )


def parameter_by_parameter(adamw: Function) -> Function:
    return lambda parameters, **options: adamw(parameters, **(options | {"fused": False, "foreach": False}))


def in_small_groups(microbatch_indices: Function) -> Function:
    return lambda lengths, token_budget: microbatch_indices(lengths, FEW_TOKENS)


def layers_as_they_are(decode_products: Function) -> Function:
    @contextmanager
    def nothing_exchanged(network: Any, new_tokens: int) -> Iterator[None]:
        yield

    return nothing_exchanged


def torchs_attention(few_queries: Function) -> Function:
    def fused(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
        mask = bias.view(*key.shape[:2], 1, -1)
        return nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=scale)

    return fused


def one_scan(draw: Function) -> Function:
    """The inverse of the cumulative distribution over the whole vocabulary, in float64."""

    def scanned(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = (logits / temperature).log_softmax(-1)
        upper = logprobs.exp().double().cumsum(-1)
        token = torch.searchsorted(upper, (uniform * upper[:, -1])[:, None], right=True)
        return token.squeeze(-1), logprobs.gather(-1, token).squeeze(-1)

    return scanned


def left_as_read(lay_out_frozen: Function) -> Function:
    return lambda network: None


def without_lower_states(engine_of: Function) -> Function:
    """The rollout as the sampler gives it: every pass goes through all layers."""
    return lambda engine, policy, token_budget: engine


def norm_without_its_rms(rms_norm: Function) -> Function:
    """A fault: the gradient of x / rms(x) as if rms were a constant. The forward pass is right."""

    def straight(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        inverse = (x.detach().square().mean(-1, keepdim=True) + epsilon).rsqrt()
        return x * inverse * weight

    return straight


def copied_once(decode_products: Function) -> Function:
    """A fault: what the first rollout copied serves all others, whatever was trained since."""
    kept: list[tuple[nn.Module, Function]] = []

    @contextmanager
    def stale(network: Any, new_tokens: int) -> Iterator[None]:
        if not kept:
            kept.extend(products(network, new_tokens))
        for module, product in kept:
            module.forward = product
        try:
            yield
        finally:
            for module, _ in kept:
                del module.forward

    return stale
