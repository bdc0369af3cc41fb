"""The true reward of the experiments, as a reward function: what the gold judge itself says, 0 to 1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tightrope.demo.judges import gold

if TYPE_CHECKING:
    from tightrope.types import Sample


def gold_probability(samples: list[Sample]) -> list[float]:
    """That the author of the text liked the movie."""
    return [1.0 / (1.0 + math.exp(-odds)) for odds in gold(samples)]
