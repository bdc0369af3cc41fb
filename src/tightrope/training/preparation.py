"""What is measured once on the starting policy, before the first step: reward constants and the KL target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightrope.protocols import RewardSource, RolloutEngine
from tightrope.scoring.normaliser import RewardNormaliser
from tightrope.training.controls import BetaDial
from tightrope.types import Prompt, SampleKey, Sampling

PREPARATION_STEP = 1_000_000_009  # its draws are neither a training step's nor the probe's


@dataclass(frozen=True)
class Preparation:
    """Draws ``count`` responses of the starting policy. ``fit_normaliser`` False leaves the gain and bias alone."""

    engine: RolloutEngine
    reward: RewardSource
    normaliser: RewardNormaliser
    fit_normaliser: bool
    dial: BetaDial
    prompts: Sequence[Prompt]
    sampling: Sampling
    seed: int
    count: int

    def __call__(self) -> None:
        if not self.fit_normaliser and self.dial.target is not None:
            return
        chosen = self.prompts[: self.count]
        samples_per_prompt = -(-self.count // len(chosen))
        rollout = self.engine.generate(
            chosen, samples_per_prompt, self.sampling, SampleKey(self.seed, 0, PREPARATION_STEP)
        )
        self.dial.settle_target(float(rollout.rows.action_counts.double().mean()))
        if self.fit_normaliser:
            self.normaliser.fit(list(self.reward.score(rollout.samples())))
