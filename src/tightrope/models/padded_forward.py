"""The slower way for architectures that are not known to run packed: rows of similar length, filled up on the right.

The filling stands after a row's end: causality and the attention mask keep it from every real token, and its own
results are never read. The mask comes from the lengths, never from token ids, so any id may be a real token. Attention
is the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tightrope.models.backbone import Network
from tightrope.types import TokenRows, spans


def padded_states(network: Network, rows: TokenRows) -> Tensor:
    """Last hidden state of every token, [tokens, hidden], on the network's device."""
    places: list[Tensor] = []
    states: list[Tensor] = []
    for group in _similar_lengths(rows.lengths):
        lengths, place = rows.lengths[group], spans(rows.sequence_offsets, group)
        positions = torch.arange(int(lengths.max()))
        real = positions < lengths[:, None]
        ids = torch.zeros(real.shape, dtype=torch.int64)
        ids[real] = rows.tokens[place]
        hidden = padded_trunk(network, ids, real, positions.expand(real.shape))
        places.append(place)
        states.append(hidden[real.to(hidden.device)])
    return torch.cat(states).index_select(0, torch.cat(places).argsort().to(network.device))


def padded_trunk(network: Network, ids: Tensor, real: Tensor, positions: Tensor) -> Tensor:
    """[rows, length, hidden]. Models without ``position_ids`` count the mask (BLOOM) or need none."""
    device = network.device
    known = {"position_ids": positions.to(device)} if "position_ids" in network.trunk_arguments else {}
    return network.trunk(
        input_ids=ids.to(device), attention_mask=real.long().to(device), use_cache=False, **known
    ).last_hidden_state


def _similar_lengths(lengths: Tensor) -> Iterator[Tensor]:
    """Indices of rows whose lengths lie between two powers of 2: at most as much filling as there are tokens."""
    powers = torch.tensor([int(length).bit_length() for length in lengths.tolist()])
    for power in powers[powers > 0].unique().tolist():
        yield (powers == power).nonzero().flatten()
