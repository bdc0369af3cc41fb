"""Will it fit? Bytes of a run from config.json alone, before any weight is read.

    total = weights + the largest of    loading       the file of the last network while it is read
                                        rollout       optimizer + keys, values and logits of the running responses
                                        update        optimizer + gradients + activations of one micro-batch
                                        step          optimizer + gradients + what Adam computes with

Parameters, gradients and Adam's two moments are counted, on torch's meta device; activations are counted there too, by
running one forward and backward pass of the very architecture (models/live_bytes.py). What Python and torch take by
themselves is not in it. docs/memory.md compares with what runs then used.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from tightrope.config.errors import TightropeError
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.models.attention import ATTENTION, register
from tightrope.models.backbone import Network
from tightrope.models.families import family_of
from tightrope.models.load import device_of, dtype_of, for_training, read_json
from tightrope.models.lora import adapter_parameters, add_adapter

ADAM_MOMENTS = 2
DEPTHS = (2, 4)
"""Layers of the networks whose activations are counted."""
ADAPTER = "policy"
FLOAT32_BYTES = 4
SAMPLING_COPIES = 4
"""Logits of one new token a response, their softmax, its running sum and one temporary."""
ACTIVATIONS = 34
"""Numbers a token, layer and hidden unit (Korthikanti et al. 2022), for an architecture that the meta device cannot
run."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a run does with its model. ``copies``: frozen networks of the same size beside the policy (reference, reward
    model). ``tokens`` of one micro-batch. ``responses`` are written together, each ``room`` tokens with its prompt;
    0 without rollouts. ``logits``: False for a reward model.
    """

    tokens: int
    copies: int = 0
    critic: Literal["shared", "separate"] | None = None
    responses: int = 0
    room: int = 0
    logits: bool = True


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes. ``trained`` and ``parameters`` count numbers: of all trained groups, and of one network. ``exact``: False
    where activations come from a rule of thumb."""

    parameters: int
    trained: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    rollout: int
    loading: int
    adam: int
    exact: bool

    @property
    def total(self) -> int:
        training = self.optimizer + self.gradients + max(self.activations, self.adam)
        return self.weights + max(self.loading, self.optimizer + self.rollout, training)


def estimate(folder: Path, model: ModelSection, work: Work) -> MemoryEstimate:
    family_of(read_json(folder / "config.json"), str(folder))
    section = for_training(model)
    device = device_of(section)
    return estimate_of(_config(folder), section, dtype_of(section, device), device.type, work)


def estimate_of(
    config: PretrainedConfig, model: ModelSection, dtype: torch.dtype, device: str, work: Work
) -> MemoryEstimate:
    """From a config, as if on ``device``: shapes need no folder."""
    network = _on_meta(config, dtype, False)
    parameters = sum(p.numel() for p in network.model.parameters())
    one = parameters * dtype.itemsize
    groups = 2 if work.critic == "separate" else 1
    group = _trained(network, model.lora)
    networks, width = (groups, dtype.itemsize) if model.lora is None else (1, FLOAT32_BYTES)
    trained = groups * sum(p.numel() for p in group)
    activations, exact = _activations(config, dtype, model, work)
    largest = max(p.numel() for p in group)
    return MemoryEstimate(
        parameters=parameters,
        trained=trained,
        weights=(networks + work.copies) * one + (0 if model.lora is None else trained * width),
        gradients=trained * width,
        optimizer=ADAM_MOMENTS * trained * width,
        activations=groups * activations,
        rollout=_rollout(network, work),
        loading=one if device == "cpu" else 0,  # elsewhere it is read in the host's memory
        adam=2 * largest * width if device == "cpu" else trained * width,  # on a GPU all parameters step at once
        exact=exact,
    )


def _trained(network: Network, lora: LoraSection | None) -> list[nn.Parameter]:
    """All of it, or the adapter that is put in."""
    if lora is None:
        return list(network.model.parameters())
    add_adapter(network, ADAPTER, lora, seed=0)
    network.model.requires_grad_(False)
    group = list(adapter_parameters(network, ADAPTER).values())
    for parameter in group:
        parameter.requires_grad_(True)
    return group


def _activations(config: PretrainedConfig, dtype: torch.dtype, model: ModelSection, work: Work) -> tuple[int, bool]:
    """Bytes, and whether they were counted. The layers are alike, so two short networks tell of a deep one."""
    from tightrope.models.live_bytes import pass_bytes

    layers = int(config.num_hidden_layers)
    counted: list[int] = []
    try:
        for depth in (layers,) if layers <= DEPTHS[1] else DEPTHS:
            network = _on_meta(_shortened(config, depth), dtype, model.gradient_checkpointing)
            trained = _trained(network, model.lora)
            adapter = None if model.lora is None else ADAPTER
            counted.append(pass_bytes(network, adapter, trained, work.tokens, work.logits))
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        kept = 1 if model.gradient_checkpointing else layers
        return ACTIVATIONS * work.tokens * kept * int(config.hidden_size) * dtype.itemsize, False
    if len(counted) == 1:
        return counted[0], True
    return counted[1] + (layers - DEPTHS[1]) * (counted[1] - counted[0]) // (DEPTHS[1] - DEPTHS[0]), True


def _shortened(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    short = copy.deepcopy(config)
    kinds = config.to_dict().get("layer_types")
    short.num_hidden_layers = layers
    if kinds is not None:
        short.layer_types = kinds[:layers]
    return short


def _rollout(network: Network, work: Work) -> int:
    """Keys and values of every layer for all running responses, and the logits of their next tokens."""
    fields = network.config.to_dict()
    heads = int(fields.get("num_attention_heads") or fields["n_head"])
    kv_heads = int(fields.get("num_key_value_heads") or heads)
    dim = int(fields.get("head_dim") or network.hidden_size // heads)
    layers = int(network.config.num_hidden_layers)
    cache = 2 * layers * kv_heads * dim * work.room * network.dtype.itemsize
    return work.responses * (cache + SAMPLING_COPIES * FLOAT32_BYTES * network.vocabulary)


def _config(folder: Path) -> PretrainedConfig:
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TightropeError(f"config.json does not describe a model: {error}", where=str(folder)) from error


def _on_meta(config: PretrainedConfig, dtype: torch.dtype, recompute: bool) -> Network:
    """The architecture without storage."""
    where = str(config.name_or_path)
    register()
    packed = family_of(config.to_dict(), where).packed
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=ATTENTION if packed else None
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TightropeError(f"config.json does not describe a model: {error}", where=where) from error
    return Network(model, recompute=recompute)
