"""What does the engine return: where responses end, what they hold, and what is refused?"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.rollouts import engine_of, policy_of, prompts_of, responses
from tests.tiny import tiny_llama
from tightrope.config.errors import TightropeError
from tightrope.models.load import load_tokenizer
from tightrope.rollout.local_engine import LocalEngine
from tightrope.rollout.sampling import NonFiniteLogits
from tightrope.types import Prompt, SampleKey, Sampling

KEY = SampleKey(0, 0, 0)
UNENDING = Sampling(1.0, 12, ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def unending(folder):
    """Two samples of each prompt that nothing ends."""
    return engine_of(folder).generate(prompts_of(folder, repeat=2), 2, UNENDING, KEY)


def test_without_an_end_id_every_response_is_cut_at_the_limit(unending):
    assert unending.rows.action_counts.tolist() == [12] * 32
    assert set(unending.finish_reason) == {"length"}


def test_any_end_id_ends_a_response_and_nothing_else_does(folder, unending):  # B15, B18
    ends = (1, 7, 20, 33)  # the tokenizer's EOS and three ordinary words
    rollout = engine_of(folder).generate(prompts_of(folder, repeat=2), 2, replace(UNENDING, eos_ids=ends), KEY)
    expected = {}
    for name, ids in responses(unending).items():
        first = next((i for i, token in enumerate(ids) if token in ends), None)
        expected[name] = ids if first is None else ids[: first + 1]
    assert responses(rollout) == expected  # the end token is kept, and nothing is written over what was sampled (B17)
    reasons = ["stop" if ids[-1] in ends else "length" for ids in expected.values()]
    assert list(rollout.finish_reason) == reasons
    assert {"stop", "length"} == set(reasons)
    assert len({ids[-1] for ids in expected.values() if ids[-1] in ends}) > 1
    assert rollout.rows.action_counts.tolist() == [len(ids) for ids in expected.values()]
    assert len(rollout.behaviour_logprobs) == rollout.rows.n_actions


def test_an_end_id_at_the_limit_is_a_stop(folder, unending):
    ids = responses(unending)[(0, 0)]
    end = next(token for token in ids if ids.count(token) == 1)
    sampling = Sampling(1.0, ids.index(end) + 1, (end,))
    rollout = engine_of(folder).generate(prompts_of(folder)[:1], 1, sampling, KEY)
    assert rollout.rows.actions(0).tolist() == ids[: ids.index(end) + 1]
    assert rollout.finish_reason == ("stop",)


def test_a_response_that_ends_at_once_has_one_action_and_no_text(folder):
    prompts = prompts_of(folder)
    everything = tuple(range(policy_of(folder).network.config.vocab_size))
    rollout = engine_of(folder).generate(prompts, 1, Sampling(1.0, 12, everything), KEY)
    assert rollout.rows.action_counts.tolist() == [1] * len(prompts)
    assert set(rollout.finish_reason) == {"stop"}
    assert set(rollout.responses) == {""}
    assert len({ids[0] for ids in responses(rollout).values()}) > 1  # sampled, not written there


def test_the_prompts_come_back_in_order_with_their_samples_side_by_side(folder, unending):
    prompts = prompts_of(folder, repeat=2)
    assert unending.prompts == tuple(prompts)
    assert unending.prompt_index.tolist() == [i for i in range(16) for _ in range(2)]
    assert unending.sample_index.tolist() == [0, 1] * 16
    for i, prompt in enumerate(unending.prompt_index.tolist()):
        assert unending.rows.sequence(i).tolist()[:-12] == list(prompts[prompt].token_ids)
    assert (unending.policy_version, unending.temperature) == (5, 1.0)


def test_text_is_the_response_without_special_tokens_and_without_its_end(folder, unending):
    tokenizer = load_tokenizer(folder)
    special = set(tokenizer.all_special_ids)
    for ids, text in zip(responses(unending).values(), unending.responses, strict=True):
        assert text == tokenizer.decode([token for token in ids if token not in special])
    word = responses(unending)[(3, 0)][0]
    stopped = engine_of(folder).generate(prompts_of(folder)[3:4], 1, Sampling(1.0, 12, (word,)), KEY)
    assert stopped.responses == ("",)  # a stop word that the tokenizer does not call special is no text either


def test_a_prompt_that_comes_twice_gets_different_samples(folder):
    prompts = prompts_of(folder)[:2]
    together = engine_of(folder).generate(prompts, 2, UNENDING, KEY)
    repeated = engine_of(folder).generate([*prompts, *prompts], 1, UNENDING, KEY)
    assert repeated.sample_index.tolist() == [0, 0, 1, 1]
    assert responses(repeated) == responses(together)


def test_what_comes_back_can_enter_autograd(folder, unending):
    weight = torch.ones(1, requires_grad=True)
    (unending.behaviour_logprobs * weight).sum().backward()
    assert weight.grad is not None and weight.grad.item() < 0
    assert not unending.behaviour_logprobs.requires_grad


def test_a_prompt_without_tokens_is_refused(folder):
    with pytest.raises(TightropeError, match="prompt 4: the prompt has no tokens"):
        engine_of(folder).generate([Prompt(4, (), "", {})], 1, UNENDING, KEY)


def test_a_prompt_that_leaves_no_room_is_refused(folder):
    with pytest.raises(TightropeError, match=r"prompt 4: .* expected at most 64, found 53 \+ 12"):
        engine_of(folder).generate([Prompt(4, (5,) * 53, "", {})], 1, UNENDING, KEY)
    assert engine_of(folder).generate([Prompt(4, (5,) * 52, "", {})], 1, UNENDING, KEY).n_sequences == 1


def test_broken_weights_are_a_named_error(folder):  # B71
    policy = policy_of(folder)
    engine = LocalEngine(policy, load_tokenizer(folder), lambda: 0)
    token = prompts_of(folder)[2].token_ids[0]
    with torch.no_grad():
        policy.network.trunk.get_input_embeddings().weight[token] = torch.nan
    with pytest.raises(NonFiniteLogits, match=r"response token 0 of prompt 2; the model's weights"):
        engine.generate(prompts_of(folder)[2:3], 1, UNENDING, SampleKey(0, 0, 9))
