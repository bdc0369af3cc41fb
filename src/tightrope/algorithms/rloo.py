"""RLOO: each response against the mean of its siblings (Ahmadian et al. 2024, eq. 6-8).

reward      R = score - beta * sum of k1 over the response
advantage   R minus the mean R of the other responses to the same prompt
loss        product of the response's ratios, clipped; sums over sequences, and the KL of a response where it is a loss
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tightrope.algorithms.options import RLOOOptions
from tightrope.algorithms.policy_stats import has_kl_loss, kl_in_reward, kl_losses, old_logprobs_of, policy_stats
from tightrope.config.schedule import Now, at_start
from tightrope.config.schema import KLSection
from tightrope.maths.advantages import rloo_advantages, token_rewards
from tightrope.maths.policy_losses import sequence_clip
from tightrope.maths.ragged import segment_sum
from tightrope.types import Experience, Loss, LossTerm, PolicyOutput, Rollout, Scores


class RLOO:
    def __init__(
        self, options: RLOOOptions, beta: Callable[[], float], kl: KLSection | None = None, now: Now = at_start
    ) -> None:
        self._options = options
        self._beta = beta
        self._kl = KLSection() if kl is None else kl
        self._now = now

    def credit(self, rollout: Rollout, scores: Scores) -> Experience:
        offsets = rollout.rows.action_offsets
        old_logprobs = old_logprobs_of(rollout, scores)
        rewards = token_rewards(scores.reward, kl_in_reward(old_logprobs, scores, self._kl), self._beta(), offsets)
        advantages = rloo_advantages(segment_sum(rewards, offsets), rollout.prompt_index)
        silent = groups_without_signal(advantages.tolist(), rollout.prompt_index.tolist())
        return Experience(
            rollout=rollout,
            old_logprobs=old_logprobs,
            rewards=rewards,
            advantages=advantages.repeat_interleave(rollout.rows.action_counts),
            ref_logprobs=scores.ref_logprobs if self._kl.placement == "loss" else None,
            stats={"advantage_std": float(advantages.std(correction=0)), "groups_without_signal": float(silent)},
        )

    def counts(self, batch: Experience) -> Mapping[str, int]:
        return {"policy": len(batch)} | ({"kl": len(batch)} if has_kl_loss(batch, self._kl) else {})

    def loss(self, output: PolicyOutput, batch: Experience) -> Loss:
        offsets, clip = batch.rows.action_offsets, self._now(self._options.clip_range)
        per_sequence = batch.advantages[offsets[:-1]]
        policy = sequence_clip(output.logprobs, batch.old_logprobs, per_sequence, offsets, clip, clip)
        terms = {"policy": LossTerm(policy.losses.sum(), len(batch))}
        if has_kl_loss(batch, self._kl):
            # A mean over responses, as the policy loss: beta is what a nat of a response costs, wherever the KL stands.
            terms["kl"] = LossTerm(kl_losses(output, batch, self._kl).sum(), len(batch), self._beta())
        return Loss(
            terms=terms,
            stats=policy_stats(output, batch) | {"clip_fraction": (float(policy.clipped.sum()), len(batch))},
        )


def groups_without_signal(advantages: list[float], group: list[int]) -> int:
    """Groups whose responses all earned the same.

    >>> groups_without_signal([0.0, 0.0, 0.5, -0.5], [0, 0, 1, 1])
    1
    """
    with_signal = {g for a, g in zip(advantages, group, strict=True) if a != 0.0}
    return len(set(group) - with_signal)
