"""What do the networks say at each action: log-prob, entropy, value; and the score at the end of a sequence?

With models/padded_forward.py the only file that knows the next-token shift, position ids and who attends to whom.
Sequences run back to back in one row without padding; positions restart in each. What concerns the token at p is read
from the hidden state at p - 1, and the output matrix is applied there alone. Results come back where the rows are (the
CPU), in action order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tightrope.config.errors import TightropeError
from tightrope.kernels.products import recurring
from tightrope.maths.logprobs import chunked_logprobs
from tightrope.models.attention import Scores, attention
from tightrope.models.backbone import Network
from tightrope.models.heads import Head
from tightrope.models.lower_layers import ending_before, starting_at
from tightrope.models.padded_forward import padded_states
from tightrope.types import LowerStates, PolicyOutput, TokenRows, microbatch_indices

if TYPE_CHECKING:  # roles are loaded through models/load.py, which probes networks with this file
    from tightrope.models.roles import Role

BUCKET = 16
"""Sequences whose lengths round up to the same multiple share one attention call. Against equal lengths only and
against one padded call, short rows take about half the time in attention (docs/design/0002-packed-attention.md)."""


def token_logprobs(
    role: Role,
    rows: TokenRows,
    temperature: float,
    *,
    with_entropy: bool = False,
    with_values: Role | None = None,
) -> PolicyOutput:
    """One pass of the role's trunk. ``with_values`` is a critic on the same trunk and adapter: values cost no pass.

    Raises TightropeError for an action without context and for a sequence longer than the model's context.
    """
    hidden = hidden_states(role, rows)
    before = gather_rows(hidden, _predicting_positions(rows).to(hidden.device))
    role.network.count_logits(rows.n_actions)
    logprobs, entropy = chunked_logprobs(
        before,
        role.network.unembedding_weight,
        role.network.unembedding_bias,
        rows.tokens[rows.action_positions].to(hidden.device),
        temperature,
        rule=role.network.logit_rule,
        with_entropy=with_entropy,
    )
    values = end_values = None
    if with_values is not None:
        if with_values.network is not role.network or with_values.adapter != role.adapter:
            raise ValueError(f"{with_values.name} and {role.name} do not share a trunk: use action_values")
        values = _head_of(with_values)(before).to(rows.tokens.device)
        end_values = _end_values(with_values, rows, hidden)
    home = rows.tokens.device
    return PolicyOutput(logprobs.to(home), None if entropy is None else entropy.to(home), values, end_values)


def action_values(role: Role, rows: TokenRows) -> Tensor:
    """The role's head where each action is predicted, f32 [actions]."""
    return values_and_end_values(role, rows)[0]


def values_and_end_values(role: Role, rows: TokenRows) -> tuple[Tensor, Tensor]:
    """The role's head where each action is predicted and after the last token, f32 [actions] and [sequences]."""
    hidden = hidden_states(role, rows)
    before = gather_rows(hidden, _predicting_positions(rows).to(hidden.device))
    return _head_of(role)(before).to(rows.tokens.device), _end_values(role, rows, hidden)


@torch.no_grad()
def _end_values(role: Role, rows: TokenRows, hidden: Tensor) -> Tensor:
    """What the state after each sequence is worth: a target for other values, so no gradient flows through it."""
    return _head_of(role)(hidden[(rows.sequence_offsets[1:] - 1).to(hidden.device)]).to(rows.tokens.device)


def sequence_scores(role: Role, rows: TokenRows) -> Tensor:
    """The role's head at the last token of each sequence, whatever that token is, f32 [sequences].

    Raises TightropeError for an empty sequence.
    """
    if bool((rows.lengths < 1).any()):
        raise TightropeError("a sequence without tokens cannot be scored", fix="leave empty rows out")
    hidden = hidden_states(role, rows)
    last = gather_rows(hidden, (rows.sequence_offsets[1:] - 1).to(hidden.device))
    return _head_of(role)(last).to(rows.tokens.device)


def hidden_states(role: Role, rows: TokenRows) -> Tensor:
    """Last hidden state of every token, [tokens, hidden], on the network's device."""
    network = role.network
    if rows.n_tokens == 0:
        return torch.zeros(0, network.hidden_size, dtype=network.dtype, device=network.device)
    longest = int(rows.lengths.max())
    if longest > network.context_length:
        raise TightropeError(
            "a sequence does not fit the model",
            where=role.name,
            expected=f"at most {network.context_length} tokens",
            found=str(longest),
        )
    with network.using(role.adapter):
        return network_states(network, rows)


def network_states(network: Network, rows: TokenRows) -> Tensor:
    """``hidden_states`` with the adapter that is switched on, packed where the family is known to run so."""
    if not network.family.packed:
        network.count(rows.n_tokens, rows.n_sequences * int(rows.lengths.max()) - rows.n_tokens)
        return padded_states(network, rows)
    tokens, offsets = filled_up(rows, network.device)
    filling, lower = len(tokens) - rows.n_tokens, rows.lower
    if lower is None or lower.source is not network or lower.layer > network.lowest_layer(network.adapter):
        network.count(rows.n_tokens, filling)
        return _trunk(network, tokens, offsets)[: rows.n_tokens]
    network.count(rows.n_tokens, filling, above=lower.layer)
    given = torch.cat([lower.states, lower.states.new_zeros(filling, lower.states.shape[1])])
    with starting_at(network, lower.layer, given[None]):
        return _trunk(network, tokens, offsets)[: rows.n_tokens]


