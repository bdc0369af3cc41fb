"""What should beta be next, given the KL just measured: two proportional controllers, both pure functions of numbers.

``kl`` and ``target`` are nats per response (mean over responses of the summed k1); ``beta`` is reward per nat.
"""

from __future__ import annotations

import math

KL_SMOOTHING = 0.2
"""Share of the newest KL in the smoothed one."""
ZIEGLER_ERROR_LIMIT = 0.2
"""lm-human-preferences clips the relative error to ± this."""


def log_space_step(
    beta: float, kl: float, target: float, gain: float, max_step: float, beta_min: float, beta_max: float
) -> float:
    """log β ← log β + clip(gain · (KL / target − 1), ±max_step), kept within [beta_min, beta_max].

    A change of KL by the target moves log β by ``gain``, whatever the batch size; a KL far off by ``max_step``. A β
    below ``beta_min`` (0 too) counts as ``beta_min``. Raises ValueError for a target, gain or max_step that is not
    positive, for bounds that are not 0 < beta_min ≤ beta_max, and for a KL or beta that is NaN.

    >>> round(log_space_step(0.1, 8.0, 4.0, gain=0.1, max_step=0.2, beta_min=1e-4, beta_max=10.0), 6)
    0.110517
    """
    if not (target > 0 and gain > 0 and max_step > 0):
        raise ValueError(f"target, gain and max_step must be positive, found {target}, {gain} and {max_step}")
    if not 0 < beta_min <= beta_max:
        raise ValueError(f"bounds must satisfy 0 < beta_min <= beta_max, found {beta_min} and {beta_max}")
    if math.isnan(kl) or math.isnan(beta):
        raise ValueError(f"kl and beta must be numbers, found {kl} and {beta}")
    move = min(max(gain * (kl / target - 1.0), -max_step), max_step)
    return min(max(max(beta, beta_min) * math.exp(move), beta_min), beta_max)


def expected_kl(kl: float, smooth: float, lookahead: float) -> float:
    """KL + lookahead · s · (KL − K̄): what KL will be in ``lookahead`` steps if it goes on as it lately did.

    K̄ is the ``smoothed_kl`` before this step, and s · (KL − K̄), by which it now moves, is the slope a step. A
    controller that waits until KL is at its target has by then turned β down for so long that KL shoots past it.
    Raises ValueError for a lookahead below 0.

    >>> round(expected_kl(3.0, smooth=2.0, lookahead=10.0), 6)
    5.0
    """
    if lookahead < 0:
        raise ValueError(f"lookahead must be at least 0 steps, found {lookahead}")
    return kl + lookahead * (smoothed_kl(kl, smooth) - smooth)


def smoothed_kl(kl: float, smooth: float) -> float:
    """K̄ ← K̄ + s · (KL − K̄) with s = 0.2: the mean of about the last five steps, a rollout's KL being noisy.

    >>> smoothed_kl(3.0, 2.0)
    2.2
    """
    return smooth + KL_SMOOTHING * (kl - smooth)


def ziegler_step(beta: float, kl: float, target: float, n: int, horizon: float) -> float:
    """β ← β · (1 + clip(KL / target − 1, ±0.2) · n / horizon). Ziegler et al. 2019, section 2.2.

    ``n`` responses were just seen; β moves by at most 0.2 n / horizon a step, so it is slow: at n = 512 and horizon
    10,000 a factor 10 takes 227 steps. Raises ValueError for a target, n or horizon that is not positive, for a NaN,
    and for n ≥ 5 horizons, where β would lose its sign.

    >>> round(ziegler_step(0.2, 12.0, target=6.0, n=256, horizon=10_000), 6)
    0.201024
    """
    if not (target > 0 and horizon > 0 and n > 0):
        raise ValueError(f"target, n and horizon must be positive, found {target}, {n} and {horizon}")
    if math.isnan(kl) or math.isnan(beta):
        raise ValueError(f"kl and beta must be numbers, found {kl} and {beta}")
    if ZIEGLER_ERROR_LIMIT * n >= horizon:
        raise ValueError(f"horizon {horizon} must be over {ZIEGLER_ERROR_LIMIT:g} x {n} responses; raise it")
    error = min(max(kl / target - 1.0, -ZIEGLER_ERROR_LIMIT), ZIEGLER_ERROR_LIMIT)
    return beta * (1.0 + error * n / horizon)
