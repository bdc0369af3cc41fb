"""The live guardian: a bounded history, the detectors over it, and the remedies for what they find."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from tightrope.config.schema import GuardianSection
from tightrope.guardian.detectors.kl_limit import KLLimit
from tightrope.guardian.detectors.nonfinite import NonFinite
from tightrope.guardian.plugins import detectors_of
from tightrope.guardian.remedies import KLRemedy, NonFiniteRemedy
from tightrope.records import Action, Detector, Finding, StepRecord

HISTORY_STEPS = 64


class StepGuardian:
    """Implements ``protocols.Guardian`` and ``Stateful``: restored from its state it acts as if never interrupted.

    ``kl_limit`` in nats per response; absent, 4 x the target named by the record's control ``kl_target``.
    """

    def __init__(self, options: GuardianSection) -> None:
        self._detectors: tuple[Detector, ...] = (NonFinite(), KLLimit(options.kl_limit), *detectors_of(options))
        self._nonfinite = NonFiniteRemedy(options)
        self._kl = KLRemedy(options)
        self._history: deque[StepRecord] = deque(maxlen=HISTORY_STEPS)

    def review(self, record: StepRecord) -> tuple[Sequence[Finding], Sequence[Action]]:
        """A stop comes alone: nothing else is worth doing to a run that ends."""
        self._history.append(record)
        history = tuple(self._history)
        findings = [finding for detector in self._detectors for finding in detector.review(history)]
        actions = self._nonfinite.actions(record, findings) + self._kl.actions(record, findings)
        stops = [action for action in actions if action.kind == "stop"]
        return findings, stops[:1] or actions

    def state_dict(self) -> dict[str, Any]:
        return {
            "history": [record.to_json() for record in self._history],
            "nonfinite": self._nonfinite.state_dict(),
            "kl": self._kl.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._history.clear()
        self._history.extend(StepRecord.from_json(text) for text in state["history"])
        self._nonfinite.load_state_dict(state["nonfinite"])
        self._kl.load_state_dict(state["kl"])
