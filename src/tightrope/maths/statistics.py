"""Mean and spread of scores, in float64, and the affine map that normalises them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, slots=True)
class Moments:
    """How many numbers were seen, their mean, and the sum of their squared distances from it."""

    count: int
    mean: float
    squares: float

    @property
    def std(self) -> float | None:
        """Population standard deviation; None for no numbers."""
        return math.sqrt(self.squares / self.count) if self.count else None


class GainAndBias(NamedTuple):
    """score = gain · raw + bias."""

    gain: float
    bias: float


@torch.no_grad()
def moments(x: Float[Tensor, " items"]) -> Moments:
    """n, μ = Σ xᵢ / n and Σ (xᵢ − μ)². No numbers give (0, 0, 0); equal numbers have exactly no spread.

    >>> moments(torch.tensor([1.0, 3.0]))
    Moments(count=2, mean=2.0, squares=2.0)
    """
    if len(x) == 0:
        return Moments(0, 0.0, 0.0)
    if bool((x == x[0]).all()):
        return Moments(len(x), float(x[0]), 0.0)
    wide = x.double()
    mean = wide.mean()
    return Moments(len(x), float(mean), float((wide - mean).square().sum()))


def combine(a: Moments, b: Moments) -> Moments:
    """The moments of both sets of numbers together. Chan, Golub & LeVeque 1979, eq. 2.1; exact for an empty set.

    >>> combine(Moments(1, 1.0, 0.0), Moments(1, 3.0, 0.0))
    Moments(count=2, mean=2.0, squares=2.0)
    """
    if a.count == 0:
        return b
    count, shift = a.count + b.count, b.mean - a.mean
    return Moments(
        count=count,
        mean=a.mean + shift * b.count / count,
        squares=a.squares + b.squares + shift * shift * a.count * b.count / count,
    )


def gain_and_bias(raw: Float[Tensor, " samples"], target_mean: float = 0.0, target_std: float = 1.0) -> GainAndBias:
    """gain = target_std / σ(raw), bias = target_mean − gain · μ(raw), population σ. Ziegler et al. 2019, section 2.

    Fitted on rewards of samples of the starting policy, so that score = gain · raw + bias has the target mean and std
    there. Rewards that do not vary have no scale: gain 1, only the mean moves. Raises ValueError for no scores, a score
    that is not finite, or a target_std that is not positive.

    >>> gain_and_bias(torch.tensor([1.0, 3.0]))
    GainAndBias(gain=1.0, bias=-2.0)
    """
    if len(raw) == 0 or not bool(raw.isfinite().all()):
        raise ValueError(f"normalising needs finite scores, found {raw[:8]}")
    if target_std <= 0:
        raise ValueError(f"target_std must be positive, found {target_std}")
    seen = moments(raw)
    gain = target_std / seen.std if seen.std else 1.0
    return GainAndBias(gain, target_mean - gain * seen.mean)
