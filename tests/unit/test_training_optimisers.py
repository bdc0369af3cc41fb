"""Has each group its own rate, norm and state, and does the state find its parameter by name?"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tightrope.config.schema import OptimizerSection
from tightrope.training.optimisers import NamedAdamW, NamedWeights, group_options


def parameters(*names: str) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.full((2,), float(index))) for index, name in enumerate(names)}


def trained(group: dict[str, nn.Parameter], gradients: dict[str, float], steps: int = 2) -> NamedAdamW:
    optimizer = NamedAdamW(group, group_options(OptimizerSection(), "policy"))
    for _ in range(steps):
        for name, value in gradients.items():
            group[name].grad = torch.full_like(group[name], value)
        optimizer.step(1.0)
    optimizer.clear_gradients()
    return optimizer


def test_the_critic_learns_five_times_as_fast_unless_it_is_told_otherwise() -> None:
    section = OptimizerSection(learning_rate=2e-6)
    assert group_options(section, "policy").learning_rate == 2e-6
    assert group_options(section, "critic").learning_rate == pytest.approx(1e-5)
    assert group_options(section, "reward").learning_rate == 2e-6
    own = OptimizerSection(learning_rate=2e-6, critic_learning_rate=3e-6)
    assert group_options(own, "critic").learning_rate == 3e-6


def test_every_option_reaches_the_optimizer() -> None:
    section = OptimizerSection(betas=(0.5, 0.6), eps=1e-3, weight_decay=0.25, max_grad_norm=2.0)
    options = group_options(section, "policy")
    assert (options.betas, options.eps, options.weight_decay, options.max_grad_norm) == ((0.5, 0.6), 1e-3, 0.25, 2.0)
    group = {"w": nn.Parameter(torch.ones(1, dtype=torch.float64))}
    optimizer = NamedAdamW(group, options)
    group["w"].grad = torch.ones(1, dtype=torch.float64)
    optimizer.step(1.0)
    # AdamW by hand: decay lr x wd, then lr x m / (sqrt v + eps) with m = v = 1 after bias correction
    lr = section.learning_rate
    assert group["w"].item() == pytest.approx(1 - lr * 0.25 - lr / (1 + 1e-3), abs=1e-12)


def test_clipping_keeps_the_direction_and_reports_the_norm_before() -> None:
    group = parameters("a", "b")
    group["a"].grad, group["b"].grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    optimizer = NamedAdamW(group, group_options(OptimizerSection(max_grad_norm=1.0), "policy"))
    assert optimizer.clip_gradients() == pytest.approx(5.0)
    assert group["a"].grad.tolist() == pytest.approx([0.6, 0.0], abs=1e-5)
    assert group["b"].grad.tolist() == pytest.approx([0.0, 0.8], abs=1e-5)
    assert optimizer.clip_gradients() == pytest.approx(1.0, abs=1e-5)


def test_small_gradients_are_left_alone_and_none_have_norm_zero() -> None:
    group = parameters("a", "b")
    group["a"].grad = torch.tensor([0.3, 0.4])
    optimizer = NamedAdamW(group, group_options(OptimizerSection(max_grad_norm=1.0), "policy"))
    assert optimizer.clip_gradients() == pytest.approx(0.5)
    assert group["a"].grad.tolist() == [pytest.approx(0.3), pytest.approx(0.4)]
    optimizer.clear_gradients()
    assert optimizer.clip_gradients() == 0.0


def test_gradients_that_are_not_finite_are_named_and_not_scaled() -> None:
    group = parameters("a", "b")
    group["a"].grad, group["b"].grad = torch.tensor([3.0, 4.0]), torch.tensor([math.nan, 0.0])
    optimizer = NamedAdamW(group, group_options(OptimizerSection(), "policy"))
    assert not math.isfinite(optimizer.clip_gradients())
    assert group["a"].grad.tolist() == [3.0, 4.0]
    assert optimizer.nonfinite_gradients() == ["b"]


def test_state_finds_its_parameter_by_name_in_any_order() -> None:
    group = parameters("a", "b")
    state = trained(group, {"a": 1.0, "b": -3.0}).state_dict()
    turned = {"b": nn.Parameter(group["b"].detach().clone()), "a": nn.Parameter(group["a"].detach().clone())}
    restored = NamedAdamW(turned, group_options(OptimizerSection(), "policy"))
    restored.load_state_dict(state)
    original = trained(parameters("a", "b"), {"a": 1.0, "b": -3.0})
    for optimizer in (original, restored):
        for parameter in optimizer.parameters.values():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step(1.0)
    for name in ("a", "b"):
        assert torch.equal(restored.parameters[name], original.parameters[name])


def test_loaded_state_is_a_copy() -> None:
    state = trained(parameters("a"), {"a": 1.0}).state_dict()
    before = state["a"]["exp_avg"].clone()
    other = parameters("a")
    restored = NamedAdamW(other, group_options(OptimizerSection(), "policy"))
    restored.load_state_dict(state)
    other["a"].grad = torch.ones(2)
    restored.step(1.0)
    assert torch.equal(state["a"]["exp_avg"], before)


def test_a_parameter_that_never_trained_has_no_state() -> None:
    assert set(trained(parameters("a", "b"), {"a": 1.0}).state_dict()) == {"a"}


def test_state_of_a_parameter_that_does_not_exist_is_refused() -> None:
    state = trained(parameters("a"), {"a": 1.0}).state_dict()
    with pytest.raises(ValueError, match="'a'"):
        NamedAdamW(parameters("z"), group_options(OptimizerSection(), "policy")).load_state_dict(state)


def test_weights_come_back_under_their_names() -> None:
    source, target = {"policy": parameters("a", "b")}, {"policy": parameters("b", "a")}
    NamedWeights(target).load_state_dict(NamedWeights(source).state_dict())
    for name in ("a", "b"):
        assert torch.equal(target["policy"][name], source["policy"][name])


@pytest.mark.parametrize(
    "state",
    [
        {"policy": {"a": torch.zeros(2)}},  # one missing
        {"policy": {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(2)}},  # one too many
        {"policy": {"a": torch.zeros(2), "b": torch.zeros(3)}},  # another shape
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_is_loaded(state) -> None:
    group = parameters("a", "b")
    with pytest.raises(ValueError, match="does not fit the policy"):
        NamedWeights({"policy": group}).load_state_dict(state)
    assert [group[name].tolist() for name in ("a", "b")] == [[0.0, 0.0], [1.0, 1.0]]


def test_a_group_this_run_does_not_have_is_refused() -> None:
    """A checkpoint with a critic is not silently read by a run without one, nor the other way round."""
    policy, critic = {"a": torch.zeros(2)}, {"h": torch.zeros(1)}
    with pytest.raises(ValueError, match="critic"):
        NamedWeights({"policy": parameters("a")}).load_state_dict({"policy": policy, "critic": critic})
    with pytest.raises(ValueError, match="critic"):
        NamedWeights({"policy": parameters("a"), "critic": parameters("h")}).load_state_dict({"policy": policy})
