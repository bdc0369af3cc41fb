"""Is the gate torch's own, to the last bit, in value and both gradients?"""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu

from tightrope.kernels.gates import gated


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_(True)


@pytest.mark.parametrize("shape", [(7,), (3, 5), (1, 4, 33)])
def test_value_and_gradients_are_those_of_torch(shape) -> None:
    gate, up, weights = drawn(0, *shape), drawn(1, *shape), drawn(2, *shape).detach()
    found, wanted = gated(gate, up), silu(gate) * up
    assert torch.equal(found, wanted)
    ours = torch.autograd.grad((found * weights).sum(), (gate, up))
    theirs = torch.autograd.grad((wanted * weights).sum(), (gate, up))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_gradients_agree_with_finite_differences() -> None:
    inputs = drawn(3, 4, 3, dtype=torch.float64), drawn(4, 4, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(gated, inputs)


def test_far_from_zero_nothing_overflows() -> None:
    gate = torch.tensor([-1e4, -200.0, 200.0, 1e4], requires_grad=True)
    result = gated(gate, torch.ones(4))
    result.sum().backward()
    assert result.tolist() == [0.0, 0.0, 200.0, 1e4]
    assert gate.grad is not None and gate.grad.tolist() == [0.0, 0.0, 1.0, 1.0]


def test_without_gradients_the_inputs_stay_as_they_are() -> None:
    gate, up = drawn(5, 6), drawn(6, 6)
    before = gate.detach().clone(), up.detach().clone()
    with torch.no_grad():
        assert torch.equal(gated(gate, up), silu(gate) * up)
    assert torch.equal(gate, before[0]) and torch.equal(up, before[1])
