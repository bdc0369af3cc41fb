"""From the reward source's number to the reward that is learned from, in a fixed order, every part kept.

    raw → normalised = gain · raw + bias → − length_cost · tokens → missing-EOS rule where the response was cut

``normalised`` is the reward before costs; ``length_cost`` and ``missing_eos`` are what each step added (mostly
negative), so reward = normalised + length_cost + missing_eos. A step that is switched off has no part.
"""

from __future__ import annotations

from torch import Tensor

from tightrope.config.schema import RewardSection
from tightrope.maths.penalties import length_cost, missing_eos
from tightrope.scoring.normaliser import RewardNormaliser


def shape_rewards(
    raw: Tensor, lengths: Tensor, stopped: Tensor, normaliser: RewardNormaliser, section: RewardSection
) -> tuple[Tensor, dict[str, Tensor]]:
    """(reward, parts), each f32 [sequences]; ``lengths`` in response tokens, ``stopped`` from the sampler.

    >>> import torch
    >>> section = RewardSection(function="file.py:f", normalise="off", length_cost=0.01)
    >>> reward, parts = shape_rewards(
    ...     torch.tensor([2.0, 2.0]), torch.tensor([50, 50]), torch.tensor([True, False]), RewardNormaliser(), section
    ... )
    >>> reward.tolist(), parts["missing_eos"].tolist()
    ([1.5, 0.5], [0.0, -1.0])
    """
    reward = raw.double()
    parts = {"raw": reward}
    if section.normalise != "off":
        reward = parts["normalised"] = normaliser.apply(reward)
    if section.length_cost != 0.0:
        before, reward = reward, length_cost(reward, lengths, section.length_cost)
        parts["length_cost"] = reward - before
    if section.missing_eos.mode != "off":
        before, reward = reward, missing_eos(reward, stopped, section.missing_eos.value, section.missing_eos.mode)
        parts["missing_eos"] = reward - before
    return reward.float(), {name: part.float() for name, part in parts.items()}
