"""From findings to actions. Each remedy counts what it has tried, and stops the run when it does not help.

The counters reset when the trouble has been gone for a while, or when it shrinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tightrope.config.schema import GuardianSection
from tightrope.guardian.detectors.kl_limit import METRIC as KL_METRIC
from tightrope.records import Action, Finding, StepRecord

CALM_STEPS = 3  # steps under the limit after which an episode is over
IMPROVEMENT = 0.9  # a KL below this share of the best of its episode shows that the last remedy works


class KLRemedy:
    """KL over the limit: keep a checkpoint, raise beta, and after ``patience`` alarms that did not help stop.

    The checkpoint is taken at the first alarm of an episode only: one at each alarm would push the checkpoints from
    before the trouble off the disk. While KL falls by itself beta is left alone.
    """

    def __init__(self, options: GuardianSection) -> None:
        self._options = options
        self._alarms = 0  # alarms of this episode since the last improvement
        self._calm = 0  # steps in a row under the limit, within an episode
        self._best: float | None = None  # lowest KL of this episode; None outside an episode

    def actions(self, record: StepRecord, findings: Sequence[Finding]) -> list[Action]:
        alarm = next((finding for finding in findings if finding.detector == "kl_limit"), None)
        if alarm is None:
            if KL_METRIC in record.metrics:
                self._note_calm()
            return []
        kl = alarm.evidence[KL_METRIC]
        first = self._best is None
        improved = self._best is not None and kl < IMPROVEMENT * self._best
        self._best = kl if self._best is None else min(self._best, kl)
        self._calm = 0
        if improved:
            self._alarms = 0
            return []
        self._alarms += 1
        step = record.step
        if self._alarms >= self._options.patience:
            return [Action("stop", step, self._why_stop(alarm.message))]
        raised = Action("raise_beta", step, alarm.message, self._options.raise_factor)
        return [Action("checkpoint", step, alarm.message), raised] if first else [raised]

    def _note_calm(self) -> None:
        if self._best is None:
            return
        self._calm += 1
        if self._calm >= CALM_STEPS:
            self._alarms, self._calm, self._best = 0, 0, None

    def _why_stop(self, message: str) -> str:
        return (
            f"{message}, and {self._alarms} alarms with a higher beta each time did not bring it down; "
            "lower optimizer.learning_rate or start with a higher kl.beta"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"alarms": self._alarms, "calm": self._calm, "best": self._best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._alarms, self._calm, self._best = state["alarms"], state["calm"], state["best"]


class NonFiniteRemedy:
    """Non-finite numbers: the learner has skipped the update already; ``max_nonfinite`` such steps in a row: stop."""

    def __init__(self, options: GuardianSection) -> None:
        self._options = options
        self._in_a_row = 0

    def actions(self, record: StepRecord, findings: Sequence[Finding]) -> list[Action]:
        alarm = next((finding for finding in findings if finding.detector == "nonfinite"), None)
        if alarm is None:
            self._in_a_row = 0
            return []
        self._in_a_row += 1
        if self._in_a_row < self._options.max_nonfinite:
            return []
        steps = "1 step" if self._in_a_row == 1 else f"{self._in_a_row} steps in a row"
        reason = f"{alarm.message}; {steps} could not be used: lower optimizer.learning_rate or check the rewards"
        return [Action("stop", record.step, reason)]

    def state_dict(self) -> dict[str, Any]:
        return {"in_a_row": self._in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._in_a_row = state["in_a_row"]
