"""Is what a reward source returned one finite number a sample? Everything else is a named error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tightrope.config.errors import NonFiniteNumbers, TightropeError
from tightrope.types import Sample

LARGEST = torch.finfo(torch.float32).max
EXCERPT = 40
"""Characters of a prompt that an error shows."""


class NonFiniteReward(NonFiniteNumbers):
    """A reward that is NaN, infinite, or beyond float32: the step is refused, nothing is learned from it."""


def checked_rewards(result: object, samples: Sequence[Sample], source: str) -> list[float]:
    """``result`` as floats, one a sample. Lists, tuples, arrays, tensors; numbers, their scalars, and bool as 0 or 1.

    ``source`` names the reward in errors. Raises TightropeError, NonFiniteReward for a number that is not finite.
    """
    if not isinstance(result, Iterable) or isinstance(result, str | bytes | Mapping | set):
        raise TightropeError(
            "a reward must return one number a sample",
            where=source,
            expected=f"a list of {len(samples)} numbers",
            found=type(result).__name__,
        )
    values: list[Any] = list(result)
    if len(values) != len(samples):
        raise TightropeError(
            "a reward must return one number a sample",
            where=source,
            expected=f"{len(samples)} numbers",
            found=f"{len(values)}",
            fix="return the rewards in the order of the samples",
        )
    return [
        _finite(value, position, sample, source)
        for position, (value, sample) in enumerate(zip(values, samples, strict=True))
    ]


def _finite(value: object, position: int, sample: Sample, source: str) -> float:
    scalar = value.item() if isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0 else value
    if not isinstance(scalar, int | float):
        raise TightropeError(
            f"the reward of {described(position, sample)} is not a number",
            where=source,
            expected="a number",
            found=f"{type(scalar).__name__} {shortened(repr(scalar))}",
        )
    if not abs(scalar) <= LARGEST:  # True for NaN too; an int of any size compares
        raise NonFiniteReward(
            f"the reward of {described(position, sample)} is not finite",
            where=source,
            expected="a finite number within float32",
            found=shortened(repr(scalar)),
            fix="return a number for every response, the empty one too",
        )
    return float(scalar)


def described(position: int, sample: Sample) -> str:
    return f"sample {position} (data row {sample.prompt.index}, prompt {shortened(sample.prompt.text)!r})"


def shortened(text: str) -> str:
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
