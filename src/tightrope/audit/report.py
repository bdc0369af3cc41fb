"""What an audit found, as one value: measures that exist, why others do not, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tightrope.audit.coverage import Coverage, Distance
from tightrope.audit.labels import FlipRate
from tightrope.audit.measures import Calibration, Rank, Share
from tightrope.audit.phrases import Phrase
from tightrope.audit.policy import OnPolicy
from tightrope.audit.probes import Shift
from tightrope.maths.diagnostics import Interval

SCHEMA = 1
Severity = Literal["fault", "note"]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A pair whose label looks wrong; ``doubt`` is the probability of it."""

    where: str
    prompt: str
    chosen: str
    rejected: str
    doubt: float
    margin: float | None


@dataclass(frozen=True, slots=True)
class Found:
    """One thing to act on: ``name`` (``length``, ``phrase``, ``labels`` ...), what is seen, and what to do."""

    severity: Severity
    name: str
    seen: str
    advice: str


@dataclass(frozen=True)
class Measured:
    """None and empty: not measured; ``missing`` says why."""

    model: str
    held_out_pairs: int
    train_pairs: int
    unit: float
    accuracy: Share | None = None
    train_accuracy: Share | None = None
    overfitting: Interval | None = None
    kendall: Interval | None = None
    rank: Rank | None = None
    rank_against: str | None = None
    calibration: Calibration | None = None
    matched: Share | None = None
    unmatched: Share | None = None
    shorter_wins: Share | None = None
    shifts: tuple[Shift, ...] = ()
    dose: tuple[tuple[int, float], ...] = ()
    phrases: tuple[Phrase, ...] = ()
    flips: FlipRate | None = None
    model_flips: FlipRate | None = None
    suspects: tuple[Suspect, ...] = ()
    coverage: Coverage | None = None
    votes: Share | None = None
    policy: OnPolicy | None = None
    distance: Distance | None = None
    judge: str | None = None
    missing: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Audit:
    measured: Measured
    found: tuple[Found, ...]

    @property
    def faults(self) -> list[Found]:
        return [one for one in self.found if one.severity == "fault"]

    @property
    def verdict(self) -> str:
        """One sentence."""
        faults = self.faults
        if self.measured.accuracy is None:
            return "no held-out pairs: this audit cannot say whether the reward model is right"
        if not faults:
            return "no fault found by what was measured"
        return f"{len(faults)} {'fault' if len(faults) == 1 else 'faults'}: {', '.join(one.name for one in faults)}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON: bounds that do not exist become null."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "found": [asdict(one) for one in self.found],
            **plain(asdict(self.measured)),
        }


def plain(value: Any) -> Any:
    """JSON's own types; intervals as objects, numbers that are not finite as null.

    >>> plain({"a": (1.0, math.inf), "b": Interval(0.5, 0.4, 0.6)})
    {'a': [1.0, None], 'b': {'estimate': 0.5, 'low': 0.4, 'high': 0.6}}
    """
    if isinstance(value, Interval):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
