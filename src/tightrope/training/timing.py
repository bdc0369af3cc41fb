"""Seconds by phase, measured at the callee, so that the step stays a list of calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic

from tightrope.protocols import BatchT, Judge, Learner, RolloutEngine
from tightrope.types import Prompt, Rollout, SampleKey, Sampling, Scores, UpdateReport


class Stopwatch:
    """Seconds by phase since the last ``take``: of the wall clock, or of what ``now`` reads."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = self._now()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._now() - begin

    def take(self) -> dict[str, float]:
        seconds, self._seconds = self._seconds, {}
        return seconds


class TimedEngine:
    def __init__(self, engine: RolloutEngine, clock: Stopwatch) -> None:
        self._engine = engine
        self._clock = clock

    def generate(
        self, prompts: Sequence[Prompt], samples_per_prompt: int, sampling: Sampling, key: SampleKey
    ) -> Rollout:
        with self._clock.phase("rollout"):
            return self._engine.generate(prompts, samples_per_prompt, sampling, key)


class TimedJudge:
    def __init__(self, judge: Judge, clock: Stopwatch) -> None:
        self._judge = judge
        self._clock = clock

    def score(self, rollout: Rollout) -> Scores:
        with self._clock.phase("score"):
            return self._judge.score(rollout)


class TimedLearner(Generic[BatchT]):
    def __init__(self, learner: Learner[BatchT], clock: Stopwatch) -> None:
        self._learner = learner
        self._clock = clock

    def update(self, batch: BatchT) -> UpdateReport:
        with self._clock.phase("update"):
            return self._learner.update(batch)
