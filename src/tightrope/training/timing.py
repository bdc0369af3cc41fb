"""Seconds by phase, measured at the callee, so that the step stays a list of calls."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic

import torch

from tightrope.protocols import Algorithm, BatchT, Judge, Learner, RolloutEngine
from tightrope.types import Experience, Loss, PolicyOutput, Prompt, Rollout, SampleKey, Sampling, Scores, UpdateReport


@dataclass(frozen=True, slots=True)
class Spent:
    """On one phase since the process began. ``cpu_seconds`` of all threads; ``peak_bytes``: the most memory that was
    resident until the phase last ended."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


class Stopwatch:
    """Seconds by phase since the last ``take``: of the wall clock, or of what ``now`` reads. ``spent`` is never reset,
    nor are ``sampled_tokens`` (of prompts and responses) and ``sampled_actions``."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._seconds: dict[str, float] = {}
        self._wall: dict[str, float] = {}
        self._cpu: dict[str, float] = {}
        self._peak: dict[str, int] = {}
        self.sampled_tokens = self.sampled_actions = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin, cpu = self._now(), time.process_time()
        try:
            yield
        finally:
            seconds = self._now() - begin
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            self._wall[name] = self._wall.get(name, 0.0) + seconds
            self._cpu[name] = self._cpu.get(name, 0.0) + time.process_time() - cpu
            self._peak[name] = peak_bytes()

    def spent(self) -> dict[str, Spent]:
        """By phase, in the order of their first end."""
        return {name: Spent(self._wall[name], self._cpu[name], self._peak[name]) for name in self._wall}

    def take(self) -> dict[str, float]:
        seconds, self._seconds = self._seconds, {}
        return seconds


def peak_bytes() -> int:
    """The most memory that this process had at once, on the GPU where it computes there."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class TimedEngine:
    def __init__(self, engine: RolloutEngine, clock: Stopwatch) -> None:
        self._engine = engine
        self._clock = clock

    def generate(
        self, prompts: Sequence[Prompt], samples_per_prompt: int, sampling: Sampling, key: SampleKey
    ) -> Rollout:
        with self._clock.phase("rollout"):
            rollout = self._engine.generate(prompts, samples_per_prompt, sampling, key)
        self._clock.sampled_tokens += rollout.rows.n_tokens
        self._clock.sampled_actions += rollout.rows.n_actions
        return rollout


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


class TimedAlgorithm:
    def __init__(self, algorithm: Algorithm, clock: Stopwatch) -> None:
        self._algorithm = algorithm
        self._clock = clock

    def credit(self, rollout: Rollout, scores: Scores) -> Experience:
        with self._clock.phase("credit"):
            return self._algorithm.credit(rollout, scores)

    def counts(self, batch: Experience) -> Mapping[str, int]:
        return self._algorithm.counts(batch)

    def loss(self, output: PolicyOutput, batch: Experience) -> Loss:
        return self._algorithm.loss(output, batch)
