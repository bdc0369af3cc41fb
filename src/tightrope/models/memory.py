"""Will it fit? Bytes of a run from config.json alone, before any weight is read.

    total = weights + the largest of    loading       the file of the last network while it is read
                                        rollout       optimizer + keys, values and logits of the running responses
                                        scoring       optimizer + a pass that nothing is learned from
                                        update        optimizer + gradients + activations of one micro-batch
                                        step          optimizer + gradients + what Adam computes with
                                        export        optimizer + the merged matrices

Parameters, gradients and Adam's two moments are counted, on torch's meta device; activations are counted there too, by
running one forward and backward pass of the very architecture (models/live_bytes.py). What Python and torch take by
themselves is not in it. docs/memory.md compares with what runs then used.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from tightrope.config.errors import TightropeError
from tightrope.config.schema import ModelSection
from tightrope.models.attention import ATTENTION, register
from tightrope.models.backbone import Network
from tightrope.models.families import family_of
from tightrope.models.live_bytes import Pass, scoring_bytes, update_bytes
from tightrope.models.load import device_of, dtype_of, for_training, read_json
from tightrope.models.lora import adapter_layers, adapter_parameters, add_adapter
from tightrope.models.manifest import ADAPTER_FOLDER, file_set_hash, read_manifest, tensor_shapes
from tightrope.models.roles import same_base

ADAM_MOMENTS = 2
DEPTHS = (2, 4)
"""Layers of the networks whose activations are counted."""
FLOAT32_BYTES = 4
SAMPLING_COPIES = 4
"""Logits of one new token a response, their softmax, its running sum and one temporary."""
ACTIVATIONS = 34
"""Numbers a token, layer and hidden unit (Korthikanti et al. 2022), for an architecture that the meta device cannot
run."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a run does with its model. ``tokens`` of one micro-batch, in rows of ``row``. ``copies``: frozen networks
    of the same size beside the policy (the reference). ``apart``: bytes of other frozen weights (a reward model), of
    which ``read`` are read from a file of their own. ``responses`` are written together, each ``prompt`` tokens and
    ``new`` ones, and ``scored`` tokens go through a pass that nothing is learned from; 0 without rollouts.
    ``logits``: False for a reward model.
    """

    tokens: int
    row: int = 2
    copies: int = 0
    apart: int = 0
    read: int = 0
    critic: Literal["shared", "separate"] | None = None
    responses: int = 0
    prompt: int = 0
    new: int = 0
    scored: int = 0
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
    scoring: int
    loading: int
    adam: int
    export: int
    exact: bool

    @property
    def total(self) -> int:
        training = self.gradients + max(self.activations, self.adam)
        return self.weights + max(self.loading, self.optimizer + max(self.rollout, self.scoring, training, self.export))


def estimate(folder: Path, model: ModelSection, work: Work) -> MemoryEstimate:
    family_of(read_json(folder / "config.json"), str(folder))
    section = for_training(model)
    device = device_of(section)
    return estimate_of(_config(folder), section, dtype_of(section, device), device.type, work)


def estimate_of(
    config: PretrainedConfig, model: ModelSection, dtype: torch.dtype, device: str, work: Work
) -> MemoryEstimate:
    """From a config, as if on ``device``: shapes need no folder."""
    if model.lora is not None:  # counted as if every layer had adapters: never too little
        model = model.model_copy(update={"lora": model.lora.model_copy(update={"from_layer": 0})})
    plan = _plan(config, dtype, model, work)
    parameters, groups = plan.parameters, [sum(p.numel() for p in group) for group in plan.groups]
    one, trained = parameters * dtype.itemsize, sum(groups)
    width = dtype.itemsize if model.lora is None else FLOAT32_BYTES
    frozen = (work.copies + int(model.lora is not None)) * one + work.apart
    weights = frozen + trained * width
    update, scoring, exact = _activations(config, dtype, model, work)
    largest = max(p.numel() for group in plan.groups for p in group)
    return MemoryEstimate(
        parameters=parameters,
        trained=trained,
        weights=weights,
        gradients=trained * width,
        optimizer=ADAM_MOMENTS * trained * width,
        activations=update,
        rollout=_rollout(plan.network, work),
        scoring=scoring,
        # On a GPU the file is read in the host's memory. The first network is read before there are others.
        loading=max(work.read, 2 * one - weights) if device == "cpu" else 0,
        adam=2 * largest * width if device == "cpu" else trained * width,  # on a GPU all parameters step at once
        export=_merged(plan) if device == "cpu" else 0,
        exact=exact,
    )


def reward_weights(folder: Path, policy_folder: Path, model: ModelSection) -> tuple[int, int]:
    """Bytes of a reward model in memory, and of its file: an adapter where it was trained on the policy's weights."""
    section = for_training(model)
    if model.lora is not None and _was_trained_on(folder, policy_folder):
        adapter = FLOAT32_BYTES * _stored(folder / ADAPTER_FOLDER)
        return adapter, adapter
    own = _stored(folder) * dtype_of(section, device_of(section)).itemsize
    return own, own


