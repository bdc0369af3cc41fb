"""What is a response worth when several sources have a say? In a fixed order, every source's own value kept.

    sum_then_normalise    total = gain · Σₖ weightₖ · clip(valueₖ / stdₖ) + bias
    normalise_then_sum    total = Σₖ weightₖ · clip((gainₖ · valueₖ + biasₖ) / stdₖ)

A gate whose source's own value is under its threshold caps what is left after every later step (``shaping``). The outer
gain and bias of the first order are the judge's, as for a single source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tightrope.config.reward_sources import SourceSection
from tightrope.protocols import RewardSource, Stateful
from tightrope.scoring.normaliser import RewardNormaliser, RunningScale
from tightrope.types import Sample


@dataclass(frozen=True)
class WeightedSource:
    """One entry of ``reward.sources``. ``normaliser`` is the identity where the sum is normalised instead."""

    section: SourceSection
    source: RewardSource
    normaliser: RewardNormaliser
    scale: RunningScale | None = None

    def contribution(self, values: Tensor) -> Tensor:
        """weight · clip((gain · value + bias) / std), f64 [sequences]."""
        shaped = self.normaliser.apply(values)
        if self.scale is not None:
            shaped = self.scale.apply(shaped)
        if self.section.clip is not None:
            shaped = shaped.clamp(-self.section.clip, self.section.clip)
        return self.section.weight * shaped


@dataclass(frozen=True)
class Verdict:
    """``raw`` f64 [sequences]; ``parts`` each source's own values; ``cap`` f64 [sequences], infinite where no gate
    fell, None without gates."""

    raw: Tensor
    parts: Mapping[str, Tensor]
    cap: Tensor | None


class CompositeReward:
    """A RewardSource made of several. Nothing is remembered of a call in which any source failed.

    >>> from types import SimpleNamespace
    >>> section = SourceSection(name="safety", weight=2.0, function="m:f", gate={"below": 0.5, "cap": -1.0})
    >>> words = SimpleNamespace(score=lambda samples: [0.0, 1.0])
    >>> verdict = CompositeReward([WeightedSource(section, words, RewardNormaliser())]).judged([None, None])
    >>> verdict.raw.tolist(), verdict.cap.tolist()
    ([0.0, 2.0], [-1.0, inf])
    """

    def __init__(self, sources: Sequence[WeightedSource]) -> None:
        self._sources = tuple(sources)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return self.judged(samples).raw.tolist()

    def judged(self, samples: Sequence[Sample], learns_scale: bool = False) -> Verdict:
        """Raises RewardSourceFailed."""
        values = self._ask(samples)
        if learns_scale:
            for one, own in zip(self._sources, values, strict=True):
                if one.scale is not None:
                    one.scale.see(one.normaliser.apply(own))
        raw = torch.zeros(len(samples), dtype=torch.float64)
        for one, own in zip(self._sources, values, strict=True):
            raw = raw + one.contribution(own)
        named = {f"source/{one.section.name}": own for one, own in zip(self._sources, values, strict=True)}
        return Verdict(raw, named, self._cap(values))

    def fit(self, samples: Sequence[Sample]) -> None:
        """Gain and bias of each source, so that these samples have mean 0 and std 1."""
        for one, own in zip(self._sources, self._ask(samples), strict=True):
            one.normaliser.fit(own.tolist())

    def state(self) -> dict[str, Stateful]:
        """What changes during a run, under the names it has in a checkpoint."""
        found: dict[str, Stateful] = {}
        for one in self._sources:
            found[f"normaliser_{one.section.name}"] = one.normaliser
            if one.scale is not None:
                found[f"scale_{one.section.name}"] = one.scale
        return found

    def _ask(self, samples: Sequence[Sample]) -> list[Tensor]:
        return [torch.tensor(list(one.source.score(samples)), dtype=torch.float64) for one in self._sources]

    def _cap(self, values: Sequence[Tensor]) -> Tensor | None:
        """The lowest cap of the gates that fell."""
        cap: Tensor | None = None
        for one, own in zip(self._sources, values, strict=True):
            gate = one.section.gate
            if gate is not None:
                fallen = torch.where(own < gate.below, gate.cap, torch.inf)
                cap = fallen if cap is None else torch.minimum(cap, fallen)
        return cap
