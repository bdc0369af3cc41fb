"""Faults between the rollout and the update: rewards, KL, values, advantages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.proof.faults import Fault, Function, Patch
from benchmarks.proof.runs import Variant
from tightrope.algorithms import ppo, rloo
from tightrope.assemble import online
from tightrope.maths.kl import k3
from tightrope.maths.ragged import segment_ids
from tightrope.models.packed_forward import hidden_states
from tightrope.models.roles import Role
from tightrope.scoring import judge, shaping
from tightrope.scoring.judge import Judging
from tightrope.scoring.normaliser import RewardNormaliser
from tightrope.training import policy_objective
from tightrope.types import Experience, Rollout, Sample, Scores, TokenRows

PPO = Variant(form="variable")
RLOO = Variant(form="variable", stage="rloo")
SHORT_TRACE = PPO.but("ppo", lam=0.95)
LONG_TRACE = PPO.but("ppo", lam=1.0)


def kl_sign(kl_in_reward: Function) -> Function:
    return lambda old_logprobs, scores, kl: -kl_in_reward(old_logprobs, scores, kl)


def kl_forgotten(kl_in_reward: Function) -> Function:
    return lambda old_logprobs, scores, kl: 0.0 * kl_in_reward(old_logprobs, scores, kl)


def kl_twice(kl_in_reward: Function) -> Function:
    return lambda old_logprobs, scores, kl: 2.0 * kl_in_reward(old_logprobs, scores, kl)


def k3_in_reward(kl_in_reward: Function) -> Function:
    return lambda old_logprobs, scores, kl: k3(old_logprobs, scores.ref_logprobs)


def score_moved(by: int) -> Any:
    """The score sits ``by`` actions after the last one of its response (in the flat tensor: the next response's)."""

    def mutated(token_rewards: Function) -> Function:
        def moved(scores: Tensor, kl: Tensor, beta: float, offsets: Tensor) -> Tensor:
            rewards = token_rewards(torch.zeros_like(scores), kl, beta, offsets)
            place = torch.maximum(offsets[1:] - 1 + by, offsets[:-1])
            inside = place < len(rewards)
            rewards[place[inside]] += scores[inside]
            return rewards

        return moved

    return mutated


def score_on_every_action(token_rewards: Function) -> Function:
    def spread(scores: Tensor, kl: Tensor, beta: float, offsets: Tensor) -> Tensor:
        return token_rewards(torch.zeros_like(scores), kl, beta, offsets) + scores.repeat_interleave(offsets.diff())

    return spread


def values_late(values_and_end_values: Function) -> Function:
    def late(role: Role, rows: TokenRows) -> tuple[Tensor, Tensor]:
        assert role.head is not None
        return role.head(hidden_states(role, rows)[rows.action_positions]), values_and_end_values(role, rows)[1]

    return late


def action_values_late(action_values: Function) -> Function:
    def late(role: Role, rows: TokenRows) -> Tensor:
        assert role.head is not None
        return role.head(hidden_states(role, rows)[rows.action_positions])

    return late


VALUES_OF_THE_ROLLOUT_LATE = Patch(judge, "values_and_end_values", values_late)
VALUES_OF_THE_UPDATE_LATE = Patch(policy_objective, "action_values", action_values_late)


def self_bootstrap(decoupled_gae: Function) -> Function:
    def looping(
        rewards: Tensor, values: Tensor, offsets: Tensor, gamma: float, lam: float, critic_lam: float, ending: object
    ) -> Any:
        return decoupled_gae(rewards, values, offsets, gamma, lam, critic_lam, values[offsets[1:] - 1])

    return looping


def across_responses(decoupled_gae: Function) -> Function:
    def joined(
        rewards: Tensor, values: Tensor, offsets: Tensor, gamma: float, lam: float, critic_lam: float, ending: object
    ) -> Any:
        return decoupled_gae(rewards, values, offsets[[0, -1]], gamma, lam, critic_lam, None)

    return joined


def discounts_swapped(decoupled_gae: Function) -> Function:
    def swapped(
        rewards: Tensor, values: Tensor, offsets: Tensor, gamma: float, lam: float, critic_lam: float, ending: object
    ) -> Any:
        return decoupled_gae(rewards, values, offsets, lam, gamma, gamma, ending)

    return swapped


def targets_without_values(decoupled_gae: Function) -> Function:
    def bare(*given: Any) -> tuple[Tensor, Tensor]:
        advantages, returns = decoupled_gae(*given)
        return advantages, returns - given[1]

    return bare


def bootstrap_flag(on: bool) -> Any:
    return lambda made: lambda bootstraps, *others: Judging(on, *others)


def whitened_by(groups: str) -> Any:
    """Mean and deviation of each response, or of each place in a response, in place of the whole batch's."""

    def mutated(credit: Function) -> Function:
        def whitened(self: ppo.PPO, rollout: Rollout, scores: Scores) -> Experience:
            experience = credit(self, rollout, scores)
            assert experience.returns is not None and experience.values is not None
            raw, offsets = experience.returns - experience.values, experience.rows.action_offsets
            group = segment_ids(offsets)
            if groups == "place":
                group = torch.arange(len(raw)) - offsets[:-1][group]
            count = torch.zeros(int(group.max()) + 1).index_add(0, group, torch.ones_like(raw))
            centred = raw - (torch.zeros_like(count).index_add(0, group, raw) / count)[group]
            spread = (torch.zeros_like(count).index_add(0, group, centred.square()) / count).sqrt()[group]
            return replace(experience, advantages=centred / (spread + 1e-8))

        return whitened

    return mutated


def normalised_twice(apply: Function) -> Function:
    return lambda self, raw: apply(self, apply(self, raw))


def penalty_on_the_finished(missing_eos: Function) -> Function:
    return lambda scores, stopped, value, mode: missing_eos(scores, ~stopped, value, mode)


def reward_reads_one_word_less(samples: Function) -> Function:
    def shortened(self: Rollout) -> list[Sample]:
        return [replace(s, response=" ".join(s.response.split()[:-1])) for s in samples(self)]

    return shortened


def siblings_mixed_up(rloo_advantages: Function) -> Function:
    return lambda rewards, group: rloo_advantages(rewards, group).roll(1)


CREDIT_FAULTS = (
    Fault("KL with the wrong sign", (Patch(ppo, "kl_in_reward", kl_sign),), LONG_TRACE),
    Fault("KL with the wrong sign, RLOO", (Patch(rloo, "kl_in_reward", kl_sign),), RLOO),
    Fault("KL forgotten", (Patch(ppo, "kl_in_reward", kl_forgotten),), LONG_TRACE),
    Fault("KL counted twice", (Patch(ppo, "kl_in_reward", kl_twice),), LONG_TRACE),
    Fault("k3 in the reward", (Patch(ppo, "kl_in_reward", k3_in_reward),), LONG_TRACE),
    Fault("score one action early", (Patch(ppo, "token_rewards", score_moved(-1)),), LONG_TRACE),
    Fault("score one action late", (Patch(ppo, "token_rewards", score_moved(1)),), LONG_TRACE),
    Fault("score on every action", (Patch(ppo, "token_rewards", score_on_every_action),), LONG_TRACE),
    Fault(
        "values read one token late",
        (VALUES_OF_THE_ROLLOUT_LATE, VALUES_OF_THE_UPDATE_LATE),
        LONG_TRACE,
    ),
    Fault("values of the rollout read one token late", (VALUES_OF_THE_ROLLOUT_LATE,), LONG_TRACE),
    Fault("the end bootstraps from itself", (Patch(ppo, "decoupled_gae", self_bootstrap),), SHORT_TRACE),
    Fault(
        "cut responses bootstrapped though that is off", (Patch(online, "Judging", bootstrap_flag(True)),), LONG_TRACE
    ),
    Fault(
        "cut responses not bootstrapped though that is on",
        (Patch(online, "Judging", bootstrap_flag(False)),),
        LONG_TRACE.but("ppo", bootstrap_truncated=True),
    ),
    Fault("advantages run on into the next response", (Patch(ppo, "decoupled_gae", across_responses),), LONG_TRACE),
    Fault("gamma and lambda swapped", (Patch(ppo, "decoupled_gae", discounts_swapped),), SHORT_TRACE),
    Fault("critic trained towards the advantages", (Patch(ppo, "decoupled_gae", targets_without_values),), LONG_TRACE),
    Fault("whitening by response", (Patch(ppo.PPO, "credit", whitened_by("response")),), LONG_TRACE),
    Fault("whitening by place in the response", (Patch(ppo.PPO, "credit", whitened_by("place")),), LONG_TRACE),
    Fault("normaliser applied twice", (Patch(RewardNormaliser, "apply", normalised_twice),), LONG_TRACE),
    Fault(
        "finished responses pay for being cut", (Patch(shaping, "missing_eos", penalty_on_the_finished),), LONG_TRACE
    ),
    Fault("reward reads one token less", (Patch(Rollout, "samples", reward_reads_one_word_less),), LONG_TRACE),
    Fault("RLOO: advantage of the neighbour", (Patch(rloo, "rloo_advantages", siblings_mixed_up),), RLOO),
)
