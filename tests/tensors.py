"""Short names for the tensors that the tests of numbers write again and again."""

from __future__ import annotations

import torch


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)
