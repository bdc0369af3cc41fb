"""Do PPO and RLOO assign credit and take their loss from the right numbers? No model: the numbers are given."""

from __future__ import annotations

import math

import pytest
import torch

from tightrope.algorithms.options import PPOOptions, RLOOOptions
from tightrope.algorithms.ppo import PPO
from tightrope.algorithms.rloo import RLOO
from tightrope.maths.advantages import gae, whiten
from tightrope.types import PolicyOutput, Prompt, Rollout, Scores, TokenRows

BETA = 0.1
ROWS = TokenRows.of([([1], [2, 3]), ([1], [2, 4, 5]), ([5], [6]), ([5], [7, 8])])
SAMPLED = -torch.arange(1.0, 9.0) / 4
REF = SAMPLED - torch.tensor([0.5, -0.5, 0.0, 1.0, 0.0, 0.25, 0.0, 0.25])  # KL of the responses: 0, 1, 0.25, 0.25
KL = torch.tensor([0.0, 1.0, 0.25, 0.25])
REWARD = torch.tensor([1.0, 2.0, 0.0, 3.0])


def rollout() -> Rollout:
    return Rollout(
        rows=ROWS,
        behaviour_logprobs=SAMPLED,
        finish_reason=("stop",) * 4,
        responses=("a",) * 4,
        prompts=tuple(Prompt(i, (1,), "text", {}) for i in range(2)),
        prompt_index=torch.tensor([0, 0, 1, 1]),
        sample_index=torch.tensor([0, 1, 0, 1]),
        policy_version=0,
        temperature=1.0,
    )


def scores(**changes) -> Scores:
    return Scores(**({"reward": REWARD, "parts": {}, "ref_logprobs": REF, "values": torch.zeros(8)} | changes))


def ppo(**options) -> PPO:
    return PPO(PPOOptions(**options), lambda: BETA)


def rloo() -> RLOO:
    return RLOO(RLOOOptions(), lambda: BETA)


def output(logprobs: torch.Tensor, values: torch.Tensor | None = None) -> PolicyOutput:
    return PolicyOutput(logprobs, torch.full((8,), 0.5), values)


def test_ppo_rewards_are_score_minus_beta_kl_and_credit_is_gae_whitened() -> None:
    values = torch.linspace(-1, 1, 8)
    experience = ppo(gamma=0.9, lam=0.8).credit(rollout(), scores(values=values))
    sums = torch.stack([experience.rewards[a:b].sum() for a, b in ((0, 2), (2, 5), (5, 6), (6, 8))])
    torch.testing.assert_close(sums, REWARD - BETA * KL)
    advantages, returns = gae(experience.rewards, values, ROWS.action_offsets, 0.9, 0.8)
    assert torch.equal(experience.advantages, whiten(advantages))
    assert experience.returns is not None
    assert torch.equal(experience.returns, returns)
    assert experience.stats["advantage_std"] == pytest.approx(float(advantages.std(correction=0)))


def test_ppo_may_leave_advantages_as_they_are() -> None:
    plain = ppo(whiten_advantages=False, lam=1.0).credit(rollout(), scores()).advantages
    assert float(plain[4]) == pytest.approx(2.0)


def test_ppo_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="critic"):
        ppo().credit(rollout(), scores(values=None))


@pytest.mark.parametrize("algorithm", [ppo(), rloo()], ids=["ppo", "rloo"])
def test_old_logprobs_are_the_trainers_where_it_has_them(algorithm) -> None:
    assert torch.equal(algorithm.credit(rollout(), scores()).old_logprobs, SAMPLED)
    own = SAMPLED + 0.01
    assert torch.equal(algorithm.credit(rollout(), scores(policy_logprobs=own)).old_logprobs, own)


@pytest.mark.parametrize("algorithm", [ppo(), rloo()], ids=["ppo", "rloo"])
def test_without_a_reference_rewards_hold_no_kl(algorithm) -> None:
    rewards = algorithm.credit(rollout(), scores(ref_logprobs=None)).rewards
    assert rewards.tolist() == [0, 1, 0, 0, 2, 0, 0, 3]


