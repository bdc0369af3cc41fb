"""Does the judge bring the rewards, reference log-probs and values of a rollout, in order, whatever the budget?"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.rollouts import policy_of, prompts_of, reward_of
from tests.tiny import tiny_gpt2, tiny_llama
from tightrope.config.schema import MissingEosSection, RewardSection
from tightrope.models.heads import Head
from tightrope.models.load import load_tokenizer
from tightrope.models.packed_forward import action_values, token_logprobs
from tightrope.models.roles import Role, Roles
from tightrope.rollout.local_engine import LocalEngine
from tightrope.scoring.functions import FunctionReward
from tightrope.scoring.judge import Judging, LocalJudge, NonFiniteReward
from tightrope.scoring.normaliser import RewardNormaliser
from tightrope.scoring.reward_model import RewardModel
from tightrope.types import SampleKey, Sampling

TEMPERATURE = 0.7
WORDS_OF = FunctionReward(lambda samples: [float(len(one.response.split())) for one in samples], "words")
PLAIN = RewardSection(function="words:words", normalise="off", missing_eos=MissingEosSection(mode="off"))
TINY_FP32 = 1e-5  # log-probs and values of another batch composition


@pytest.fixture(scope="module", params=[tiny_llama, tiny_gpt2], ids=["llama", "gpt2"])
def folder(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("models") / request.param.__name__)


@pytest.fixture(scope="module")
def roles(folder, request):
    """A policy with a critic on its trunk, and a reference of other weights."""
    policy = policy_of(folder)
    critic = replace(reward_of(folder), name="critic", network=policy.network)
    other = policy_of(folder)
    with torch.no_grad():
        for parameter in other.network.trunk.parameters():
            parameter.mul_(0.9)
    return Roles(policy=policy, reference=replace(other, name="reference"), critic=critic, shared_trunk=True)


@pytest.fixture(scope="module")
def rollout(folder, roles):
    engine = LocalEngine(roles.policy, load_tokenizer(folder), lambda: 0)
    return engine.generate(prompts_of(folder), 2, Sampling(TEMPERATURE, 16, (1, 9, 17)), SampleKey(0, 0, 0))


def judge(roles, source=WORDS_OF, section=PLAIN, normaliser=None, token_budget=None, judging=None):
    return LocalJudge(source, normaliser or RewardNormaliser(), section, roles, TEMPERATURE, token_budget, judging)


def close(left, right):
    torch.testing.assert_close(left, right, rtol=0, atol=TINY_FP32)


def test_one_pass_gives_values_and_the_policys_logprobs(roles, rollout):
    scores = judge(roles).score(rollout)
    with torch.no_grad():
        close(scores.policy_logprobs, token_logprobs(roles.policy, rollout.rows, TEMPERATURE).logprobs)
        close(scores.values, action_values(roles.critic, rollout.rows))
        close(scores.ref_logprobs, token_logprobs(roles.reference, rollout.rows, TEMPERATURE).logprobs)
    close(scores.policy_logprobs, rollout.behaviour_logprobs)
    assert float((scores.ref_logprobs - scores.policy_logprobs).abs().max()) > 0.01


def test_nothing_is_computed_for_a_role_that_does_not_exist(roles, rollout):
    scores = judge(replace(roles, reference=None, critic=None)).score(rollout)
    assert (scores.ref_logprobs, scores.values, scores.policy_logprobs) == (None, None, None)


def test_values_that_came_with_the_rollout_are_taken_as_they_are(roles, rollout):
    values, ends = torch.arange(float(rollout.rows.n_actions)), torch.arange(1.0, 1.0 + rollout.n_sequences)
    brought = replace(rollout, values=values, end_values=ends)
    scores = judge(roles).score(brought)
    assert scores.values is values and scores.policy_logprobs is None and scores.end_values is None
    bootstrapped = judge(roles, judging=Judging(bootstrap=True)).score(brought)
    assert torch.equal(bootstrapped.end_values, torch.where(rollout.stopped, 0.0, ends))


def test_a_separate_critic_is_read_from_its_own_network(folder, roles, rollout):
    other = roles.reference.network
    critic = Role("critic", other, None, Head(torch.ones(other.hidden_size), None))
    scores = judge(replace(roles, critic=critic, shared_trunk=False)).score(rollout)
    with torch.no_grad():
        close(scores.values, action_values(critic, rollout.rows))
    assert scores.policy_logprobs is None


@pytest.mark.parametrize("budget", [1, 50, 150])
def test_the_token_budget_changes_nothing(roles, rollout, budget):
    whole, parts = judge(roles).score(rollout), judge(roles, token_budget=budget).score(rollout)
    for name in ("reward", "ref_logprobs", "values", "policy_logprobs"):
        close(getattr(parts, name), getattr(whole, name))


def test_the_order_of_the_rows_changes_nothing(folder, roles, rollout):
    source = RewardModel(reward_of(folder), load_tokenizer(folder), 60)
    scores = judge(roles, source, token_budget=60).score(rollout)
    order = torch.randperm(rollout.n_sequences, generator=torch.Generator().manual_seed(0))
    shuffled = judge(roles, source, token_budget=60).score(rollout.select(order))
    close(shuffled.reward, scores.reward[order])
    for row, at in enumerate(order.tolist()):
        here, there = (
            slice(*rows.action_offsets[i : i + 2].tolist())
            for rows, i in ((rollout.select(order).rows, row), (rollout.rows, at))
        )
        close(shuffled.ref_logprobs[here], scores.ref_logprobs[there])
        close(shuffled.values[here], scores.values[there])


def test_the_reward_is_shaped_and_its_parts_are_kept(roles, rollout):
    section = RewardSection(function="words:words", length_cost=0.1)
    scores = judge(roles, section=section, normaliser=RewardNormaliser(0.5, -1.0)).score(rollout)
    words = torch.tensor([float(len(text.split())) for text in rollout.responses])
    tokens, cut = rollout.rows.action_counts, ~rollout.stopped
    assert 0 < int(cut.sum()) < len(cut)
    torch.testing.assert_close(scores.parts["raw"], words)
    torch.testing.assert_close(scores.reward, 0.5 * words - 1.0 - 0.1 * tokens - 1.0 * cut, rtol=0, atol=1e-5)
    assert set(scores.parts) == {"raw", "normalised", "length_cost", "missing_eos"}


def test_scores_hold_no_graph(roles, rollout):
    scores = judge(roles).score(rollout)
    tensors = [scores.reward, scores.ref_logprobs, scores.values, scores.policy_logprobs, *scores.parts.values()]
    assert not any(tensor.requires_grad for tensor in tensors)
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


def test_a_source_that_is_not_finite_is_refused(roles, rollout):
    class Broken:
        def score(self, samples):
            return [0.0] * (len(samples) - 1) + [float("nan")]

    with pytest.raises(NonFiniteReward, match="sample 15"):
        judge(roles, Broken()).score(rollout)


def test_a_rollout_of_another_temperature_is_refused(roles, rollout):
    with pytest.raises(ValueError, match=r"rollout at temperature 1\.0, judge at 0\.7"):
        judge(roles).score(replace(rollout, temperature=1.0))
