"""PPO: what is an action worth, and how far may one update move (Schulman et al. 2017, Ziegler et al. 2019).

rewards     r_i = -beta * k1_i, plus the score on the last action of the response
advantages  GAE(gamma, lam), whitened over all actions of the rollout
loss        clipped surrogate + value_coef * clipped value loss - entropy_coef * entropy (+ beta * KL as a loss)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from tightrope.algorithms.options import PPOOptions
from tightrope.algorithms.policy_stats import has_kl_loss, kl_in_reward, kl_losses, old_logprobs_of, policy_stats
from tightrope.config.schedule import Now, at_start
from tightrope.config.schema import KLSection
from tightrope.maths.advantages import decoupled_gae, length_adaptive_lambda, token_rewards, whiten
from tightrope.maths.policy_losses import PolicyLoss, aggregation_weights, ppo_clip
from tightrope.maths.value_losses import ValueLoss, clipped_value_loss, explained_variance
from tightrope.types import Experience, Loss, LossTerm, PolicyOutput, Rollout, Scores


class PPO:
    """``now`` gives the present value of a scheduled coefficient, ``max_tokens`` is the longest response."""

    def __init__(
        self,
        options: PPOOptions,
        beta: Callable[[], float],
        kl: KLSection | None = None,
        now: Now = at_start,
        max_tokens: int = 1,
    ) -> None:
        self._options = options
        self._beta = beta
        self._kl = KLSection() if kl is None else kl
        self._now = now
        self._max_tokens = max_tokens

    def credit(self, rollout: Rollout, scores: Scores) -> Experience:
        """Raises ValueError when the judge brought no values: PPO needs a critic."""
        if scores.values is None:
            raise ValueError("PPO needs values; the judge has no critic")
        options, offsets = self._options, rollout.rows.action_offsets
        old_logprobs = old_logprobs_of(rollout, scores)
        rewards = token_rewards(scores.reward, kl_in_reward(old_logprobs, scores, self._kl), self._beta(), offsets)
        if options.whiten_rewards:
            rewards = whiten(rewards, shift_mean=False)
        lam = options.lam if options.lam_alpha is None else length_adaptive_lambda(offsets, options.lam_alpha)
        critic_lam = lam if options.critic_lam is None else options.critic_lam
        advantages, returns = decoupled_gae(
            rewards, scores.values, offsets, options.gamma, lam, critic_lam, scores.end_values
        )
        spread = {}
        if len(advantages):
            stds = {"advantage_std": advantages, "return_std": returns}
            spread = {name: float(x.std(correction=0)) for name, x in stds.items()}
        return Experience(
            rollout=rollout,
            old_logprobs=old_logprobs,
            rewards=rewards,
            advantages=self._shaped(advantages),
            returns=returns,
            values=scores.values,
            ref_logprobs=scores.ref_logprobs if self._kl.placement == "loss" else None,
            stats=spread | explained_variance(scores.values, returns),
        )

    def _shaped(self, advantages: Tensor) -> Tensor:
        limit = self._options.advantage_clip
        white = whiten(advantages) if self._options.whiten_advantages else advantages
        return white if limit is None else white.clamp(-limit, limit)

    def counts(self, batch: Experience) -> Mapping[str, int]:
        _, count = aggregation_weights(batch.rows.action_offsets, self._options.loss_aggregation, self._max_tokens)
        optional = {"entropy": self._entropy_coef() > 0, "kl": has_kl_loss(batch, self._kl)}
        return {"policy": count, "value": batch.rows.n_actions} | {name: count for name, on in optional.items() if on}

    def loss(self, output: PolicyOutput, batch: Experience) -> Loss:
        options, actions = self._options, batch.rows.n_actions
        weights, count = aggregation_weights(batch.rows.action_offsets, options.loss_aggregation, self._max_tokens)
        weights = weights.to(output.logprobs)
        policy, value = self._policy_loss(output, batch), self._value_loss(output, batch)
        terms = {
            "policy": LossTerm((weights * policy.losses).sum(), count),
            "value": LossTerm(value.losses.sum(), actions, self._now(options.value_coef)),
        }
        if self._entropy_coef() > 0:
            assert output.entropy is not None
            terms["entropy"] = LossTerm(-(weights * output.entropy).sum(), count, self._entropy_coef())
        if has_kl_loss(batch, self._kl):
            terms["kl"] = LossTerm((weights * kl_losses(output, batch, self._kl)).sum(), count, self._beta())
        stats = {
            "clip_fraction": (float(policy.clipped.sum()), actions),
            "value_clip_fraction": (float(value.clipped.sum()), actions),
        }
        if options.dual_clip is not None:
            stats["dual_clip_fraction"] = (float(policy.dual_clipped.sum()), actions)
        return Loss(terms, policy_stats(output, batch) | stats)

    def _policy_loss(self, output: PolicyOutput, batch: Experience) -> PolicyLoss:
        options, low = self._options, self._now(self._options.clip_range)
        high = low if options.clip_range_high is None else self._now(options.clip_range_high)
        return ppo_clip(output.logprobs, batch.old_logprobs, batch.advantages, low, high, options.dual_clip)

    def _value_loss(self, output: PolicyOutput, batch: Experience) -> ValueLoss:
        assert output.values is not None and batch.values is not None and batch.returns is not None
        clip = None if self._options.value_clip is None else self._now(self._options.value_clip)
        if clip is not None and self._options.value_clip_unit == "return_std":
            clip = clip * batch.stats["return_std"] or None  # returns that do not vary have no unit: no clip
        return clipped_value_loss(output.values, batch.values, batch.returns, clip)

    def _entropy_coef(self) -> float:
        return self._now(self._options.entropy_coef)