def _stored(folder: Path) -> int:
    return sum(prod(shape) for shape in tensor_shapes(folder).values())


def _was_trained_on(folder: Path, policy_folder: Path) -> bool:
    """Without reading the weights: where no manifest lists their hashes, the same shapes and tokenizer will do."""
    manifest, policy = read_manifest(folder), read_manifest(policy_folder)
    if manifest is None or not manifest.adapter:
        return False
    return same_base(folder, policy_folder) if policy is None else manifest.base == file_set_hash(policy.files)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The networks of a run on the meta device: the passes of an update and what they train."""

    network: Network
    parameters: int
    passes: list[Pass]
    groups: list[list[nn.Parameter]]


def _plan(config: PretrainedConfig, dtype: torch.dtype, model: ModelSection, work: Work) -> _Plan:
    causal = _on_meta(config, dtype, model.gradient_checkpointing)
    network = causal if work.logits else causal.trunk_copy()
    parameters = sum(p.numel() for p in network.model.parameters())
    names = ["policy", "critic"] if work.critic == "separate" else ["policy"]
    passes: list[Pass] = []
    groups: list[list[nn.Parameter]] = []
    for name in names:
        logits = work.logits and name == "policy"
        if model.lora is None:
            own = network if name == "policy" else network.trunk_copy()
            passes.append(Pass(own, None, logits))
            groups.append(list(own.model.parameters()))
        else:
            add_adapter(network, name, model.lora, seed=0)
            passes.append(Pass(network, name, logits))
            groups.append(list(adapter_parameters(network, name).values()))
    if model.lora is not None:
        network.model.requires_grad_(False)
        for parameter in (p for group in groups for p in group):
            parameter.requires_grad_(True)
    return _Plan(network, parameters, passes, groups)


def _activations(
    config: PretrainedConfig, dtype: torch.dtype, model: ModelSection, work: Work
) -> tuple[int, int, bool]:
    """Bytes of an update and of a pass without one, and whether they were counted. The layers are alike, so two short
    networks tell of a deep one."""
    layers = int(config.num_hidden_layers)
    depths = (layers,) if layers <= DEPTHS[1] else DEPTHS
    update, scoring = list[int](), list[int]()
    try:
        for depth in depths:
            plan = _plan(_shortened(config, depth), dtype, model, work)
            trained = [p for group in plan.groups for p in group]
            update.append(update_bytes(plan.passes, trained, work.tokens, work.row))
            scoring.append(scoring_bytes(plan.passes[0], max(work.scored, 1), work.row))
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError):
        kept = 1 if model.gradient_checkpointing else layers
        return ACTIVATIONS * work.tokens * kept * int(config.hidden_size) * dtype.itemsize, 0, False
    return _deep(layers, update), _deep(layers, scoring), True


def _deep(layers: int, counted: list[int]) -> int:
    if len(counted) == 1:
        return counted[0]
    return counted[1] + (layers - DEPTHS[1]) * (counted[1] - counted[0]) // (DEPTHS[1] - DEPTHS[0])


def _shortened(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    short = copy.deepcopy(config)
    kinds = config.to_dict().get("layer_types")
    short.num_hidden_layers = layers
    if kinds is not None:
        short.layer_types = kinds[:layers]
    return short


def _rollout(network: Network, work: Work) -> int:
    """Keys and values of every layer for all running responses, those of the prompts twice while they are laid out, and
    the logits of their next tokens."""
    fields = network.config.to_dict()
    heads = int(fields.get("num_attention_heads") or fields["n_head"])
    kv_heads = int(fields.get("num_key_value_heads") or heads)
    dim = int(fields.get("head_dim") or network.hidden_size // heads)
    layers = int(network.config.num_hidden_layers)
    cache = 2 * layers * kv_heads * dim * (2 * work.prompt + work.new) * network.dtype.itemsize
    return work.responses * (cache + SAMPLING_COPIES * FLOAT32_BYTES * network.vocabulary)


def _merged(plan: _Plan) -> int:
    """The matrices that an adapter is added into, in memory of their own until the export is written."""
    network, adapter = plan.network, plan.passes[0].adapter
    if adapter is None:
        return 0
    layers = adapter_layers(network, adapter).values()
    return sum(layer.get_base_layer().get_parameter("weight").numel() for layer in layers) * network.dtype.itemsize


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
