"""On which scale do rewards live: gain and bias that give the starting policy's samples mean 0 and std 1.

Fitted once, before training; never moved by the samples of a step, so no sample changes another one's reward.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tightrope.maths.ragged import result_dtype
from tightrope.maths.statistics import Moments, combine, gain_and_bias, moments
from tightrope.protocols import State


class RewardNormaliser:
    """reward = gain · raw + bias; as built, the identity.

    >>> normaliser = RewardNormaliser()
    >>> normaliser.fit([1.0, 3.0])
    >>> normaliser.apply(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [-1.0, 0.0, 1.0]
    """

    def __init__(self, gain: float = 1.0, bias: float = 0.0) -> None:
        self.gain = gain
        self.bias = bias

    @staticmethod
    def from_constants(mean: float, std: float) -> RewardNormaliser:
        """From the constants a reward model was exported with. Scores that did not vary have no scale: gain 1."""
        gain = 1.0 / std if std > 0 else 1.0
        return RewardNormaliser(gain, -gain * mean)

    def fit(self, raw: Sequence[float]) -> None:
        """Rewards that do not vary keep gain 1; only their mean moves. Raises ValueError for none, or non-finite."""
        self.gain, self.bias = gain_and_bias(torch.tensor(raw, dtype=torch.float64))

    def apply(self, raw: Tensor) -> Tensor:
        return (self.gain * raw.double() + self.bias).to(result_dtype(raw))

    def state_dict(self) -> State:
        return {"gain": self.gain, "bias": self.bias}

    def load_state_dict(self, state: State) -> None:
        self.gain, self.bias = state["gain"], state["bias"]


class RunningScale:
    """reward / standard deviation of every training reward seen so far; the mean stays where it is.

    >>> scale = RunningScale()
    >>> scale.see(torch.tensor([1.0, 5.0]))
    >>> scale.apply(torch.tensor([4.0])).tolist()
    [2.0]
    """

    def __init__(self) -> None:
        self.seen = Moments(0, 0.0, 0.0)

    def see(self, rewards: Tensor) -> None:
        self.seen = combine(self.seen, moments(rewards))

    def apply(self, rewards: Tensor) -> Tensor:
        return rewards / (self.seen.std or 1.0)  # rewards that never varied have no scale

    def state_dict(self) -> State:
        return {"count": self.seen.count, "mean": self.seen.mean, "squares": self.seen.squares}

    def load_state_dict(self, state: State) -> None:
        self.seen = Moments(state["count"], state["mean"], state["squares"])
