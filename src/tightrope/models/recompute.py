"""Gradient checkpointing: a layer keeps only its input, and is computed again when the backward pass reaches it.

Two things have to be as they were the first time. Dropout must stay off, but transformers' layers only checkpoint in
training mode: the flag is set on the layer modules alone, and their parts, where the dropout is, stay in eval mode.
And the adapter must be the one of the forward pass, although the backward pass runs long after ``Network.using`` ended.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from tightrope.config.errors import TightropeError

if TYPE_CHECKING:
    from tightrope.models.backbone import Network


def recompute_layers(network: Network) -> None:
    """Raises TightropeError for an architecture whose layers cannot be computed again."""
    layers = [module for module in network.trunk.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise TightropeError(
            "this architecture has no layers that can be computed again",
            where=str(network.config.name_or_path),
            fix="set model.gradient_checkpointing: false",
        )
    for layer in layers:
        layer.gradient_checkpointing = True
        layer.training = True  # this module alone: train() would turn on the dropout inside
        layer._gradient_checkpointing_func = partial(checkpointed, network)  # pyright: ignore[reportArgumentType]


def checkpointed(network: Network, layer: Callable[..., Any], *inputs: Tensor) -> Any:
    adapter = network.adapter

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), network.using(adapter)

    # Nothing random happens in a layer, so the random state is not kept.
    return checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
