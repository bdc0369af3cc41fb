"""How does a running response remember its prompt: keys and values of every layer, one slot a sequence.

    slots     running sequences; a finished one gives its slot to the last, so the running ones stay in front
    layers    (keys, values), each [slots, kv_heads, room, dim], room = longest prompt + new tokens
    starts    int64 [slots], where each slot's first token lies; what lies before is never attended to

All prompts end in the same column, so a new token goes to one column of all slots, and a window is a range of columns.
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
        self._end = int(lengths.max())
        self._room = self._end + new_tokens
        token = spans(prompt_offsets, prompt_of)
        slot = torch.arange(len(lengths)).repeat_interleave(lengths)
        column = torch.arange(len(token)) + (self._end - offsets_of(lengths)[1:])[slot]
        place = (slot.to(device), column.to(device), token.to(device))
        self._layers = [(self._spread(keys, *place), self._spread(values, *place)) for keys, values in recorded]
        self._take_starts(self._end - lengths.to(device))

    def _spread(self, packed: Tensor, slot: Tensor, column: Tensor, token: Tensor) -> Tensor:
        kv_heads, _, dim = packed.shape
        # Zeros, not empty memory: a weight of 0 times a stray NaN would be NaN.
        spread = packed.new_zeros(int(slot[-1]) + 1, kv_heads, self._room, dim)
        spread[slot, :, column] = packed[:, token].transpose(0, 1)
        return spread

    def _take_starts(self, starts: Tensor) -> None:
        self.starts = starts
        self.first = int(starts.min()) if len(starts) else self._end
        """The first column that belongs to anyone, on the CPU: asked once a change, not once a step."""

    @property
    def n_slots(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Tensor:
        """int64 [slots], tokens that each slot holds: the position of its next one."""
        return self._end - self.starts

    @property
    def end(self) -> int:
        """The column of the next token."""
        return self._end

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write one more token a slot, [slots, kv_heads, dim]; returns views of all keys and values with it."""
        keys, values = (held[: self.n_slots, :, : self._end + 1] for held in self._layers[layer])
        keys[:, :, -1] = key
        values[:, :, -1] = value
        return keys, values

    def advance(self) -> None:
        """Every layer has appended its token."""
        self._end += 1

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
                tensor[holes, :, : self._end] = tensor[movers, :, : self._end]
            if 2 * left <= len(pair[0]):
                self._layers[index] = (pair[0][:left].clone(), pair[1][:left].clone())
        self._take_starts(self.starts[source])
        return source


class DecodeLayout:
    """One new token a slot: the layers of one step come by in order; each token sees its own sequence."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._layer = 0
        self._visible: dict[int, Tensor] = {}
        self._biases: dict[tuple[int, int], Tensor] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        cache = self._cache
        keys, values = cache.append(self._layer, key.squeeze(2), value.squeeze(2))
        self._layer += 1
        slots, heads, _, dim = query.shape
        # Query heads that share a key head become that head's queries, so keys and values are not repeated.
        grouped = query.reshape(slots, keys.shape[1], -1, dim)
        begin = cache.first if scores.window is None else max(cache.first, cache.end + 1 - scores.window)
        keys, values = keys[:, :, begin:], values[:, :, begin:]
        if query.device.type == "cpu" and query.dtype == torch.float32 and scores.softcap is None:
            attended = few_queries(grouped, keys, values, self._bias(begin, keys.shape[1]), scores.scale)
        else:
            attended = attention(grouped, keys, values, self._seen(begin), scores)
        return attended.reshape(slots, 1, heads, dim)

    def _seen(self, begin: int) -> Tensor:
        """bool [slots, 1, 1, columns from ``begin``]: those with the slot's own tokens. Once a step and window."""
        if begin not in self._visible:
            starts = self._cache.starts
            columns = torch.arange(begin, self._cache.end + 1, device=starts.device)
            self._visible[begin] = (columns >= starts[:, None])[:, None, None]
        return self._visible[begin]

    def _bias(self, begin: int, kv_heads: int) -> Tensor:
        """The same as what is added to scores, f32 [slots * kv_heads, 1, columns]: 0 or -∞."""
        if (begin, kv_heads) not in self._biases:
            seen = self._seen(begin)[:, 0].repeat_interleave(kv_heads, 0)
            self._biases[begin, kv_heads] = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)
        return self._biases[begin, kv_heads]


def few_queries(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
    """softmax(scale · q · kᵀ + bias) · v as two batched products, float32 [slots, kv_heads, queries, dim].

    On a CPU torch's fused kernel is made for many queries a key head; here there is one token's handful.
    """
    weights = torch.baddbmm(bias, query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), alpha=scale).softmax(-1)
    return torch.bmm(weights, value.flatten(0, 1)).view(*query.shape)
