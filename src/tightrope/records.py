"""What is told about a run: plain numbers and strings that any part may read.

Vocabulary
    step      one rollout and its update (online), or one optimizer step (offline)
    attempt   counts rollbacks; a repeated step of a later attempt draws new samples
    finding   what a detector saw
    action    what the run did about it

Nothing here imports torch: the guardian, the doctor, the storage and the pages read these types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol

RECORD_SCHEMA = 1

Severity = Literal["info", "watch", "alarm"]
ActionKind = Literal["raise_beta", "lower_beta", "skip_update", "checkpoint", "stop"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation of a detector, e.g. ``Finding("kl_limit", "alarm", 12, "KL 31 nats ...", {"kl_seq": 31.0})``."""

    detector: str
    severity: Severity
    step: int
    message: str
    evidence: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Action:
    """One change of the run, applied at a step boundary, e.g. ``Action("raise_beta", 12, "KL over limit", 2.0)``.

    ``value`` is the factor for ``raise_beta`` and ``lower_beta`` and absent otherwise.
    """

    kind: ActionKind
    step: int
    reason: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Everything said about one step. An undefined metric is absent, never 0.

    ``metrics`` carry their unit in the name (``kl_seq``: nats per response). ``seconds`` hold wall-clock time by
    phase and are the only part that differs between a run and its exact repetition.

    >>> record = StepRecord(stage="ppo", step=3, attempt=0, metrics={"kl_seq": 1.5}, seconds={"rollout": 0.2})
    >>> StepRecord.from_json(record.to_json()) == record
    True
    """

    stage: str
    step: int
    attempt: int
    metrics: Mapping[str, float]
    controls: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    schema: int = RECORD_SCHEMA

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, allow_nan=True)

    @staticmethod
    def from_json(text: str) -> StepRecord:
        """Raises ValueError when the text was written under another schema version."""
        fields = json.loads(text)
        if fields.get("schema") != RECORD_SCHEMA:
            raise ValueError(f"step record has schema {fields.get('schema')}, this version reads {RECORD_SCHEMA}")
        return StepRecord(**fields)

    def reproducible(self) -> str:
        """The JSON without ``seconds``: equal, bit for bit, for a run and its exact repetition."""
        fields = asdict(self)
        del fields["seconds"]
        return json.dumps(fields, sort_keys=True, allow_nan=True)


@dataclass(frozen=True, slots=True)
class MetricCard:
    """What a person needs to read one metric: feeds docs, tooltips and the doctor."""

    name: str
    unit: str
    formula: str
    healthy: str
    what_to_do: str


class Detector(Protocol):
    """A pure function over the history of a run; the live guardian and the offline doctor share it."""

    @property
    def name(self) -> str: ...

    def review(self, history: Sequence[StepRecord]) -> Sequence[Finding]:
        """Findings about the last record of ``history`` (oldest first)."""
        ...


class Tracker(Protocol):
    """Receives each finished step. A tracker may fail; it may never stop the run."""

    def write(self, record: StepRecord) -> None: ...

    def close(self) -> None: ...
