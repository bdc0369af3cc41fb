"""What a run is made of: the parts a step uses, and what all stages share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from tightrope.protocols import (
    Algorithm,
    BatchT,
    CheckpointStore,
    Guardian,
    Journal,
    Judge,
    Learner,
    PromptSource,
    RolloutEngine,
    SampleSink,
    State,
    Stateful,
)
from tightrope.records import Action, Finding, StepRecord, Tracker
from tightrope.training.controls import BetaDial
from tightrope.training.timing import Stopwatch
from tightrope.types import Experience, SampleKey, Sampling


def always(step: int) -> bool:
    """No step is the critic's alone."""
    return True


class Progress:
    """Where the run stands. ``attempt`` counts rollbacks; ``policy_version`` counts updates of the weights."""

    def __init__(self) -> None:
        self.step = 0
        self.attempt = 0
        self.policy_version = 0
        self.checkpoint_asked = False
        self.stop_reason: str | None = None

    def advance(self) -> None:
        """A step is done."""
        self.step += 1
        self.policy_version += 1

    def state_dict(self) -> State:
        return {"step": self.step, "attempt": self.attempt, "policy_version": self.policy_version}

    def load_state_dict(self, state: State) -> None:
        self.step, self.attempt, self.policy_version = state["step"], state["attempt"], state["policy_version"]


@dataclass(frozen=True)
class RunCore:
    """What every stage shares.

    ``state`` is the state tree: everything that changes during the run, by name. ``evaluate`` measures the run
    *entering* a step (every ``evaluate_every`` steps and once at the end) and may have nothing to say.
    """

    stage: str
    seed: int
    total_steps: int
    progress: Progress
    state: Mapping[str, Stateful]
    store: CheckpointStore
    guardian: Guardian
    tracker: Tracker
    journal: Journal
    clock: Stopwatch
    checkpoint_every: int
    evaluate: Callable[[int], StepRecord | None]
    evaluate_every: int

    def save(self) -> None:
        self.store.save(self.progress.step, {name: part.state_dict() for name, part in self.state.items()})
        self.progress.checkpoint_asked = False

    def restore(self, state: Mapping[str, State]) -> None:
        """Raises ValueError when the checkpoint and this run do not hold the same parts."""
        if set(state) != set(self.state):
            raise ValueError(f"checkpoint holds {sorted(state)}, the run has {sorted(self.state)}")
        for name, part in self.state.items():
            part.load_state_dict(state[name])

    def note(self, findings: Sequence[Finding], actions: Sequence[Action]) -> None:
        """Write to the journal what was seen and done, and take the requests that concern the loop."""
        for finding in findings:
            if finding.severity == "alarm":
                self.journal.append(finding.step, f"alarm:{finding.detector}", finding.message, "guardian")
        for action in actions:
            self.journal.append(action.step, action.kind, action.reason, "guardian", action.value)
            if action.kind == "checkpoint":
                self.progress.checkpoint_asked = True
            elif action.kind == "stop":
                self.progress.stop_reason = action.reason


@dataclass(frozen=True)
class OnlineRun:
    """A run with rollouts: what the lines of ``training/step.py`` call. ``policy_trains``: False in the steps of the
    critic's head start."""

    core: RunCore
    prompts: PromptSource
    engine: RolloutEngine
    judge: Judge
    algorithm: Algorithm
    learner: Learner[Experience]
    guardian: Guardian
    tracker: Tracker
    samples: SampleSink
    dial: BetaDial
    sampling: Sampling
    samples_per_prompt: int
    scheduled: Callable[[], Mapping[str, float]] = dict
    policy_trains: Callable[[int], bool] = always

    def key(self) -> SampleKey:
        progress = self.core.progress
        return SampleKey(self.core.seed, progress.attempt, progress.step)

    def apply(self, record: StepRecord, findings: Sequence[Finding], actions: Sequence[Action]) -> StepRecord:
        """At the step boundary: the controller moves beta first, then the guardian, who may overrule it."""
        step = record.step
        if "kl_seq" in record.metrics:
            metrics = record.metrics
            self.dial.after_step(step, metrics["kl_seq"], int(metrics["sequences"]), self.policy_trains(step))
        for action in actions:
            if action.kind in ("raise_beta", "lower_beta"):
                assert action.value is not None
                self.dial.multiply(action.value, step)
        self.core.note(findings, actions)
        return record


@dataclass(frozen=True)
class OfflineRun(Generic[BatchT]):
    """A run over a fixed data set. ``next_batch`` draws from a stateless sampler over rows or pairs."""

    core: RunCore
    next_batch: Callable[[], BatchT]
    learner: Learner[BatchT]
    guardian: Guardian
    tracker: Tracker

    def apply(self, record: StepRecord, findings: Sequence[Finding], actions: Sequence[Action]) -> StepRecord:
        self.core.note(findings, actions)
        return record
