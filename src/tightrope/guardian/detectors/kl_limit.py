"""Is the policy too far from its reference?

Reads ``kl_seq``, nats per response. The limit is given, or 4 x the KL target that the run reports among its controls.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightrope.records import Finding, StepRecord

METRIC = "kl_seq"
TARGET_CONTROL = "kl_target"
LIMIT_PER_TARGET = 4.0


class KLLimit:
    name = "kl_limit"

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit

    def limit_at(self, record: StepRecord) -> float | None:
        """Nats per response, None where no limit is known."""
        if self._limit is not None:
            return self._limit
        target = record.controls.get(TARGET_CONTROL)
        return None if target is None else LIMIT_PER_TARGET * target

    def review(self, history: Sequence[StepRecord]) -> Sequence[Finding]:
        """An alarm where KL lies over the limit; a KL that is NaN is the alarm of ``NonFinite``."""
        if not history:
            return []
        record = history[-1]
        kl, limit = record.metrics.get(METRIC), self.limit_at(record)
        if kl is None or limit is None or not kl > limit:
            return []
        message = f"KL {kl:.3g} nats per response is over the limit of {limit:.3g}"
        return [Finding(self.name, "alarm", record.step, message, {METRIC: kl, "kl_limit": limit})]
