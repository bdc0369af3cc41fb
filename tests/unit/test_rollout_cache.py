"""Does a slot keep its own keys and values while others leave, and is the room of finished ones given back?"""

from __future__ import annotations

import pytest
import torch

from tightrope.models.attention import Scores
from tightrope.rollout.kv_cache import DecodeLayout, KVCache

KV_HEADS, DIM, NEW = 2, 4, 6
PROMPTS = torch.tensor([0, 3, 4, 9])  # three prompts of 3, 1 and 5 tokens


def recorded(layers=2):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(KV_HEADS, 9, DIM, generator=generator), torch.randn(KV_HEADS, 9, DIM, generator=generator))
        for _ in range(layers)
    ]


def cache_of(prompt_of=(0, 1, 2)):
    return KVCache(recorded(), PROMPTS, torch.tensor(prompt_of), NEW)


def step(cache, values):
    """Each layer writes ``values[slot]`` everywhere; returns what the last layer holds, per slot from its start."""
    for layer in range(2):
        new = torch.tensor(values)[:, None, None].expand(-1, KV_HEADS, DIM)
        keys, _ = cache.append(layer, new, new)
    cache.advance()
    return [keys[slot, :, start:] for slot, start in enumerate(cache.starts.tolist())]


def test_each_slot_starts_with_its_prompt():
    cache = cache_of((2, 0, 2, 1))
    assert cache.lengths.tolist() == [5, 3, 5, 1]
    held = step(cache, [10.0, 11.0, 12.0, 13.0])
    keys = recorded()[1][0]
    for slot, prompt in enumerate((2, 0, 2, 1)):
        expected = keys[:, PROMPTS[prompt] : PROMPTS[prompt + 1]]
        assert torch.equal(held[slot][:, :-1], expected)
        assert (held[slot][:, -1] == 10 + slot).all()


@pytest.mark.parametrize("running", [(0, 0, 1, 1, 0), (1, 1, 1, 0, 0), (0, 1, 1, 1, 1), (0, 0, 0, 0, 1)])
def test_who_stays_keeps_what_is_its_own(running):
    prompts = (2, 0, 1, 2, 0)
    cache = cache_of(prompts)
    before = step(cache, [float(slot) for slot in range(5)])
    source = cache.keep(torch.tensor(running, dtype=torch.bool))
    assert sorted(source.tolist()) == [slot for slot, flag in enumerate(running) if flag]
    after = step(cache, [100.0] * len(source))
    assert cache.n_slots == sum(running)
    for slot, old in enumerate(source.tolist()):
        assert torch.equal(after[slot][:, :-1], before[old])


def test_half_empty_memory_is_given_back():
    cache = cache_of((0, 1, 2, 0, 1, 2, 0, 1))
    sizes = []
    for left in (7, 5, 4, 2, 1):
        cache.keep(torch.arange(cache.n_slots) < left)
        sizes.append(len(cache._layers[0][0]))
    assert sizes == [8, 8, 4, 2, 1]


def test_a_token_attends_to_its_own_sequence_alone():
    cache = cache_of((0, 1, 2))
    for keys, values in cache._layers:  # what lies beside a sequence must not matter
        for slot, start in enumerate(cache.starts.tolist()):
            for held in (keys, values):
                held[slot, :, :start] = held[slot, :, cache.end :] = 1e9
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(3, 4, 1, DIM, generator=generator)
    key, value = torch.randn(2, 3, KV_HEADS, 1, DIM, generator=generator)
    found = DecodeLayout(cache).attend(query, key, value, Scores(0.5))
    keys, values = recorded()[0]
    for slot in range(3):
        own = slice(int(PROMPTS[slot]), int(PROMPTS[slot + 1]))
        for head in range(4):
            group = head // 2  # two query heads share a key head
            k = torch.cat([keys[group, own], key[slot, group]])
            v = torch.cat([values[group, own], value[slot, group]])
            expected = ((k @ query[slot, head, 0]) * 0.5).softmax(0) @ v
            torch.testing.assert_close(found[slot, 0, head], expected, rtol=0, atol=1e-6)
