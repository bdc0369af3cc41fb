"""One step in plain numbers. Names carry their unit; what is undefined is absent. Each name has a metric card."""

from __future__ import annotations

from collections.abc import Mapping

from tightrope.maths.diagnostics import distinct_n
from tightrope.maths.kl import k1
from tightrope.maths.ragged import segment_sum
from tightrope.protocols import Batch, BatchT
from tightrope.records import StepRecord
from tightrope.training.run import OfflineRun, OnlineRun
from tightrope.types import Experience, Rollout, Scores, UpdateReport


def online_record(
    run: OnlineRun, rollout: Rollout, scores: Scores, experience: Experience, report: UpdateReport
) -> StepRecord:
    progress = run.core.progress
    metrics = (
        rollout_metrics(rollout) | score_metrics(rollout, scores) | dict(experience.stats) | update_metrics(report)
    )
    controls = {"beta": run.dial.beta, "learning_rate_factor": report.metrics["learning_rate_factor"]}
    controls |= {name: value for name, value in run.scheduled().items() if name != "kl.beta"}  # the dial's is "beta"
    if run.dial.target is not None:
        controls["kl_target"] = run.dial.target
    return StepRecord(
        stage=run.core.stage,
        step=progress.step,
        attempt=progress.attempt,
        metrics=metrics,
        controls=controls,
        notes=nonfinite_note(report),
        seconds=run.core.clock.take(),
    )


def offline_record(run: OfflineRun[BatchT], batch: Batch, report: UpdateReport) -> StepRecord:
    return StepRecord(
        stage=run.core.stage,
        step=run.core.progress.step,
        attempt=run.core.progress.attempt,
        metrics={"batch_rows": float(len(batch))} | update_metrics(report),
        controls={"learning_rate_factor": report.metrics["learning_rate_factor"]},
        notes=nonfinite_note(report),
        seconds=run.core.clock.take(),
    )


def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    metrics = {
        "sequences": float(rollout.n_sequences),
        "response_tokens": float(rollout.rows.action_counts.double().mean()),
        "response_words": sum(len(text.split()) for text in rollout.responses) / rollout.n_sequences,
        "stopped_share": float(rollout.stopped.double().mean()),
        "entropy_seq": -float(segment_sum(rollout.behaviour_logprobs, rollout.rows.action_offsets).double().mean()),
    }
    distinct = distinct_n(rollout.responses, 3)
    return metrics if distinct is None else metrics | {"distinct_3": distinct}


def score_metrics(rollout: Rollout, scores: Scores) -> dict[str, float]:
    metrics = {
        f"reward{'/' if '/' in name else '_'}{name}": float(part.double().mean()) for name, part in scores.parts.items()
    }
    metrics["reward"] = float(scores.reward.double().mean())
    if scores.ref_logprobs is not None:
        policy = rollout.behaviour_logprobs if scores.policy_logprobs is None else scores.policy_logprobs
        kl = k1(policy, scores.ref_logprobs).double()
        metrics["kl_seq"] = float(segment_sum(kl, rollout.rows.action_offsets).mean())
        metrics["kl_tok"] = float(kl.mean())
    return metrics


def update_metrics(report: UpdateReport) -> dict[str, float]:
    metrics: Mapping[str, float] = {k: v for k, v in report.metrics.items() if k != "learning_rate_factor"}
    extra = {"optimizer_steps": float(report.optimizer_steps)}
    if report.skipped_steps:
        extra |= {"skipped_updates": float(report.skipped_steps), "nonfinite": float(len(report.nonfinite))}
    return dict(metrics) | extra


def nonfinite_note(report: UpdateReport) -> dict[str, str]:
    return {"nonfinite": "; ".join(report.nonfinite)} if report.nonfinite else {}
