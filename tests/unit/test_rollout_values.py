"""Does a critic on the policy's trunk, read while responses are drawn, say what a pass over the finished rows says?"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.rollouts import policy_of, prompts_of, reward_of
from tests.tiny import tiny_family
from tightrope.models.load import load_tokenizer
from tightrope.models.packed_forward import values_and_end_values
from tightrope.rollout.local_engine import LocalEngine
from tightrope.types import SampleKey, Sampling

CUT_OR_NOT = Sampling(0.7, 12, (1, 7, 20, 33))
KEY = SampleKey(0, 0, 0)
FP32 = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module", params=["llama", "gpt2", "mistral", "opt"])
def folder(request, tmp_path_factory):
    """The last one runs padded."""
    return tiny_family(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def policy(folder):
    return policy_of(folder)


@pytest.fixture(scope="module")
def critic(folder, policy):
    return replace(reward_of(folder), name="critic", network=policy.network)


def rollout_of(folder, policy, critic, budget=None, end_values=True):
    engine = LocalEngine(policy, load_tokenizer(folder), lambda: 0, budget, critic, end_values)
    return engine.generate(prompts_of(folder), 2, CUT_OR_NOT, KEY)


@pytest.mark.parametrize("budget", [None, 60, 1])
def test_the_values_are_those_of_a_pass_over_the_finished_rows(folder, policy, critic, budget) -> None:
    rollout = rollout_of(folder, policy, critic, budget)
    with torch.no_grad():
        values, ends = values_and_end_values(critic, rollout.rows)
    torch.testing.assert_close(rollout.values, values, **FP32)
    stopped = rollout.stopped
    assert 0 < int(stopped.sum()) < len(stopped)
    torch.testing.assert_close(rollout.end_values, torch.where(stopped, 0.0, ends), **FP32)
    assert rollout.values.dtype == torch.float32 and not rollout.values.requires_grad


def test_reading_them_changes_no_draw_and_ends_are_read_only_where_asked_for(folder, policy, critic) -> None:
    with_values, without = rollout_of(folder, policy, critic, end_values=False), rollout_of(folder, policy, None)
    assert torch.equal(with_values.rows.tokens, without.rows.tokens)
    assert torch.equal(with_values.behaviour_logprobs, without.behaviour_logprobs)
    assert with_values.values is not None and with_values.end_values is None
    assert without.values is None and without.end_values is None


def test_chosen_sequences_keep_their_values(folder, policy, critic) -> None:
    rollout = rollout_of(folder, policy, critic)
    chosen = rollout.select([5, 0])
    begin, end = rollout.rows.action_offsets[5:7].tolist()
    assert torch.equal(chosen.values[: end - begin], rollout.values[begin:end])
    assert torch.equal(chosen.end_values, rollout.end_values[[5, 0]])


def test_a_critic_on_another_trunk_is_refused(folder, policy, critic) -> None:
    for other in (replace(critic, network=policy_of(folder).network), replace(critic, adapter="critic")):
        with pytest.raises(ValueError, match="critic is no head on the trunk of policy"):
            rollout_of(folder, policy, other)
