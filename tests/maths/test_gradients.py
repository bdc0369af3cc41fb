"""Is every gradient of ``maths/`` the right one: as golden numbers, as a formula worked by hand, by finite differences?

The functions and their formulas stand in ``gradient_cases.py``; a function without a case fails here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import tightrope.maths
from tests.maths.gradient_cases import CASES, Case, derived
from tests.tensors import f64
from tightrope.maths import advantages, diagnostics, ragged, statistics, value_losses

# d/dx Σ (i + 1) · itemᵢ, written by: python -m tests.maths.gradient_cases
GOLDEN: dict[str, list[float]] = {
    "policy_losses.ppo_clip": [-1.1051709180756475, 2.8381350971865147, -1.005480069053459, 0.0, 0.0, 3.0],
    "policy_losses.ppo_clip: higher above, dual": [-1.2840254166877414, 0.0, -1.005480069053459, 0.0, 0.0, 3.0],
    "policy_losses.sequence_clip": [
        -1.161834242728283,
        -1.161834242728283,
        -1.1112273310225769,
        -1.1112273310225769,
        -1.1112273310225769,
        0.0,
    ],
    "value_losses.clipped_value_loss": [-0.44999999999999996, 0.0, -27.0, 4.4, -5.5],
    "value_losses.clipped_value_loss: no clip": [-0.44999999999999996, -10.0, -27.0, 4.4, -5.5],
    "kl.k1": [1.0, 2.0, 3.0, 4.0],
    "kl.k2": [-1.5, -0.3999999999999999, 2.0999999999999996, 5.0],
    "kl.k3": [-3.481689070338065, -0.44280551632033954, 1.5102440886257713, 2.8539808125592394],
    "kl.ratio_k3": [-0.9097959895689501, -0.42050843855040954, 1.9975817914514993, 6.420127083438707],
    "kl.clamp_log_ratio": [0.0, 2.0, 3.0, 4.0, 0.0],
    "preference_losses.bradley_terry": [
        -0.320821300824607,
        -1.4621171572600098,
        -0.14227761953270035,
        0.320821300824607,
        1.4621171572600098,
        0.14227761953270035,
    ],
    "preference_losses.bradley_terry: margin and smoothing": [
        -0.24298953732650122,
        -1.561594155955765,
        0.15772238046729967,
        0.24298953732650122,
        1.561594155955765,
        -0.15772238046729967,
    ],
    "preference_losses.centering": [2.5, 0.0, 6.0, 2.5, 0.0, 6.0],
    "preference_losses.dpo": [-0.0425557483188341, -0.04283300339148828, 0.0425557483188341, 0.04283300339148828],
    "preference_losses.dpo: smoothing": [
        -0.022555748318834102,
        -0.002833003391488273,
        0.022555748318834102,
        0.002833003391488273,
    ],
    "ranking_losses.kwise": [
        0.0041950042994782985,
        0.15070825626618367,
        -0.15070825626618364,
        -0.004195004299478308,
        -1.421899005250008,
        1.421899005250008,
    ],
    "ranking_losses.kwise: smoothing": [
        0.0041950042994782985,
        0.09070825626618366,
        -0.09070825626618365,
        -0.004195004299478308,
        -1.2218990052500078,
        1.2218990052500078,
    ],
    "ranking_losses.plackett_luce": [
        -0.34695060842748837,
        0.5755355877978289,
        -0.5094629858183787,
        0.28087800644803823,
        -1.421899005250008,
        1.421899005250008,
    ],
    "ranking_losses.best_of_n": [
        0.2204124884433827,
        0.08961303042900484,
        -0.5094629858183787,
        0.19943746694599118,
        -1.421899005250008,
        1.421899005250008,
    ],
    "penalties.length_cost": [1.0, 2.0, 3.0],
    "penalties.over_budget": [1.0, 2.0, 3.0],
    "penalties.soft_overlong": [1.0, 2.0, 3.0],
    "penalties.stop_properly": [1.0, 0.5, 0.75],
    "penalties.missing_eos: subtract": [1.0, 2.0, 3.0],
    "penalties.missing_eos: replace": [1.0, 0.0, 0.0],
    "penalties.missing_eos: off": [1.0, 2.0, 3.0],
    "ragged.segment_sum": [1.0, 1.0, 3.0, 3.0, 3.0, 4.0],
    "ragged.widen": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "logprobs.logprobs_and_entropy": [
        -2.3914778024705354,
        0.5580723199918378,
        1.8334054824786976,
        3.253397501807428,
        -2.392250654165595,
        -0.8611468476418331,
    ],
    "logprobs.chunked_logprobs": [
        -0.7659028333869813,
        0.669208722971519,
        -0.2975011704346457,
        -0.10101644185068237,
        0.929858120605602,
        -0.283749861611459,
        0.04490628217154066,
        0.8930697031778757,
        -0.2758425402429676,
        -0.0591732660735311,
        0.6889063755937178,
        -1.0223613472348447,
        -0.6255771286931768,
        0.18590049930368524,
        0.07733956676292662,
        0.024304674824300404,
        0.009852870002974719,
        -0.26957641824075285,
    ],
}

TOLERANCE = 1e-9


def point(case: Case, seed: int, spread: float) -> Tensor:
    noise = torch.randn(len(case.at), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return f64(*case.at) + spread * noise


def jacobian(case: Case, x: Tensor) -> Tensor:
    found = torch.autograd.functional.jacobian(case.items, x)
    assert isinstance(found, Tensor)
    return found


def assert_equal(found: Tensor, expected: Sequence[Any]) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_has_its_golden_numbers(name) -> None:
    case = CASES[name]
    x = f64(*case.at).requires_grad_()
    items = case.items(x)
    (gradient,) = torch.autograd.grad((items * torch.arange(1.0, len(items) + 1)).sum(), x)
    assert_equal(gradient, GOLDEN[name])


@pytest.mark.parametrize("name", CASES)
def test_the_golden_numbers_are_the_derivative_of_the_formula(name) -> None:
    assert derived(CASES[name]) == pytest.approx(GOLDEN[name], rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_the_formula_worked_by_hand(name) -> None:
    """At the golden point and around it; no random point lies on a border."""
    case = CASES[name]
    for seed in range(20):
        x = point(case, seed, spread=0.0 if seed == 0 else 0.3)
        assert_equal(jacobian(case, x), case.by_hand(x.tolist()))


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_what_finite_differences_say(name) -> None:
    for seed in (1, 2):
        assert torch.autograd.gradcheck(CASES[name].items, [point(CASES[name], seed, 0.2).requires_grad_()])


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_that_is_a_little_wrong_is_noticed(name) -> None:
    """The comparison itself can fail: any entry moved by 1e-8, golden or worked by hand."""
    case = CASES[name]
    found = jacobian(case, f64(*case.at))
    for wrong in (found + 1e-8, found.roll(1, 0) if len(found) > 1 else -found):
        with pytest.raises(AssertionError):
            assert_equal(wrong, case.by_hand(case.at))


# what carries no gradient, on purpose

ENDS = torch.tensor([0, 2, 3])
TWO, THREE = f64(0.5, -1.0).requires_grad_(), f64(0.1, 0.7, -0.4).requires_grad_()
WITHOUT: dict[str, Callable[[], object]] = {
    # what an action is worth is data of the update
    "advantages.token_rewards": lambda: advantages.token_rewards(TWO, THREE, 0.1, ENDS),
    "advantages.gae": lambda: advantages.gae(THREE, THREE, ENDS, 0.9, 0.8, TWO),
    "advantages.decoupled_gae": lambda: advantages.decoupled_gae(THREE, THREE, ENDS, 0.9, 0.8, 1.0, TWO),
    "advantages.whiten": lambda: advantages.whiten(THREE),
    "advantages.rloo_advantages": lambda: advantages.rloo_advantages(THREE, torch.tensor([0, 0, 1])),
    "ragged.discounted_to_go": lambda: ragged.discounted_to_go(THREE, ENDS, 0.9),
    # numbers for people
    "diagnostics.approx_kl": lambda: diagnostics.approx_kl(THREE, 2 * THREE),
    "diagnostics.pair_outcomes": lambda: diagnostics.pair_outcomes(THREE, 2 * THREE),
    "value_losses.explained_variance": lambda: value_losses.explained_variance(THREE, 2 * THREE),
    "statistics.moments": lambda: statistics.moments(THREE),
    "statistics.gain_and_bias": lambda: statistics.gain_and_bias(THREE),
    # checks
    "advantages.require_per_sequence": lambda: advantages.require_per_sequence("x", TWO, ENDS),
    "ragged.require_offsets": lambda: ragged.require_offsets(THREE, ENDS),
    "ragged.require_same_shape": lambda: ragged.require_same_shape({"x": TWO}),
    "ragged.result_dtype": lambda: ragged.result_dtype(TWO),
}
VALUES_ONLY = {"logprobs.output_logits"}
"""Works in place, for the sampler; ``chunked_logprobs`` derives the same numbers."""


def tensors_in(result: object) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, tuple):
        for entry in result:
            yield from tensors_in(entry)


@pytest.mark.parametrize("name", WITHOUT)
def test_what_is_data_carries_no_gradient(name) -> None:
    assert not any(tensor.requires_grad for tensor in tensors_in(WITHOUT[name]()))


@pytest.mark.parametrize("name", [name for name in CASES if name.split(".")[0].endswith("losses")])
def test_of_a_loss_only_the_loss_carries_a_gradient(name) -> None:
    """Ratio, marks of the clip and implicit rewards are for reading."""
    seen: list[Tensor] = []
    function = name.split(":")[0].split(".")[1]
    loss = vars(importlib.import_module("tests.maths.gradient_cases"))[function]

    def watched(*args: Any, **settings: Any) -> Any:
        result = loss(*args, **settings)
        seen.extend(tensors_in(result))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"tests.maths.gradient_cases.{function}", watched)
        CASES[name].items(f64(*CASES[name].at).requires_grad_())
    assert [tensor.requires_grad for tensor in seen] == [True] + [False] * (len(seen) - 1)


# the register


def functions_of_tensors() -> dict[str, Callable[..., Any]]:
    """Every public function of ``maths/`` that is given a tensor of real numbers."""
    found = {}
    for entry in pkgutil.iter_modules(tightrope.maths.__path__):
        module = importlib.import_module(f"tightrope.maths.{entry.name}")
        for name, member in inspect.getmembers(module, inspect.isfunction):
            own = member.__module__ == module.__name__ and not name.startswith("_")
            if own and any(is_real_tensor(p.annotation) for p in inspect.signature(member).parameters.values()):
                found[f"{entry.name}.{name}"] = member
    return found


def is_real_tensor(annotation: str) -> bool:
    return "Float[" in annotation or "Tensor" in annotation.replace("Int[Tensor", "").replace("Bool[Tensor", "")


def unregistered(functions: Mapping[str, object]) -> list[str]:
    known = {name.split(":")[0] for name in CASES} | set(WITHOUT) | VALUES_ONLY
    return sorted(set(functions) - known)


def test_every_function_of_maths_says_what_its_gradient_is() -> None:
    found = functions_of_tensors()
    assert len(found) > 30
    assert unregistered(found) == [], "give it a case in gradient_cases.py, or say in WITHOUT that it carries none"


def test_a_loss_without_a_gradient_test_is_noticed() -> None:
    assert unregistered(functions_of_tensors() | {"kl.k4": None}) == ["kl.k4"]


def test_every_entry_is_a_function_that_exists() -> None:
    entries = {name.split(":")[0] for name in CASES} | set(WITHOUT) | VALUES_ONLY
    assert entries <= set(functions_of_tensors())
    assert set(GOLDEN) == set(CASES)
