"""What is kept of a run? A few kilobytes of numbers: curves over steps, peaks, and held-out prompts before and after.

Curves
    true         mean probability of the gold judge over the step's training samples
    odds         the same judge's log-odds, in standard deviations of the starting policy's samples, from its mean
    proxy        what was trained towards, mean 0 and std 1 over samples of the starting policy
    the rest     the run's own metrics and controls, see docs/metrics.md
Each is at most ``MOST_POINTS`` long: then a point is the mean of ``every`` steps. None where a metric did not exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tightrope.api import RunView
from tightrope.demo.corpus import continued
from tightrope.demo.judges import GoldJudge, vader_scores
from tightrope.maths.diagnostics import Interval, distinct_n, paired_difference
from tightrope.storage.samples import StoredSample

MOST_POINTS = 60
METRICS = {
    "proxy": "reward_normalised",
    "kl": "kl_seq",
    "explained_variance": "explained_variance",
    "clip_fraction": "clip_fraction",
    "approx_kl": "approx_kl",
    "tokens": "response_tokens",
    "distinct_3": "distinct_3",
    "entropy": "entropy_tok",
}
LEVELS = (0.7, 0.8, 0.85)
SMOOTH_SAMPLES = 320
"""A level is reached when the mean over the steps of so many samples, five of 64, lies over it."""
SPIKE = 0.05
"""Nats per token between old and new policy, over which a step counts as a spike."""


class Judged:
    """Samples of one split with the verdict of the gold judge."""

    def __init__(self, samples: Sequence[StoredSample], gold: GoldJudge) -> None:
        self.samples = samples
        self.texts = [continued(sample.prompt, sample.response) for sample in samples]
        self.odds: list[float] = gold.log_odds(self.texts).tolist()
        self.probabilities = [1.0 / (1.0 + math.exp(-odds)) for odds in self.odds]


def figures_of(view: RunView, gold: GoldJudge, outcome: str) -> dict[str, Any]:
    records = view.records("ppo")
    steps = [Judged(view.samples(record.step), gold) for record in records]
    start, end = probes(view, gold, len(records))
    middle, spread = moments(start.odds)
    true = [mean(step.probabilities) for step in steps]
    curves: dict[str, list[float | None]] = {
        "true": [*true],
        "odds": [(mean(step.odds) - middle) / spread for step in steps],
        "beta": [record.controls.get("beta") for record in records],
        **{name: [record.metrics.get(metric) for record in records] for name, metric in METRICS.items()},
    }
    every = -(-len(records) // MOST_POINTS)
    sequences = int(records[0].metrics["sequences"])
    return {
        "outcome": outcome,
        "steps": len(records),
        "sequences": sequences,
        "every": every,
        "start": held_out(start),
        "end": held_out(end),
        "rise": interval(paired_difference(start.probabilities, end.probabilities)),
        "odds_at_start": [rounded(middle), rounded(spread)],
        "last_third": {name: rounded(mean(last_third(curves[name]))) for name in ("true", "kl", "beta")},
        "ev": ev_figures(curves["explained_variance"]),
        "peaks": peaks(curves),
        "steps_to": {f"{level:g}": first_over(true, level, -(-SMOOTH_SAMPLES // sequences)) for level in LEVELS},
        "epochs_cut": sum("stopped_in_epoch" in record.metrics for record in records),
        "alarms": sum(event.kind.startswith("alarm") for event in view.events()),
        "curves": {name: thinned(values, every) for name, values in curves.items()},
    }


def probes(view: RunView, gold: GoldJudge, steps: int) -> tuple[Judged, Judged]:
    """The held-out prompts before the first step and after the last; a run that was stopped has its last step only."""
    before, after = view.samples(0, "probe"), view.samples(steps, "probe")
    return Judged(before, gold), Judged(after or view.samples(steps - 1), gold)


def held_out(judged: Judged) -> dict[str, Any]:
    """Mean with its 95 % interval where it is a list of three."""
    zeros = [0.0] * len(judged.texts)
    kl = [sample.kl for sample in judged.samples if sample.kl is not None]
    return {
        "true": interval(paired_difference(zeros, judged.probabilities)),
        "positive": rounded(mean([float(p > 0.5) for p in judged.probabilities])),
        "odds": rounded(mean(judged.odds)),
        "independent": interval(paired_difference(zeros, vader_scores(judged.texts))),
        "kl": rounded(mean(kl)) if kl else None,
        "tokens": rounded(mean([float(sample.n_tokens) for sample in judged.samples])),
        "distinct_3": rounded(distinct_n([sample.response for sample in judged.samples], 3)),
        "prompts": len(judged.texts),
    }


def ev_figures(values: Sequence[float | None]) -> dict[str, float | None]:
    """Explained variance: mean over all steps, at step 10 and at the end (each the mean of three steps)."""
    known = [value for value in values if value is not None]
    named = {"mean": known, "step_10": known[9:12], "end": known[-3:]}
    return {name: rounded(mean(some)) if some else None for name, some in named.items()}


def peaks(curves: Mapping[str, Sequence[float | None]]) -> dict[str, float | None]:
    kl = [value for value in curves["kl"] if value is not None]
    moved = [value for value in curves["approx_kl"] if value is not None]
    jumps = [after - before for before, after in pairwise(kl)]
    return {
        "kl": rounded(max(kl, default=None)),
        "kl_jump": rounded(max(jumps, default=None)),
        "approx_kl": rounded(max(moved, default=None)),
        "spikes": float(sum(value > SPIKE for value in moved)),
    }


def first_over(values: Sequence[float], level: float, width: int) -> int | None:
    """Steps done when the mean of the last ``width`` first lies over the level.

    >>> first_over([0.0, 1.0, 1.0], level=0.9, width=2)
    3
    """
    for end in range(width, len(values) + 1):
        if mean(values[end - width : end]) > level:
            return end
    return None


def last_third(values: Sequence[float | None]) -> list[float]:
    return [value for value in values[-(len(values) // 3) :] if value is not None]


def thinned(values: Sequence[float | None], every: int) -> list[float | None]:
    groups = [[v for v in values[i : i + every] if v is not None] for i in range(0, len(values), every)]
    return [float(f"{mean(group):.3g}") if group else None for group in groups]


def moments(values: Sequence[float]) -> tuple[float, float]:
    middle = mean(values)
    return middle, math.sqrt(mean([(value - middle) ** 2 for value in values]))


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def interval(found: Interval) -> list[float | None]:
    return [rounded(number) for number in found]


def rounded(value: float | None) -> float | None:
    """Four digits: what is kept has no more meaning than that.

    >>> rounded(0.123456), rounded(1234.56), rounded(None)
    (0.1235, 1235.0, None)
    """
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def curve(figures: Mapping[str, Any], name: str) -> list[tuple[float, float]]:
    """(steps done, value) of a kept run."""
    every, steps = figures["every"], figures["steps"]
    values = figures["curves"][name]
    return [(min(steps, (i + 1) * every), value) for i, value in enumerate(values) if value is not None]
