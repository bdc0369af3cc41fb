"""The walk of one batch. Every feature hangs off one of these lines."""

from __future__ import annotations

from tightrope.protocols import BatchT
from tightrope.records import StepRecord
from tightrope.training.describe import offline_record, online_record
from tightrope.training.run import OfflineRun, OnlineRun


def train_step(run: OnlineRun) -> StepRecord:
    prompts = run.prompts.next_batch()
    rollout = run.engine.generate(prompts, run.samples_per_prompt, run.sampling, run.key())  # 1 rollout
    scores = run.judge.score(rollout)  # 2 reward parts, reference log-probs, values
    experience = run.algorithm.credit(rollout, scores)  # 3 token rewards, advantages, returns
    report = run.learner.update(experience)  # 4 clipped policy and value update
    record = online_record(run, rollout, scores, experience, report)
    run.samples.keep(record.step, record.attempt, rollout, scores, "train")
    run.tracker.write(record)
    return run.apply(record, *run.guardian.review(record))  # raise beta, checkpoint, stop


def offline_step(run: OfflineRun[BatchT]) -> StepRecord:
    batch = run.next_batch()
    report = run.learner.update(batch)
    record = offline_record(run, batch, report)
    run.tracker.write(record)
    return run.apply(record, *run.guardian.review(record))
