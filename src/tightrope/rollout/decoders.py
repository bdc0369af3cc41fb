"""How does the engine get the next hidden state of every running sequence? Packed families and all others alike.

decoder, hidden = prefill(network, prompts, row_of, new_tokens)     hidden [sequences, hidden]
hidden = decoder.step(token)                                        one token of each running sequence
left = decoder.keep(running)                                        the old place of each sequence that is left
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache

from tightrope.models.backbone import Network
from tightrope.models.packed_forward import PackedLayout, positions_of
from tightrope.rollout.kv_cache import DecodeLayout, KVCache, RecordingLayout
from tightrope.types import offsets_of


class Decoder(Protocol):
    def step(self, token: Tensor) -> Tensor:
        """token int64 [running] -> the hidden states after it, [running, hidden]."""
        ...

    def keep(self, running: Tensor) -> Tensor:
        """Drop where ``running`` (bool) is False; the old index of each sequence that is left, int64."""
        ...


def prefill(
    network: Network, prompts: Sequence[Sequence[int]], row_of: Tensor, new_tokens: int
) -> tuple[Decoder, Tensor]:
    """Run each prompt once; sequence i goes on from prompt ``row_of[i]``. Returns the last hidden states as well."""
    start = _packed if network.family.packed else _padded
    return start(network, prompts, row_of, new_tokens)


def _packed(
    network: Network, prompts: Sequence[Sequence[int]], row_of: Tensor, new_tokens: int
) -> tuple[Decoder, Tensor]:
    offsets = offsets_of([len(ids) for ids in prompts])
    layout = RecordingLayout(PackedLayout(offsets))
    ids = torch.tensor([token for prompt in prompts for token in prompt])
    hidden = _packed_trunk(network, ids[None], positions_of(offsets)[None], layout)[0]
    last = (offsets[1:] - 1)[row_of].to(hidden.device)
    return PackedDecoder(network, KVCache(layout.layers, offsets, row_of, new_tokens)), hidden[last]


class PackedDecoder:
    def __init__(self, network: Network, cache: KVCache) -> None:
        self._network = network
        self._cache = cache

    def step(self, token: Tensor) -> Tensor:
        cache = self._cache
        hidden = _packed_trunk(self._network, token[:, None], cache.lengths[:, None], DecodeLayout(cache))[:, 0]
        cache.advance()
        return hidden

    def keep(self, running: Tensor) -> Tensor:
        return self._cache.keep(running)


def _packed_trunk(network: Network, ids: Tensor, positions: Tensor, layout: RecordingLayout | DecodeLayout) -> Tensor:
    return network.trunk(
        input_ids=ids.to(network.device),
        position_ids=positions.to(network.device),
        layout=layout,
        use_cache=False,
    ).last_hidden_state


def _padded(
    network: Network, prompts: Sequence[Sequence[int]], row_of: Tensor, new_tokens: int
) -> tuple[Decoder, Tensor]:
    """Prompts end together (filled up on the left), so that new tokens follow their prompt without a hole: distances
    in sliding windows and position biases stay right.
    """
    lengths = torch.tensor([len(ids) for ids in prompts])
    longest = int(lengths.max())
    real = torch.arange(longest) >= longest - lengths[:, None]
    ids = torch.zeros(real.shape, dtype=torch.int64)
    ids[real] = torch.tensor([token for prompt in prompts for token in prompt])
    decoder = PaddedDecoder(network, real.to(network.device))
    hidden = decoder.forward(ids.to(network.device))[:, -1]
    row_of = row_of.to(network.device)
    decoder.select(row_of)
    return decoder, hidden[row_of]


class PaddedDecoder:
    """``real`` bool [sequences, length]: which places of the cache, transformers' own, hold a token."""

    def __init__(self, network: Network, real: Tensor) -> None:
        self._network = network
        self._real = real
        self._cache = DynamicCache(config=network.config)

    def step(self, token: Tensor) -> Tensor:
        self._real = torch.cat([self._real, self._real.new_ones(len(token), 1)], 1)
        return self.forward(token[:, None])[:, 0]

    def forward(self, ids: Tensor) -> Tensor:
        """The tokens at the end of ``real``: [sequences, n] -> [sequences, n, hidden]."""
        arguments = self._network.trunk_arguments
        positions = (self._real.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        known = {"position_ids": positions} if "position_ids" in arguments else {}
        known |= {"cache" if "cache" in arguments else "past_key_values": self._cache}
        return self._network.trunk(
            input_ids=ids, attention_mask=self._real.long(), use_cache=True, **known
        ).last_hidden_state

    def keep(self, running: Tensor) -> Tensor:
        left = running.nonzero().flatten()
        self.select(left)
        return left

    def select(self, index: Tensor) -> None:
        self._cache.batch_select_indices(index)
        self._real = self._real[index]
