"""What is measured once on the starting policy, before the first step: reward constants and the KL target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tightrope.protocols import RolloutEngine
from tightrope.training.controls import BetaDial
from tightrope.types import Prompt, Sample, SampleKey, Sampling

PREPARATION_STEP = 1_000_000_009  # its draws are neither a training step's nor the probe's


@dataclass(frozen=True)
class Preparation:
    """Draws ``count`` responses of the starting policy. ``fit`` measures gain and bias from them; None leaves both."""

    engine: RolloutEngine
    fit: Callable[[Sequence[Sample]], None] | None
    dial: BetaDial
    prompts: Sequence[Prompt]
    sampling: Sampling
    seed: int
    count: int

    def __call__(self) -> None:
        if self.fit is None and self.dial.target is not None:
            return
        chosen = self.prompts[: self.count]
        samples_per_prompt = -(-self.count // len(chosen))
        rollout = self.engine.generate(
            chosen, samples_per_prompt, self.sampling, SampleKey(self.seed, 0, PREPARATION_STEP)
        )
        self.dial.settle_target(float(rollout.rows.action_counts.double().mean()))
        if self.fit is not None:
            self.fit(rollout.samples())
