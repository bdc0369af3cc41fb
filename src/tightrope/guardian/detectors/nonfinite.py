"""Did this step meet NaN or infinity?

The learner skips an update with non-finite numbers and counts them in the metric ``nonfinite`` (absent when there
were none). A metric that is itself NaN or infinite counts too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tightrope.records import Finding, StepRecord

METRIC = "nonfinite"


class NonFinite:
    name = "nonfinite"

    def review(self, history: Sequence[StepRecord]) -> Sequence[Finding]:
        if not history:
            return []
        record = history[-1]
        broken = sorted(name for name, value in record.metrics.items() if not math.isfinite(value))
        count = record.metrics.get(METRIC, 0.0)
        caught = int(count) if math.isfinite(count) else 0
        if not broken and not caught:
            return []
        where = record.notes.get(METRIC) or ", ".join(broken) or "the update"
        message = f"non-finite numbers in step {record.step}: {where}"
        return [Finding(self.name, "alarm", record.step, message, {METRIC: float(caught + len(broken))})]
