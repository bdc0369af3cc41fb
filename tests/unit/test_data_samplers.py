"""Is every row used exactly once an epoch, and is the position all that a resumed run needs?"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.data.samplers import PromptSampler, RowSampler
from tightrope.types import Prompt

SIZES = st.integers(1, 40)
SEEDS = st.integers(0, 2**63 - 1)
PINNED = [[4, 7, 6, 1, 5, 0, 3, 2], [5, 1, 4, 0, 2, 7, 6, 3]]


def prompts_of(n):
    return [Prompt(index, (index,), str(index), {}) for index in range(n)]


def drawn(sampler, batches):
    return [prompt.text for _ in range(batches) for prompt in sampler.next_batch()]


@settings(max_examples=100, deadline=None)
@given(rows=SIZES, batch_size=SIZES, seed=SEEDS)
def test_each_row_exactly_once_an_epoch_and_the_last_batch_too(rows, batch_size, seed):
    sampler = RowSampler(rows, batch_size, seed)
    orders = []
    for _ in range(3):
        batches = [sampler.next_rows() for _ in range(sampler.batches_per_epoch)]
        order = [row for batch in batches for row in batch]
        assert sorted(order) == list(range(rows))
        assert all(len(batch) == batch_size for batch in batches[:-1]) and 1 <= len(batches[-1]) <= batch_size
        orders.append(order)
    assert rows < 10 or orders[0] != orders[1] != orders[2] != orders[0]


@settings(max_examples=100, deadline=None)
@given(n=SIZES, per_step=SIZES, seed=SEEDS, epochs=st.integers(1, 3))
def test_prompts_go_round_evenly_whatever_the_batch_size(n, per_step, seed, epochs):
    sampler = PromptSampler(prompts_of(n), per_step, seed)
    batches = -(-n * epochs // per_step)
    texts = drawn(sampler, batches)
    assert len(texts) == batches * per_step
    for epoch in range(epochs):
        assert Counter(texts[epoch * n : (epoch + 1) * n]) == Counter(str(i) for i in range(n))


@settings(max_examples=100, deadline=None)
@given(n=SIZES, size=SIZES, seed=SEEDS, before=st.integers(0, 30))
def test_the_position_alone_restores_a_sampler(n, size, seed, before):  # FAULTS B63
    for make, take in (
        (lambda: RowSampler(n, size, seed), RowSampler.next_rows),
        (lambda: PromptSampler(prompts_of(n), size, seed), PromptSampler.next_batch),
    ):
        straight, resumed = make(), make()
        for _ in range(before):
            take(straight)
        assert set(straight.state_dict()) == {"position"}
        resumed.load_state_dict(straight.state_dict())
        assert [take(straight) for _ in range(4)] == [take(resumed) for _ in range(4)]


@settings(max_examples=50, deadline=None)
@given(n=SIZES, per_step=SIZES, seed=SEEDS, steps=st.integers(1, 5))
def test_a_prompt_never_has_the_same_key_twice_in_a_step(n, per_step, seed, steps):
    """Equal indices in one step would draw equal responses."""
    sampler = PromptSampler(prompts_of(n), per_step, seed)
    for _ in range(steps):
        batch = sampler.next_batch()
        assert len({prompt.index for prompt in batch}) == per_step
        assert all(prompt.index % n == int(prompt.text) for prompt in batch)


def test_fixed_prompts_are_the_same_every_step():
    sampler = PromptSampler(prompts_of(10), 4, seed=0, fixed=True)
    first = sampler.next_batch()
    assert sampler.next_batch() == first == PromptSampler(prompts_of(10), 4, seed=0).next_batch()


def test_seeds_and_purposes_give_different_orders():
    rows = [RowSampler(64, 64, seed).next_rows() for seed in (0, 1)]
    prompts = [int(text) for text in drawn(PromptSampler(prompts_of(64), 64, seed=0), 1)]
    assert rows[0] != rows[1] and rows[0] != prompts


def test_the_order_is_pinned():
    """A changed order would make old checkpoints go on with other rows."""
    sampler = RowSampler(8, 8, seed=7)
    assert [sampler.next_rows(), sampler.next_rows()] == PINNED


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        RowSampler(0, 4, 0)
    with pytest.raises(ValueError, match="at least one"):
        PromptSampler([], 4, 0)
