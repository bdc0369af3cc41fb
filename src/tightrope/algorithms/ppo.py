"""PPO: what is an action worth, and how far may one update move (Schulman et al. 2017, Ziegler et al. 2019).

rewards     r_i = -beta * k1_i, plus the score on the last action of the response
advantages  GAE(gamma, lam), whitened over all actions of the rollout
loss        clipped surrogate + value_coef * clipped value loss, sums over actions
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tightrope.algorithms.options import PPOOptions
from tightrope.algorithms.policy_stats import policy_stats
from tightrope.maths.advantages import gae, token_rewards, whiten
from tightrope.maths.kl import k1
from tightrope.maths.policy_losses import ppo_clip
from tightrope.maths.value_losses import clipped_value_loss, explained_variance
from tightrope.types import Experience, Loss, LossTerm, PolicyOutput, Rollout, Scores


def old_logprobs_of(rollout: Rollout, scores: Scores) -> Tensor:
    """The trainer's own log-probs where a pass computed them anyway, else the sampler's; f32 [actions]."""
    return rollout.behaviour_logprobs if scores.policy_logprobs is None else scores.policy_logprobs


def kl_of(old_logprobs: Tensor, scores: Scores) -> Tensor:
    """k1 of each action, nats; zeros when there is no reference (then beta is 0 too). f32 [actions]."""
    return torch.zeros_like(old_logprobs) if scores.ref_logprobs is None else k1(old_logprobs, scores.ref_logprobs)


class PPO:
    def __init__(self, options: PPOOptions, beta: Callable[[], float]) -> None:
        self._options = options
        self._beta = beta

    def credit(self, rollout: Rollout, scores: Scores) -> Experience:
        """Raises ValueError when the judge brought no values: PPO needs a critic."""
        if scores.values is None:
            raise ValueError("PPO needs values; the judge has no critic")
        options, offsets = self._options, rollout.rows.action_offsets
        old_logprobs = old_logprobs_of(rollout, scores)
        rewards = token_rewards(scores.reward, kl_of(old_logprobs, scores), self._beta(), offsets)
        advantages, returns = gae(rewards, scores.values, offsets, options.gamma, options.lam)
        spread = {"advantage_std": float(advantages.std(correction=0))} if len(advantages) else {}
        return Experience(
            rollout=rollout,
            old_logprobs=old_logprobs,
            rewards=rewards,
            advantages=whiten(advantages) if options.whiten_advantages else advantages,
            returns=returns,
            values=scores.values,
            stats=spread | explained_variance(scores.values, returns),
        )

    def counts(self, batch: Experience) -> Mapping[str, int]:
        return {"policy": batch.rows.n_actions, "value": batch.rows.n_actions}

    def loss(self, output: PolicyOutput, batch: Experience) -> Loss:
        options, count = self._options, batch.rows.n_actions
        assert output.values is not None and batch.values is not None and batch.returns is not None
        policy = ppo_clip(output.logprobs, batch.old_logprobs, batch.advantages, options.clip_range, options.clip_range)
        value = clipped_value_loss(output.values, batch.values, batch.returns, options.value_clip)
        return Loss(
            terms={
                "policy": LossTerm(policy.losses.sum(), count),
                "value": LossTerm(value.losses.sum(), count, options.value_coef),
            },
            stats=policy_stats(output, batch)
            | {
                "clip_fraction": (float(policy.clipped.sum()), count),
                "value_clip_fraction": (float(value.clipped.sum()), count),
            },
        )
