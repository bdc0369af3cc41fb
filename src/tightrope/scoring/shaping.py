"""From the reward source's number to the reward that is learned from, in a fixed order, every part kept.

    raw → normalised = gain · raw + bias → scaled = normalised / running std → clip → − length_cost · tokens → length
    → missing-EOS rule where the response was cut

``scaled`` (or ``normalised``, or ``raw``) is the reward before costs; ``clip``, ``length_cost``, ``length`` and
``missing_eos`` are what each step added, so they and it add up to the reward. A step that is switched off has no part.
"""

from __future__ import annotations

from torch import Tensor

from tightrope.config.schedule import Now, at_start
from tightrope.config.schema import LengthSection, RewardSection
from tightrope.maths.penalties import length_cost, missing_eos, over_budget, soft_overlong, stop_properly
from tightrope.scoring.normaliser import RewardNormaliser, RunningScale


def shape_rewards(
    raw: Tensor,
    lengths: Tensor,
    stopped: Tensor,
    normaliser: RewardNormaliser,
    section: RewardSection,
    scale: RunningScale | None = None,
    now: Now = at_start,
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
    if scale is not None:
        reward = parts["scaled"] = scale.apply(reward)
    if section.clip is not None:
        before, reward = reward, reward.clamp(-section.clip, section.clip)
        parts["clip"] = reward - before
    if section.length_cost != 0.0:
        before, reward = reward, length_cost(reward, lengths, now(section.length_cost))
        parts["length_cost"] = reward - before
    if section.length.kind != "off":
        before, reward = reward, with_length(reward, lengths, stopped, section.length, now(section.length.cost))
        parts["length"] = reward - before
    if section.missing_eos.mode != "off":
        penalty = now(section.missing_eos.value)
        before, reward = reward, missing_eos(reward, stopped, penalty, section.missing_eos.mode)
        parts["missing_eos"] = reward - before
    return reward.float(), {name: part.float() for name, part in parts.items()}


def with_length(reward: Tensor, lengths: Tensor, stopped: Tensor, section: LengthSection, cost: float) -> Tensor:
    """After the penalty on length that is switched on."""
    if section.kind == "stop_properly":
        return stop_properly(reward, stopped, cost)
    assert section.budget is not None
    if section.kind == "over_budget":
        return over_budget(reward, lengths, cost, section.budget)
    assert section.buffer is not None
    return soft_overlong(reward, lengths, cost, section.budget, section.buffer)
