"""Do the estimators of KL have the value, the bias and the gradient they claim?"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tensors import f64
from tightrope.maths.diagnostics import approx_kl
from tightrope.maths.kl import clamp_log_ratio, k1, k2, k3

distribution = st.lists(st.floats(-2, 2), min_size=2, max_size=6)


@given(st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0)), max_size=6))
@settings(deadline=None)
def test_estimators_are_those_of_their_formulas(pairs) -> None:
    policy, reference = f64(*[p for p, _ in pairs]), f64(*[r for _, r in pairs])
    d = [p - r for p, r in pairs]
    torch.testing.assert_close(k1(policy, reference), f64(*d))
    torch.testing.assert_close(k2(policy, reference), f64(*[x * x / 2 for x in d]))
    torch.testing.assert_close(k3(policy, reference), f64(*[math.exp(-x) - 1 + x for x in d]))
    assert bool((k2(policy, reference) >= 0).all())
    assert bool((k3(policy, reference) >= 0).all())


@given(distribution, st.integers(0, 1000))
@settings(deadline=None)
def test_k1_and_k3_have_no_bias(logits, seed) -> None:
    policy = f64(*logits).log_softmax(0)
    reference = torch.randn(len(logits), generator=torch.Generator().manual_seed(seed)).double().log_softmax(0)
    exact = float((policy.exp() * (policy - reference)).sum())
    for estimator in (k1, k3):
        assert float((policy.exp() * estimator(policy, reference)).sum()) == pytest.approx(exact, abs=1e-9)


def test_k3_is_constant_beyond_its_clamp() -> None:
    policy = f64(-50.0, 50.0).requires_grad_()
    found = k3(policy, f64(0.0, 0.0))
    assert found.tolist() == pytest.approx([math.exp(20) - 1 - 20, math.exp(-20) - 1 + 20])
    assert torch.autograd.grad(found.sum(), policy)[0].tolist() == [0.0, 0.0]


def test_k3_of_a_tiny_difference_keeps_its_digits() -> None:
    d = 1e-6
    assert k3(f64(d), f64(0.0)).item() == pytest.approx(d * d / 2, rel=1e-4)


def test_the_clamp_leaves_ordinary_ratios_alone() -> None:
    assert clamp_log_ratio(f64(-19.9, 19.9)).tolist() == [-19.9, 19.9]


def test_approx_kl_is_the_old_policy_against_the_new() -> None:
    """ratio 2: k3 is 2 - 1 - ln 2; the other direction would be 1/2 - 1 + ln 2."""
    assert approx_kl(f64(math.log(2)), f64(0.0)).item() == pytest.approx(1 - math.log(2))


def test_shapes_and_types() -> None:
    for estimator in (k1, k2, k3):
        with pytest.raises(ValueError, match="shapes must be equal"):
            estimator(torch.ones(2), torch.ones(2, 1))
        half = torch.ones(1, dtype=torch.bfloat16)
        assert estimator(half, half).dtype == torch.float32
        assert estimator(torch.empty(0), torch.empty(0)).shape == (0,)
