"""What is a run? A named setting: what it changes of one base recipe, who gives the rewards, and the hash of it all.

The base is the product's defaults with only what the small model of the demo needs said: how fast it learns (full
fine-tuning of 0.7 million weights from scratch), 60 steps of 64 prompts, responses of up to 20 tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tightrope.algorithms.options import CONFIGS
from tightrope.config.schema import RunConfig
from tightrope.demo.small import SMALL

STEPS, PROMPTS, HELD_OUT = 60, 64, 256
LEARNING_RATE = 2e-4
SEEDS = (0, 1, 2)
TRUE_REWARD = "benchmarks.learning.rewards:gold_probability"
TRUE = "true"
DEMO_MODEL = "demo"
BASE: dict[str, Any] = {
    "optimizer": {"learning_rate": LEARNING_RATE},
    "training": {"steps": STEPS, "token_budget": 16_384},
    "rollout": {"prompts_per_step": PROMPTS, "max_new_tokens": SMALL.limits.max_new_tokens},
    "kl": {"target": 4.0},
    "evaluation": {"prompts": HELD_OUT},
    "samples": {"count": HELD_OUT},
}
NOT_HASHED = ("output", "model.name", "data", "reward.model", "checkpoint", "samples", "trackers", "tracker_options")
"""Where things lie, and what is kept of them, changes no figure."""
MATERIAL_VERSION = 1
"""Raised when the way the materials are made changes beside the recipe."""
PROXY_PAIRS = (100, 1000, 10_000)
PROXY_SAMPLES = 6
PROXY_BATCH, LEAST_STEPS = 16, 60
"""Reward models of the over-optimisation experiment: one epoch, but never fewer steps, so that 100 pairs are seen about
ten times."""


@dataclass(frozen=True, slots=True)
class Setting:
    """``overrides``: dotted keys over the base. ``reward``: ``true`` (the gold judge's probability) or the name of a
    reward model, ``demo`` or the number of pairs it saw. ``kind``: a PPO run, or best of n from the SFT model."""

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reward: str = DEMO_MODEL
    kind: Literal["ppo", "best_of_n"] = "ppo"

    @property
    def told(self) -> dict[str, Any]:
        """What stands in the ledger as overrides."""
        return {**({} if self.kind == "ppo" else {"kind": self.kind}), "reward": self.reward, **self.overrides}


@dataclass(frozen=True, slots=True)
class Experiment:
    name: str
    question: str
    settings: Sequence[Setting]
    seeds: Sequence[int] = SEEDS

    def setting(self, name: str) -> Setting:
        return next(setting for setting in self.settings if setting.name == name)


@dataclass(frozen=True, slots=True)
class Places:
    """What a run reads and where it writes."""

    output: Path
    model: Path
    prompts: Path
    held_out: Path
    reward_model: Path | None


NOWHERE = Places(Path("."), Path("."), Path("."), Path("."), Path("."))


def config_of(setting: Setting, seed: int, places: Places = NOWHERE) -> RunConfig:
    """The product's own, validated configuration of a PPO run."""
    content = merged(BASE, nested(setting.overrides))
    steps = content["training"]["steps"]
    reward = {"function": TRUE_REWARD} if setting.reward == TRUE else {"model": places.reward_model}
    fixed = {
        "output": places.output,
        "seed": seed,
        "model": {"name": places.model},
        "data": {"train": places.prompts, "evaluation": places.held_out},
        "checkpoint": {"every": steps, "keep": 1},
        "evaluation": {"every": steps},
        "reward": reward,
    }
    return CONFIGS["ppo"].model_validate(merged(content, fixed))


def config_hash(setting: Setting, seed: int) -> str:
    """Of every value that holds in the run, defaults too: a changed default is another run. Absent options are left
    out, so that a new one that is off changes nothing."""
    said: dict[str, Any] = {"kind": setting.kind, "reward": setting.reward, "seed": seed}
    said["material"] = material_recipe()
    if setting.reward not in (TRUE, DEMO_MODEL):
        said["proxy"] = [PROXY_PAIRS, PROXY_SAMPLES, PROXY_BATCH, LEAST_STEPS]
    if setting.kind == "ppo":
        said["config"] = without(config_of(setting, seed).model_dump(mode="json", exclude_none=True), NOT_HASHED)
    else:
        said["prompts"] = HELD_OUT
    return digest(said)


def material_recipe() -> dict[str, Any]:
    """What decides the SFT model, the judges, the prompts and the reward models of a seed."""
    stages = {name: dict(SMALL.stages[name]) for name in ("sft", "rm")}
    counts = [SMALL.pairs, SMALL.samples_per_pair, SMALL.held_out_pairs, SMALL.held_out]
    return {"stages": stages, "counts": counts, "version": MATERIAL_VERSION}


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """
    >>> nested({"kl.beta": 0.1, "kl.mode": "fixed"})
    {'kl': {'beta': 0.1, 'mode': 'fixed'}}
    """
    tree: dict[str, Any] = {}
    for key, value in dotted.items():
        *sections, last = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[last] = value
    return tree


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` wins, section by section."""
    result = dict(below)
    for key, value in above.items():
        under: Any = result.get(key)
        result[key] = merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return result


def without(tree: Mapping[str, Any], dotted: Sequence[str]) -> dict[str, Any]:
    """
    >>> without({"a": {"b": 1, "c": 2}, "d": 3}, ["a.b", "d"])
    {'a': {'c': 2}}
    """
    here = {key for key in dotted if "." not in key}
    below = [key.partition(".") for key in dotted if "." in key]
    result: dict[str, Any] = {}
    for key, value in tree.items():
        inner = [rest for head, _, rest in below if head == key]
        if key not in here:
            result[key] = without(value, inner) if inner and isinstance(value, Mapping) else value
    return result
