"""AdamW over named parameters, one group a role: policy and critic have their own rate, norm and state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from tightrope.config.schema import OptimizerSection
from tightrope.protocols import State


@dataclass(frozen=True, slots=True)
class GroupOptions:
    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    max_grad_norm: float


def group_options(section: OptimizerSection, group: str) -> GroupOptions:
    """The critic's rate is 5 x the policy's unless it is given (a value function must lead its policy)."""
    rate = section.learning_rate
    if group == "critic":
        rate = 5.0 * rate if section.critic_learning_rate is None else section.critic_learning_rate
    return GroupOptions(rate, section.betas, section.eps, section.weight_decay, section.max_grad_norm)


class NamedAdamW:
    """torch's AdamW whose state is kept by parameter name, so that it survives any change of order."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], options: GroupOptions) -> None:
        self.parameters = dict(parameters)
        self.options = options
        self._optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=options.learning_rate,
            betas=options.betas,
            eps=options.eps,
            weight_decay=options.weight_decay,
            # One pass over memory instead of ten. Elsewhere torch's own choice, which keeps its step count on the CPU.
            fused=True if all(p.device.type == "cpu" for p in self.parameters.values()) else None,
        )

    def clip_gradients(self) -> float:
        """Scale gradients to the largest norm; returns the norm before, which may be non-finite (then unchanged)."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if float(norm) > self.options.max_grad_norm and torch.isfinite(norm):
            torch.nn.utils.clip_grads_with_norm_(self.parameters.values(), self.options.max_grad_norm, norm)
        return float(norm)

    def nonfinite_gradients(self) -> list[str]:
        return [
            name for name, p in self.parameters.items() if p.grad is not None and not bool(torch.isfinite(p.grad).all())
        ]

    def step(self, rate_factor: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self.options.learning_rate * rate_factor
        self._optimizer.step()

    def clear_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> State:
        return {name: dict(self._optimizer.state[p]) for name, p in self.parameters.items() if self._optimizer.state[p]}

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the state names a parameter that this run does not train."""
        unknown = sorted(set(state) - set(self.parameters))
        if unknown:
            raise ValueError(f"optimizer state of unknown parameters: {unknown[:3]}")
        self._optimizer.state.clear()
        for name, moments in state.items():
            self._optimizer.state[self.parameters[name]] = {key: value.clone() for key, value in moments.items()}


class NamedWeights:
    """The trained parameters of a run as state, from the explicit list of named groups."""

    def __init__(self, groups: Mapping[str, Mapping[str, nn.Parameter]]) -> None:
        self._groups = groups

    def state_dict(self) -> State:
        return {name: {key: p.detach() for key, p in group.items()} for name, group in self._groups.items()}

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when groups, names or shapes differ: nothing is loaded then."""
        if set(state) != set(self._groups):
            raise ValueError(f"checkpoint holds the weights of {sorted(state)}, the run trains {sorted(self._groups)}")
        for name, group in self._groups.items():
            missing = set(group) ^ set(state[name])
            wrong = [key for key, p in group.items() if key in state[name] and state[name][key].shape != p.shape]
            if missing or wrong:
                raise ValueError(f"checkpoint does not fit the {name}: {sorted(missing | set(wrong))[:3]}")
        for name, group in self._groups.items():
            for key, parameter in group.items():
                parameter.copy_(state[name][key])
