"""Seconds by phase, measured at the callee, so that the step stays a list of calls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Generic

from tightrope.protocols import BatchT, Judge, Learner, RolloutEngine
from tightrope.types import Prompt, Rollout, SampleKey, Sampling, Scores, UpdateReport


class Stopwatch:
    """Wall-clock seconds by phase since the last ``take``."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begin

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
