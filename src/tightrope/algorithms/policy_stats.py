"""Statistics every policy-gradient loss reports: sums and counts over actions, detached."""

from __future__ import annotations

import torch

from tightrope.maths.diagnostics import approx_kl
from tightrope.maths.kl import clamp_log_ratio, k2
from tightrope.types import Experience, PolicyOutput


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