def test_ppo_loss_is_a_sum_over_actions_with_the_value_term_weighted() -> None:
    algorithm = ppo(value_coef=0.25, value_clip=None)
    experience = algorithm.credit(rollout(), scores())
    values = torch.ones(8)
    loss = algorithm.loss(output(SAMPLED.clone(), values), experience)
    assert algorithm.counts(experience) == {"policy": 8, "value": 8}
    assert float(loss.terms["policy"].sum) == pytest.approx(-float(experience.advantages.sum()), abs=1e-6)
    assert experience.returns is not None
    assert float(loss.terms["value"].sum) == pytest.approx(float((values - experience.returns).square().sum() / 2))
    assert (loss.terms["policy"].weight, loss.terms["value"].weight) == (1.0, 0.25)


def test_statistics_of_the_first_minibatch_say_that_nothing_moved() -> None:
    experience = ppo().credit(rollout(), scores())
    stats = ppo().loss(output(SAMPLED.clone(), torch.zeros(8)), experience).stats
    means = {name: total / count for name, (total, count) in stats.items()}
    assert means["ratio"] == 1.0
    assert means["ratio_error"] == means["approx_kl"] == means["approx_kl_k2"] == means["clip_fraction"] == 0.0
    assert means["entropy_tok"] == 0.5


def test_approx_kl_is_the_old_policy_against_the_new() -> None:
    """Ratio 2 at each action: k3 is 2 - 1 - ln 2, where the other direction would be 1/2 - 1 + ln 2."""
    experience = ppo().credit(rollout(), scores())
    total, count = ppo().loss(output(SAMPLED + math.log(2), torch.zeros(8)), experience).stats["approx_kl"]
    assert total / count == pytest.approx(1 - math.log(2), abs=1e-6)


def test_statistics_stay_finite_for_an_absurd_ratio() -> None:
    experience = ppo().credit(rollout(), scores())
    stats = ppo().loss(output(SAMPLED + 200.0, torch.zeros(8)), experience).stats
    assert all(math.isfinite(total) for total, _ in stats.values())


def test_rloo_compares_each_response_with_its_siblings() -> None:
    experience = rloo().credit(rollout(), scores())
    total = REWARD - BETA * KL
    first, second = float(total[0] - total[1]), float(total[2] - total[3])
    expected = [first] * 2 + [-first] * 3 + [second] + [-second] * 2
    assert experience.advantages.tolist() == pytest.approx(expected)
    assert experience.returns is None
    assert experience.stats["groups_without_signal"] == 0.0


def test_rloo_loss_is_a_sum_over_sequences() -> None:
    algorithm = rloo()
    experience = algorithm.credit(rollout(), scores())
    assert algorithm.counts(experience) == {"policy": 4}
    loss = algorithm.loss(output((SAMPLED + 0.01).requires_grad_()), experience)
    total = REWARD - BETA * KL
    first, second = float(total[0] - total[1]), float(total[2] - total[3])
    ratios = [math.exp(0.01 * n) for n in (2, 3, 1, 2)]
    expected = -sum(r * a for r, a in zip(ratios, (first, -first, second, -second), strict=True))
    assert float(loss.terms["policy"].sum.detach()) == pytest.approx(expected, rel=1e-5)
    assert loss.terms["policy"].count == 4


@pytest.mark.parametrize("algorithm", [ppo(), rloo()], ids=["ppo", "rloo"])
def test_loss_of_parts_adds_up_to_the_loss_of_the_whole(algorithm) -> None:
    experience = algorithm.credit(rollout(), scores())
    moved = SAMPLED + torch.linspace(-0.4, 0.4, 8)
    whole = algorithm.loss(output(moved, torch.zeros(8)), experience)
    parts = [
        algorithm.loss(PolicyOutput(moved[span], torch.full((n,), 0.5), torch.zeros(n)), experience.select([i]))
        for i, (span, n) in enumerate(((slice(0, 2), 2), (slice(2, 5), 3), (slice(5, 6), 1), (slice(6, 8), 2)))
    ]
    for name, term in whole.terms.items():
        assert sum(float(part.terms[name].sum) for part in parts) == pytest.approx(float(term.sum), abs=1e-6)
        assert sum(part.terms[name].count for part in parts) == term.count
    for name, (total, count) in whole.stats.items():
        assert sum(part.stats[name][0] for part in parts) == pytest.approx(total, abs=1e-5)
        assert sum(part.stats[name][1] for part in parts) == count