@torch.no_grad()
def with_lower_states(network: Network, layer: int, rows: TokenRows, token_budget: int | None) -> TokenRows:
    """The same rows with what enters this layer of the network, which no adapter may have reached."""
    parts: list[Tensor] = []
    for group in microbatch_indices(rows.lengths, token_budget):
        part = rows.select(group)
        tokens, offsets = filled_up(part, network.device)
        with network.using(None), ending_before(network, layer) as kept:
            _trunk(network, tokens, offsets)
            network.count(part.n_tokens, len(tokens) - part.n_tokens, below=layer)
        assert kept.states is not None
        parts.append(kept.states[0, : part.n_tokens])
    return replace(rows, lower=LowerStates(torch.cat(parts), layer, network)) if parts else rows


def _trunk(network: Network, tokens: Tensor, offsets: Tensor) -> Tensor:
    return network.trunk(
        input_ids=tokens[None].to(network.device),
        position_ids=positions_of(offsets)[None].to(network.device),
        layout=PackedLayout(offsets),
        use_cache=False,
    ).last_hidden_state[0]


def filled_up(rows: TokenRows, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and sequence offsets, on a CPU with more sequences that nobody reads, up to a number of tokens that comes
    again (``tightrope.kernels.products.recurring``). None is longer than the longest row, so no position is beyond the
    model's."""
    filling = recurring(rows.n_tokens) - rows.n_tokens if device.type == "cpu" else 0
    if filling == 0:
        return rows.tokens, rows.sequence_offsets
    tokens = torch.cat([rows.tokens, rows.tokens.new_zeros(filling)])
    ends = torch.arange(rows.n_tokens, len(tokens), int(rows.lengths.max()))[1:]
    return tokens, torch.cat([rows.sequence_offsets, ends, torch.tensor([len(tokens)])])


def positions_of(offsets: Tensor) -> Tensor:
    """Position of each token in its own sequence.

    >>> positions_of(torch.tensor([0, 3, 5])).tolist()
    [0, 1, 2, 0, 1]
    """
    return torch.arange(int(offsets[-1])) - offsets[:-1].repeat_interleave(offsets.diff())


def _predicting_positions(rows: TokenRows) -> Tensor:
    """Where each action is predicted: one before it."""
    if bool(torch.isin(rows.action_positions, rows.sequence_offsets[:-1]).any()):
        raise TightropeError(
            "an action is the first token of its sequence, so nothing predicts it",
            fix="give every row at least one token of context (a prompt, or the tokenizer's BOS)",
        )
    return rows.action_positions - 1


def _head_of(role: Role) -> Head:
    if role.head is None:
        raise ValueError(f"role {role.name} has no head")
    return role.head


class PackedLayout:
    """Each sequence attends to itself, causally. ``offsets`` int64 [sequences + 1] on the CPU.

    Sequences of similar length form a block [sequences, longest] for one attention call. The filling sits after a
    sequence's end, where causality keeps it from every real token, and its own results are never read.
    """

    def __init__(self, offsets: Tensor, bucket_width: int = BUCKET) -> None:
        lengths = offsets.diff()
        buckets = (lengths + bucket_width - 1) // bucket_width
        place = torch.empty(int(offsets[-1]), dtype=torch.int64)
        position, owner = positions_of(offsets), torch.arange(len(lengths)).repeat_interleave(lengths)
        self._blocks: list[tuple[int, int]] = []
        size = 0
        for bucket in buckets[lengths > 0].unique().tolist():
            members = buckets == bucket
            width = int(lengths[members].max())
            mine = members[owner]
            row = (members.cumsum(0) - 1)[owner[mine]]
            place[mine] = size + row * width + position[mine]
            self._blocks.append((int(members.sum()), width))
            size += self._blocks[-1][0] * width
        self._place = place
        self._masks: dict[tuple[int, int], Tensor] = {}
        self._size = size

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        """query [1, heads, tokens, dim], key and value [1, kv_heads, tokens, dim] -> [1, tokens, heads, dim]."""
        self._place = self._place.to(query.device)  # once: all layers of a pass share the layout
        queries, keys, values = (self._to_blocks(x[0].transpose(0, 1)) for x in (query, key, value))
        attended = [
            attention(q, k, v, self._visible(q.shape[2], scores.window), scores).transpose(1, 2).flatten(0, 1)
            for q, k, v in zip(queries, keys, values, strict=True)
        ]
        return gather_rows(torch.cat(attended), self._place)[None]

    def _visible(self, width: int, window: int | None) -> Tensor | None:
        """Causal and at most ``window`` wide, bool [width, width]; None where no sequence of the block is longer."""
        if window is None or width <= window:
            return None
        if (width, window) not in self._masks:
            seen = torch.ones(width, width, dtype=torch.bool, device=self._place.device)
            self._masks[width, window] = seen.tril() & seen.triu(1 - window)
        return self._masks[width, window]

    def _to_blocks(self, x: Tensor) -> list[Tensor]:
        """[tokens, heads, dim] -> per block [sequences, heads, longest, dim]."""
        filled = x.new_zeros(self._size, *x.shape[1:]).index_copy(0, self._place, x)
        pieces = filled.split([count * width for count, width in self._blocks])
        return [
            piece.view(count, width, *x.shape[1:]).transpose(1, 2)
            for piece, (count, width) in zip(pieces, self._blocks, strict=True)
        ]


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """``x[index]`` for indices that are all different, with a backward pass that copies instead of adding.

    Adding row by row (index_add) took half of the backward pass on short sequences.
    """
    return _GatherRows.apply(x, index)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = len(x)
        return x.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        return grad.new_zeros(ctx.rows, *grad.shape[1:]).index_copy_(0, ctx.saved_tensors[0], grad), None
