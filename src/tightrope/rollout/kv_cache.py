"""How does a running response remember its prompt: keys and values of every layer, one slot a sequence.

    slots     running sequences; a finished one gives its slot to the last, so the running ones stay in front
    layers    (keys, values), each [slots, kv_heads, room, dim], room = longest prompt + new tokens
    lengths   int64 [slots], tokens that each slot holds; what lies beyond is never attended to

The prompts run once through the packed layout, which is recorded; samples of one prompt share that pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tightrope.models.attention import Layout, Scores, attention
from tightrope.types import offsets_of, spans


class RecordingLayout:
    """Attends as ``packed`` does and keeps the keys and values of each layer, [kv_heads, tokens, dim]."""

    def __init__(self, packed: Layout) -> None:
        self._packed = packed
        self.layers: list[tuple[Tensor, Tensor]] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        self.layers.append((key[0], value[0]))
        return self._packed.attend(query, key, value, scores)


class KVCache:
    def __init__(
        self, recorded: Sequence[tuple[Tensor, Tensor]], prompt_offsets: Tensor, prompt_of: Tensor, new_tokens: int
    ) -> None:
        """Slot i starts from prompt ``prompt_of[i]`` of the recorded pass and has room for ``new_tokens`` more."""
        device = recorded[0][0].device
        lengths = prompt_offsets.diff()[prompt_of]
        token = spans(prompt_offsets, prompt_of)
        slot = torch.arange(len(lengths)).repeat_interleave(lengths)
        position = torch.arange(len(token)) - offsets_of(lengths)[slot]
        self._room = int(lengths.max()) + new_tokens
        place = (slot.to(device), position.to(device), token.to(device))
        self._layers = [(self._spread(keys, *place), self._spread(values, *place)) for keys, values in recorded]
        self.lengths = lengths.to(device)

    def _spread(self, packed: Tensor, slot: Tensor, position: Tensor, token: Tensor) -> Tensor:
        kv_heads, _, dim = packed.shape
        # Zeros, not empty memory: a weight of 0 times a stray NaN would be NaN.
        spread = packed.new_zeros(int(slot[-1]) + 1, kv_heads, self._room, dim)
        spread[slot, :, position] = packed[:, token].transpose(0, 1)
        return spread

    @property
    def n_slots(self) -> int:
        return len(self.lengths)

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write one more token a slot, [slots, kv_heads, dim]; returns views of all keys and values."""
        keys, values = self._layers[layer]
        slots = torch.arange(self.n_slots, device=key.device)
        keys[slots, :, self.lengths] = key
        values[slots, :, self.lengths] = value
        return keys[: self.n_slots], values[: self.n_slots]

    def advance(self) -> None:
        """Every layer has appended its token."""
        self.lengths = self.lengths + 1

    def keep(self, running: Tensor) -> Tensor:
        """Drop the slots where ``running`` (bool [slots]) is False; returns the old slot of each slot that is left.

        Only as many slots are copied as have ended. Memory is given back whenever half of it lies unused.
        """
        left = int(running.sum())
        source = torch.arange(left, device=running.device)
        holes = (~running[:left]).nonzero().flatten()
        movers = running[left:].nonzero().flatten() + left
        source[holes] = movers
        for index, pair in enumerate(self._layers):
            for tensor in pair:
                tensor[holes] = tensor[movers]
            if 2 * left <= len(pair[0]):
                self._layers[index] = (pair[0][:left].clone(), pair[1][:left].clone())
        self.lengths = self.lengths[source]
        return source


class DecodeLayout:
    """One new token a slot: the layers of one step come by in order; each token sees its own sequence."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._layer = 0
        self._shortest, self._longest = (int(n) + 1 for n in torch.stack(cache.lengths.aminmax()).tolist())
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        keys, values = self._cache.append(self._layer, key.squeeze(2), value.squeeze(2))
        self._layer += 1
        slots, heads, _, dim = query.shape
        # Query heads that share a key head become that head's queries, so keys and values are not repeated.
        grouped = query.reshape(slots, keys.shape[1], -1, dim)
        # What has fallen out of every slot's window is not even read.
        begin = 0 if scores.window is None else max(0, self._shortest - scores.window)
        seen = slice(begin, self._longest)
        visible = self._visible(scores.window)[..., seen]
        attended = attention(grouped, keys[:, :, seen], values[:, :, seen], visible, scores)
        return attended.reshape(slots, 1, heads, dim)

    def _visible(self, window: int | None) -> Tensor:
        """bool [slots, 1, 1, longest]: the slot's own tokens, of them the last ``window``. Once a step and width."""
        if window not in self._masks:
            last = self._cache.lengths[:, None]
            positions = torch.arange(self._longest, device=last.device)
            visible = positions <= last
            if window is not None:
                visible &= positions > last - window
            self._masks[window] = visible[:, None, None]
        return self._masks[window]
