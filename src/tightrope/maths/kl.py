"""How far is the policy from the reference: three estimators of KL(policy ‖ ref) from the sampled tokens alone.

    d = log π(a) − log π_ref(a)    nats, [actions], with a sampled from π

| estimator | bias | as a loss its expected gradient is |
|---|---|---|
| k1 = d | none | 0: useless; in the *reward* it is right |
| k2 = d²/2 | small | that of KL(π ‖ ref) |
| k3 = e⁻ᵈ − 1 + d | none | that of KL(ref ‖ π), the other direction |

Schulman, "Approximating KL divergence" (2020). Gradients: the exact table ``kl_gradients_exact`` in
``tests/maths/golden.json``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tightrope.maths.ragged import require_same_shape, widen

if TYPE_CHECKING:
    from jaxtyping import Float

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this before exp: e²⁰ = 4.9e8 is far beyond any clip range, e⁵⁰ squared is not finite."""


def k1(logprobs: Float[Tensor, " actions"], ref_logprobs: Float[Tensor, " actions"]) -> Float[Tensor, " actions"]:
    """k1 = log π − log π_ref, nats per action; its sum over a response is the KL shown to people and controllers.

    Raises ValueError on different shapes.

    >>> k1(torch.tensor([-1.0]), torch.tensor([-1.5])).tolist()
    [0.5]
    """
    require_same_shape({"logprobs": logprobs, "ref_logprobs": ref_logprobs})
    return widen(logprobs) - widen(ref_logprobs)


def k2(logprobs: Float[Tensor, " actions"], ref_logprobs: Float[Tensor, " actions"]) -> Float[Tensor, " actions"]:
    """k2 = (log π − log π_ref)² / 2, nats per action, never negative.

    >>> k2(torch.tensor([-1.0]), torch.tensor([-1.5])).tolist()
    [0.125]
    """
    return k1(logprobs, ref_logprobs).square() / 2


def k3(logprobs: Float[Tensor, " actions"], ref_logprobs: Float[Tensor, " actions"]) -> Float[Tensor, " actions"]:
    """k3 = e⁻ᵈ − 1 + d with d = log π − log π_ref clamped to ±20; nats per action, never negative.

    Outside the clamp the value is constant and the gradient 0.

    >>> round(k3(torch.tensor([-1.0]), torch.tensor([-1.5])).item(), 6)
    0.106531
    """
    d = clamp_log_ratio(k1(logprobs, ref_logprobs))
    return torch.expm1(-d) + d


def ratio_k3(
    logprobs: Float[Tensor, " actions"],
    ref_logprobs: Float[Tensor, " actions"],
    old_logprobs: Float[Tensor, " actions"],
) -> Float[Tensor, " actions"]:
    """π / π_old · k3, whose expected gradient is that of KL(π ‖ ref). DeepSeek-V3.2 (2025), section 3.1.

    >>> round(ratio_k3(torch.tensor([-1.0]), torch.tensor([-1.5]), torch.tensor([-1.0])).item(), 6)
    0.106531
    """
    return clamp_log_ratio(k1(logprobs, old_logprobs)).exp() * k3(logprobs, ref_logprobs)


def clamp_log_ratio(log_ratio: Float[Tensor, " *any"]) -> Float[Tensor, " *any"]:
    """The log-ratio, no further from 0 than ``LOG_RATIO_LIMIT``; the gradient outside is 0.

    >>> clamp_log_ratio(torch.tensor([-50.0, 0.5, 50.0])).tolist()
    [-20.0, 0.5, 20.0]
    """
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
