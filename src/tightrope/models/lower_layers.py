"""Layers that no adapter reaches: computed once, and not again by the roles and epochs that start above them.

No architecture is known by name: a layer is replaced for the length of a pass. Below the first computed one stand
modules that hand on what they are given, and above the last one too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from tightrope.config.errors import TightropeError
from tightrope.models.backbone import Network


class Given(nn.Module):
    """Answers with ``states`` whatever comes in, or with what comes in and keeps it."""

    def __init__(self, states: Tensor | None = None) -> None:
        super().__init__()
        self.states = states

    def forward(self, hidden_states: Tensor, *others: Any, **named: Any) -> Tensor:
        if self.states is None:
            self.states = hidden_states
        return self.states


@contextmanager
def starting_at(network: Network, layer: int, states: Tensor) -> Iterator[None]:
    """Within, a pass starts at this layer with ``states``, [1, tokens, hidden]."""
    with _exchanged(network, {index: Given(states) for index in range(layer)}):
        yield


@contextmanager
def ending_before(network: Network, layer: int) -> Iterator[Given]:
    """Within, a pass stops before this layer; its ``states`` are in what is given."""
    kept = Given()
    with _exchanged(network, dict.fromkeys(range(layer, network.n_layers), kept)):
        yield kept


def require_layers(network: Network) -> None:
    """Raises TightropeError for an architecture whose layers cannot be passed over."""
    if not network.family.packed or len(network.layers) != network.n_layers:
        raise TightropeError(
            "the lower layers of this architecture cannot be computed apart",
            where="model.lora.from_layer",
            found=network.family.name,
            fix="remove model.lora.from_layer",
        )


@contextmanager
def _exchanged(network: Network, others: Mapping[int, nn.Module]) -> Iterator[None]:
    (layers,) = (module for module in network.trunk.children() if isinstance(module, nn.ModuleList))
    try:
        for index, other in others.items():
            layers[index] = other
        yield
    finally:
        for index in others:
            layers[index] = network.layers[index]
