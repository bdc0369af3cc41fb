"""What turns a hidden state into one number: the critic's value, the reward model's score. Always float32 or wider.

And what a config says about the logits of a language model, between the output matrix and the softmax.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tightrope.maths.logprobs import LogitRule


class Head(nn.Module):
    """``weight`` [hidden], ``bias`` [1] or None. hidden [n, hidden] -> [n]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, hidden: Tensor) -> Tensor:
        scores = hidden.to(self.weight.dtype) @ self.weight
        return scores if self.bias is None else scores + self.bias


def zero_head(hidden_size: int, device: torch.device) -> Head:
    """A critic's start: every value 0, so the first advantages are the rewards' own."""
    return Head(torch.zeros(hidden_size, device=device), torch.zeros(1, device=device))


def critic_head_from(reward_head: Head) -> Head:
    """A critic that starts as the reward model: the score of what was written so far is a first guess of the value."""
    weight = reward_head.weight.detach()
    return Head(weight.clone(), torch.zeros(1, device=weight.device))


def reward_head(hidden_size: int, device: torch.device, seed: int) -> Head:
    """Weights N(0, 1 / sqrt(d + 1)) as in "The N implementation details of RLHF with PPO" (Huang et al. 2024).

    No bias: a constant cancels between chosen and rejected, and the transformers classification head has none.
    """
    draws = torch.randn(hidden_size, generator=torch.Generator().manual_seed(seed))
    return Head((draws * (hidden_size + 1) ** -0.5).to(device), None)


def logit_rule(config: Mapping[str, Any]) -> LogitRule:
    """Cohere multiplies by logit_scale, Granite divides by logits_scaling, Gemma 2 caps; a rule unknown here is
    noticed when the network is probed.

    >>> logit_rule({"logits_scaling": 8.0}).scale
    0.125
    """
    scale, divisor, cap = (config.get(k) for k in ("logit_scale", "logits_scaling", "final_logit_softcapping"))
    return LogitRule(
        scale=(float(scale) if isinstance(scale, int | float) else 1.0) / (float(divisor) if divisor else 1.0),
        softcap=float(cap) if cap else None,
    )
