"""Does a product give the plain numbers and gradients in any shape and layout, whichever library computes it?"""

from __future__ import annotations

import pytest
import torch

from tightrope.kernels import products
from tightrope.kernels.products import linear, product, recurring, sum_of_products

TOLERANCE = 1e-5
"""Of numbers around 1: float32 sums of a hundred products in another order."""


@pytest.fixture(params=[products.WIDE_VECTORS, False], ids=["as here", "plain"])
def library(request, monkeypatch) -> None:
    monkeypatch.setattr(products, "WIDE_VECTORS", request.param)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [(0,), (1,), (7,), (2, 3)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_is_torchs_in_values_and_gradients(library, rows, with_bias, dtype) -> None:
    leaves = [numbers(*rows, 96).to(dtype), numbers(40, 96, seed=1).to(dtype)]
    leaves += [numbers(40, seed=2).to(dtype)] if with_bias else []
    on_result = numbers(*rows, 40, seed=3).to(dtype)
    found, expected = ([x.clone().requires_grad_() for x in leaves] for _ in range(2))
    y = linear(found[0], found[1], found[2] if with_bias else None)
    plain = torch.nn.functional.linear(*expected)
    torch.testing.assert_close(y, plain, rtol=0, atol=TOLERANCE)
    for mine, theirs in zip(
        torch.autograd.grad(y, found, on_result), torch.autograd.grad(plain, expected, on_result), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=TOLERANCE)


def test_linear_computes_no_gradient_that_nobody_asked_for(library) -> None:
    x, weight = numbers(3, 8), numbers(4, 8).requires_grad_()
    linear(x, weight, None).sum().backward()
    assert x.grad is None
    x.requires_grad_()
    frozen = weight.detach()
    linear(x, frozen, None).sum().backward()
    assert frozen.grad is None and x.grad is not None


@pytest.mark.parametrize("rows", [6, 40])  # thin and not
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_of_matrices_that_lie_on_their_side(library, turned, rows) -> None:
    x = numbers(50, rows).T if turned[0] else numbers(rows, 50)
    weight = numbers(50, 33, seed=1).T if turned[1] else numbers(33, 50, seed=1)
    added = numbers(rows, 33, seed=2)
    expected = x.double() @ weight.double().T
    torch.testing.assert_close(product(x, weight).double(), expected, rtol=0, atol=TOLERANCE)
    found = sum_of_products((x, weight), added.clone())
    torch.testing.assert_close(found.double(), expected + added.double(), rtol=0, atol=TOLERANCE)


def test_few_row_counts_recur() -> None:
    counts = [recurring(rows) for rows in range(2000)]
    assert all(0 <= count - rows < max(16, rows / 16 + 1) for rows, count in enumerate(counts))
    assert counts == sorted(counts) and all(count % 16 == 0 for count in counts)
    assert len({count for count in counts if 500 <= count <= 1000}) <= 18
