"""How the policy does on held-out prompts, with the same random numbers each time: the probe.

Because the draws are common, the difference between two probes is the policy's and not the dice's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tightrope.protocols import BatchT, Judge, Objective, RewardSource, RolloutEngine, SampleSink
from tightrope.records import StepRecord
from tightrope.training.describe import rollout_metrics, score_metrics
from tightrope.training.learner import Totals
from tightrope.training.run import Progress
from tightrope.training.timing import Stopwatch
from tightrope.types import Prompt, Rollout, SampleKey, Sampling

PROBE_STEP = 1_000_000_007  # a step number no run reaches: the probe's draws are never a training step's


@dataclass(frozen=True)
class Probe:
    """``held_out`` is a judge nobody trains on; its mean is the metric ``held_out``. ``text_perplexity``: of the
    policy on plain text (training/forgetting.py)."""

    stage: str
    seed: int
    prompts: Sequence[Prompt]
    engine: RolloutEngine
    judge: Judge
    sampling: Sampling
    samples: SampleSink
    held_out: RewardSource | None
    progress: Progress
    clock: Stopwatch
    text_perplexity: Callable[[], float] | None = None

    def __call__(self, step: int) -> StepRecord:
        rollout = self.generate()
        scores = self.judge.score(rollout)
        metrics = rollout_metrics(rollout) | score_metrics(rollout, scores)
        if self.held_out is not None:
            verdicts = self.held_out.score(rollout.samples())
            metrics["held_out"] = float(sum(verdicts)) / len(verdicts)
        if self.text_perplexity is not None:
            metrics["text_perplexity"] = self.text_perplexity()
        self.samples.keep(step, self.progress.attempt, rollout, scores, "probe")
        return StepRecord(
            f"{self.stage}/probe",
            step,
            self.progress.attempt,
            metrics,
            seconds={"probe": sum(self.clock.take().values())},
        )

    def generate(self) -> Rollout:
        return self.engine.generate(self.prompts, 1, self.sampling, SampleKey(self.seed, 0, PROBE_STEP))


@torch.no_grad()
def held_out_record(
    stage: str, step: int, attempt: int, objective: Objective[BatchT], batch: BatchT, token_budget: int | None
) -> StepRecord:
    """The objective's own statistics on held-out rows: loss, and accuracy where it has one."""
    totals = Totals()
    for microbatch in batch.microbatches(token_budget):
        totals.add(objective.loss(microbatch).stats)
    return StepRecord(f"{stage}/held_out", step, attempt, totals.means() | {"rows": float(len(batch))})


def nothing_to_evaluate(step: int) -> None:
    """For runs without held-out data."""
    return None


Evaluate = Callable[[int], StepRecord | None]
