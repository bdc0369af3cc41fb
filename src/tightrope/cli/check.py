"""``tightrope check STAGE CONFIG``: is this run going to work? Config, model folders, every row of data, memory.

The config is proven before torch is imported; no weight is ever read.
"""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tightrope.algorithms.options import warnings_of
from tightrope.algorithms.plugins import config_class_of
from tightrope.cli.arguments import Overrides
from tightrope.config.load import load_config
from tightrope.config.schema import OnlineConfig, RunConfig

if TYPE_CHECKING:
    from tightrope.assemble.inputs import Inputs
    from tightrope.models.memory import MemoryEstimate

GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """What is told about a run that could start."""

    stage: str
    facts: list[str]
    warnings: list[str]
    numbers: dict[str, Any]


def check(
    stage: Annotated[str, Parameter(help="The command the config is for: sft, rm, dpo, ppo, rloo or a plugin's.")],
    config: Path,
    /,
    *overrides: Overrides,
    schema_only: Annotated[
        bool, Parameter(negative=(), help="Look at the config alone, without model and data.")
    ] = False,
    json: Annotated[bool, Parameter(negative=(), help="Print one JSON object.")] = False,
) -> None:
    """Prove a config and its data before anything is trained.

    Parameters
    ----------
    config
        YAML file.
    """
    settings = load_config(config, overrides, config_class_of(stage, "check"))
    found = Finding(stage, [f"{config}: the config is valid for `{stage}`"], warnings_of(settings), {})
    if not schema_only:
        examine(settings, found)
    if json:
        print(json_format.dumps({"stage": stage, "warnings": found.warnings, **found.numbers}))
        return
    for line in found.facts:
        print(line)
    for warning in found.warnings:
        print(f"warning: {warning}")
    print("ready" if not found.warnings else f"ready, with {count(found.warnings, 'warning')}")


def examine(config: RunConfig, found: Finding) -> None:
    """The part that needs the tokenizer. Raises TightropeError for what would stop the run."""
    from tightrope.assemble.inputs import read_inputs

    inputs = read_inputs(config)
    report = inputs.data.report
    found.facts.append(f"model: {inputs.folder}")
    if inputs.reward_folder is not None:
        found.facts.append(f"reward model: {inputs.reward_folder}")
    found.facts.extend(line for line in report.lines() if not line.startswith("warning: "))
    found.warnings.extend([*report.warnings, *size_warnings(config, report.train, report.held_out)])
    found.numbers.update(
        read=report.read,
        train=report.train,
        held_out=report.held_out,
        dropped=len(report.dropped),
        trimmed=len(report.trimmed),
        longest=report.longest,
    )
    memory(config, inputs, found)


def size_warnings(config: RunConfig, train: int, held_out: int) -> list[str]:
    """Where the number of rows and the config do not go together well."""
    if not isinstance(config, OnlineConfig):
        return [] if held_out else ["no row is held out: nothing is measured on unseen data"]
    found = list[str]()
    if train < config.rollout.prompts_per_step:
        found.append(
            f"a step takes {config.rollout.prompts_per_step} prompts and there are {train}: each comes repeatedly"
        )
    if held_out < config.evaluation.prompts:
        found.append(f"a probe of {config.evaluation.prompts} prompts is asked for, {held_out} are held out")
    return found


def memory(config: RunConfig, inputs: Inputs, found: Finding) -> None:
    from tightrope.assemble.memory import LESS, require_room
    from tightrope.models.load import device_of

    needed = require_room(config, inputs)
    free = free_bytes(device_of(config.model).type)
    found.facts.append(memory_line(needed, free))
    found.numbers.update(
        memory_bytes=needed.total,
        memory_parts=asdict(needed),
        free_bytes=free,
        parameters=needed.parameters,
        trained=needed.trained,
    )
    if needed.total > free:
        found.warnings.append(
            f"about {needed.total / GIB:.1f} GiB are needed and {free / GIB:.1f} GiB are free: {LESS}"
        )


def free_bytes(device: str) -> int:
    if device == "cuda":
        import torch

        return torch.cuda.mem_get_info()[0]
    import psutil

    return psutil.virtual_memory().available


def memory_line(needed: MemoryEstimate, free: int) -> str:
    parts = f"weights {needed.weights / GIB:.2f}, gradients {needed.gradients / GIB:.2f}, "
    parts += f"optimizer {needed.optimizer / GIB:.2f}, activations {needed.activations / GIB:.2f}, "
    parts += f"rollout {needed.rollout / GIB:.2f}; not all at one time" + ("" if needed.exact else "; a rough guess")
    return f"memory: about {needed.total / GIB:.2f} GiB of {free / GIB:.1f} free ({parts})"


def count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
