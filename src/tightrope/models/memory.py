"""Will it fit? Bytes of a run from config.json alone, before any weight is read.

Counted exactly: parameters (from the architecture on torch's meta device), gradients, Adam's two moments, copies for
reference, critic and reward model. Estimated: activations of one micro-batch, ``ACTIVATIONS`` numbers a token, layer
and hidden unit, and its chunk of logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tightrope.config.errors import TightropeError
from tightrope.config.schema import ModelSection
from tightrope.maths.logprobs import KEEP_BYTES
from tightrope.models.backbone import linear_layers
from tightrope.models.families import family_of
from tightrope.models.load import device_of, dtype_of, for_training, read_json

ACTIVATIONS = 34
"""Numbers kept for the backward pass per token, layer and hidden unit (Korthikanti et al. 2022)."""
ADAM_MOMENTS = 2
FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes. ``trained`` and ``parameters`` count numbers: of all trained groups, and of one network."""

    parameters: int
    trained: int
    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations


def estimate(
    folder: Path,
    model: ModelSection,
    *,
    copies: int,
    critic: Literal["shared", "separate"] | None,
    token_budget: int,
) -> MemoryEstimate:
    """``copies``: frozen networks beside the policy (reference, reward model). Under LoRA the reference is no copy."""
    config = read_json(folder / "config.json")
    family_of(config, str(folder))
    network = _on_meta(folder)
    parameters = sum(p.numel() for p in network.parameters())
    dtype = dtype_of(for_training(model), device_of(model))
    width = torch.finfo(dtype).bits // 8
    own_critic = critic == "separate"
    if model.lora is None:
        trained, networks, trained_width = parameters * (2 if own_critic else 1), 1 + copies + own_critic, width
        adapters = 0
    else:
        adapters = _adapter_parameters(network, model.lora.rank)
        trained, networks, trained_width = adapters * (2 if own_critic else 1), 1 + copies, FLOAT32_BYTES
    layers, hidden = int(network.config.num_hidden_layers), int(network.config.hidden_size)
    return MemoryEstimate(
        parameters=parameters,
        trained=trained,
        weights=networks * parameters * width + (trained * FLOAT32_BYTES if adapters else 0),
        gradients=trained * trained_width,
        optimizer=ADAM_MOMENTS * trained * trained_width,
        activations=ACTIVATIONS * token_budget * layers * hidden * width + 2 * KEEP_BYTES,
    )


def _on_meta(folder: Path) -> Any:
    """The architecture without storage."""
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TightropeError(f"config.json does not describe a model: {error}", where=str(folder)) from error


def _adapter_parameters(network: Any, rank: int) -> int:
    """rank x (inputs + outputs) for each matrix of the trunk."""
    adapted = linear_layers(network.base_model)
    return sum(
        rank * sum(module.weight.shape)
        for name, module in network.base_model.named_modules()
        if name.rsplit(".", 1)[-1] in adapted
    )
