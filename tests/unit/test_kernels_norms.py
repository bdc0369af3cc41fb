"""Is the normalisation torch's own in values and gradients?"""

from __future__ import annotations

import pytest
import torch

from tightrope.kernels.norms import rms_norm


@pytest.mark.parametrize("rows", [(1,), (5,), (2, 3)])
def test_values_and_gradients_are_torchs(rows) -> None:
    make = torch.Generator().manual_seed(0)
    x, weight, on_result = (torch.randn(*s, 6, generator=make, dtype=torch.float64) for s in (rows, (), rows))
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    found, expected = rms_norm(x, weight, 0.1), torch.nn.functional.rms_norm(x, (6,), weight, 0.1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(found, leaves, on_result), torch.autograd.grad(expected, leaves, on_result), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_a_frozen_weight_gets_no_gradient() -> None:
    x, weight = torch.ones(2, 4, requires_grad=True), torch.ones(4)
    rms_norm(x, weight, 0.0).sum().backward()
    assert weight.grad is None
    assert x.grad is not None and x.grad.abs().max() < 1e-6  # a factor on all of x changes nothing
