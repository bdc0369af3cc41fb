"""What of a config decides how much memory its run takes, and has the machine that much? Answered before weights load,
from the config and the lengths of its data."""

from __future__ import annotations

import math

import psutil
import torch

from tightrope.algorithms.options import DPOConfig, RewardModelConfig, SFTConfig
from tightrope.assemble.inputs import Inputs
from tightrope.assemble.offline import OfflineConfig, options_of
from tightrope.assemble.online import critic_of, needs_reference, update_options
from tightrope.config.errors import TightropeError
from tightrope.config.schema import OnlineConfig, RunConfig
from tightrope.models.load import device_of
from tightrope.models.memory import MemoryEstimate, Work, estimate, reward_weights
from tightrope.rollout.local_engine import budgeted

GIB = 2**30
LESS = "set model.lora or model.gradient_checkpointing, or lower training.token_budget (docs/memory.md)"
CERTAIN = 1.15
"""How far an estimate may be off."""


def require_room(config: RunConfig, inputs: Inputs) -> MemoryEstimate:
    """Raises TightropeError for a run that the whole machine, with nothing else on it, could not hold."""
    needed, whole = estimate(inputs.folder, config.model, work_of(config, inputs)), whole_bytes(config)
    if needed.exact and needed.total > CERTAIN * whole:
        raise TightropeError(
            f"about {needed.total / GIB:.1f} GiB of memory are needed and the machine has {whole / GIB:.1f} GiB",
            where=str(config.model.name),
            fix=LESS,
        )
    return needed


def whole_bytes(config: RunConfig) -> int:
    """Of the device's memory; a CPU's with its swap."""
    if device_of(config.model).type == "cuda":
        return torch.cuda.mem_get_info()[1]
    return psutil.virtual_memory().total + psutil.swap_memory().total


def work_of(config: RunConfig, inputs: Inputs) -> Work:
    """At its worst: every sequence as long as the longest."""
    return online_work(config, inputs) if isinstance(config, OnlineConfig) else offline_work(config, inputs)


def online_work(config: OnlineConfig, inputs: Inputs) -> Work:
    budget, sequences, new = config.training.token_budget, config.rollout.sequences, config.rollout.max_new_tokens
    prompt = inputs.data.report.longest
    room = prompt + new
    has_own_reference = needs_reference(config) and config.model.lora is None  # an adapter spares it
    apart = read = 0
    if inputs.reward_folder is not None:
        apart, read = reward_weights(inputs.reward_folder, inputs.folder, config.model)
    # Responses are drawn for the probe and for the spread of rewards as well.
    most = max(sequences, config.evaluation.prompts, config.reward.normalise_samples)
    minibatch = -(-sequences // update_options(config).minibatches)
    tokens, row, gradient_copy = fitting(minibatch, room, budget) * room, room, False
    if config.ptx is not None:
        length, mixed = config.ptx.sequence_length, math.ceil(config.ptx.ratio * minibatch * new)
        tokens = max(tokens, fitting(-(-mixed // (length - 1)), length, budget) * length)
        row, gradient_copy = max(row, length), config.ptx.measure_every > 0 and config.model.lora is None
    return Work(
        tokens=tokens,
        row=row,
        copies=int(has_own_reference) + int(gradient_copy),
        apart=apart,
        read=read,
        critic=critic_of(config),
        responses=fitting(most, budgeted(prompt, new), budget),
        prompt=prompt,
        new=new,
        scored=fitting(most, room, budget) * room,
    )


def offline_work(config: RunConfig, inputs: Inputs) -> Work:
    assert isinstance(config, OfflineConfig)
    longest, budget = inputs.data.report.longest, config.training.token_budget
    rows = 1 if isinstance(config, SFTConfig) else 2  # a pair goes through together
    return Work(
        tokens=fitting(options_of(config).batch_size, rows * longest, budget) * rows * longest,
        row=longest,
        copies=int(isinstance(config, DPOConfig) and config.model.lora is None),
        logits=not isinstance(config, RewardModelConfig),
    )


def fitting(sequences: int, length: int, budget: int | None) -> int:
    """How many go through together, at least one.

    >>> fitting(64, 100, 1024), fitting(4, 100, 1024), fitting(64, 100, None), fitting(64, 2000, 1024)
    (10, 4, 64, 1)
    """
    return sequences if budget is None else max(1, min(sequences, budget // length))
