"""What policy-gradient algorithms share: where log-probs and KL come from, the KL loss, and the statistics."""

from __future__ import annotations

import torch
from torch import Tensor

from tightrope.config.schema import KLSection
from tightrope.maths.diagnostics import approx_kl
from tightrope.maths.kl import clamp_log_ratio, k1, k2, k3, ratio_k3
from tightrope.types import Experience, PolicyOutput, Rollout, Scores


@torch.no_grad()
def policy_stats(output: PolicyOutput, batch: Experience) -> dict[str, tuple[float, float]]:
    """``approx_kl`` is k3 of the old policy against the new one, nats per action; ``approx_kl_k2`` its k2."""
    old, new, count = batch.old_logprobs, output.logprobs.detach(), batch.rows.n_actions
    ratio = clamp_log_ratio(new - old).exp()
    stats: dict[str, tuple[float, float]] = {
        "ratio": (float(ratio.sum()), count),
        "ratio_error": (float((ratio - 1.0).abs().sum()), count),
        "approx_kl": (float(approx_kl(new, old).sum()), count),
        "approx_kl_k2": (float(k2(old, new).sum()), count),
    }
    if output.entropy is not None:
        stats["entropy_tok"] = (float(output.entropy.sum()), count)
    return stats


def old_logprobs_of(rollout: Rollout, scores: Scores) -> Tensor:
    """The trainer's own log-probs where a pass computed them anyway, else the sampler's; f32 [actions]."""
    return rollout.behaviour_logprobs if scores.policy_logprobs is None else scores.policy_logprobs


def kl_in_reward(old_logprobs: Tensor, scores: Scores, kl: KLSection) -> Tensor:
    """k1 of each action, nats; zeros without a reference (then beta is 0 too) or when KL is a loss. f32 [actions]."""
    if scores.ref_logprobs is None or kl.placement == "loss":
        return torch.zeros_like(old_logprobs)
    return k1(old_logprobs, scores.ref_logprobs)


def has_kl_loss(batch: Experience, kl: KLSection) -> bool:
    return kl.placement == "loss" and batch.ref_logprobs is not None


def kl_losses(output: PolicyOutput, batch: Experience, kl: KLSection) -> Tensor:
    """The estimator chosen, of each action, with its gradient; f32 [actions]."""
    assert batch.ref_logprobs is not None
    if kl.estimator == "ratio_k3":
        return ratio_k3(output.logprobs, batch.ref_logprobs, batch.old_logprobs)
    return (k2 if kl.estimator == "k2" else k3)(output.logprobs, batch.ref_logprobs)
