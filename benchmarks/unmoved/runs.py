"""One PPO run as the product does it, and what is kept of it to compare it with another of the same seed.

The recipe is the demo's small one, shortened: the same SFT model and reward model in every run, and a seed that decides
which prompts come when and which tokens are drawn. ``build_online`` gives the parts and ``train_step`` walks.

    weights   a hash of all trained weights after each step: equal hashes are equal bits
    drawn     a hash of the tokens of each step's rollout
    moved     how far the policy's weights went since the start, as ``DIRECTIONS`` random projections, after its first
              own step and after the last: the length of a difference is read from them to about an eighth
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.learning.settings import digest, merged
from benchmarks.proof.faults import Fault, broken
from benchmarks.proof.runs import Variant
from benchmarks.unmoved.switches import Switch
from tightrope.algorithms.options import CONFIGS, PPOConfig
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.inputs import read_inputs
from tightrope.assemble.online import build_online
from tightrope.assemble.own_loop import NoJournal, NoStore
from tightrope.assemble.parts import Outputs
from tightrope.demo.model import LAYERS
from tightrope.demo.small import SMALL
from tightrope.training.run import OnlineRun
from tightrope.training.step import train_step
from tightrope.types import Rollout, Scores

STEPS, WARMUP, HELD_OUT = 15, 2, 256
SEEDS = (0, 1, 2, 3, 4)
MATERIAL_SEED = 0
"""Of the SFT model, the reward model and the texts that all runs start from."""
DIRECTIONS = 32
LORA = {"rank": 16, "alpha": 32.0}
LORA_RATE = 1e-3
RECIPES: dict[str, dict[str, Any]] = {
    "whole": {},
    "adapters": {"model": {"lora": LORA}, "optimizer": {"learning_rate": LORA_RATE}},
    "upper adapters": {
        "model": {"lora": LORA | {"from_layer": LAYERS // 2}},
        "optimizer": {"learning_rate": LORA_RATE},
    },
}
"""What each changes of the demo's recipe: nothing; adapters on one frozen backbone; the same from the middle layer
up, so that what lies below is computed once."""
SAID = {
    "training": {"steps": STEPS},
    "evaluation": {"every": STEPS, "prompts": HELD_OUT, "function": None},
    "checkpoint": {"every": STEPS},
    "ppo": {"value_warmup_steps": WARMUP},
}


def config_of(recipe: str, seed: int, places: Mapping[str, Any]) -> PPOConfig:
    """``places``: sections that say where model, texts and reward model lie."""
    content = merged(merged(SMALL.stages["ppo"], SAID), RECIPES[recipe])
    config = CONFIGS["ppo"].model_validate(merged(merged(content, places), {"output": Path("unused"), "seed": seed}))
    assert isinstance(config, PPOConfig)
    return config


def common_hash(recipe: str, seed: int, sources: str) -> str:
    """Of what a run of the product and one with a switch have in common; only such runs are compared. ``sources``
    names the state of ``src``."""
    said = {"recipe": recipe, "seed": seed, "sources": sources, "material": MATERIAL_SEED}
    nowhere = {"model": {"name": Path(".")}, "data": {"train": Path(".")}, "reward": {"model": Path(".")}}
    return digest([said, config_of(recipe, seed, nowhere).model_dump(mode="json")])


def run_of(config: PPOConfig, switch: Switch) -> dict[str, Any]:
    """Raises RuntimeError where a patch of the switch was never called: such a run proves nothing."""
    began, drawn = time.process_time(), Drawn()
    with broken(Fault(switch.what, switch.patches, Variant())) as hits:
        built = build_online(config, read_inputs(config), Outputs(NoStore(), NoJournal(), Nobody(), drawn))
        assert isinstance(built.run, OnlineRun)
        start = {name: p.detach().clone() for name, p in built.roles.parameters["policy"].items()}
        built.prepare()
        figures = walked(built.run, built.roles.parameters, start, config)
        probe = built.run.core.evaluate(config.training.steps)
    if switch.patches and hits.count == 0:
        raise RuntimeError(f"{switch.name}: a patch was never called, of {hits.counts} calls each")
    assert probe is not None
    del built
    gc.collect()  # networks are held in cycles
    end = {"reward": probe.metrics["reward"], "kl": probe.metrics["kl_seq"]}
    return {
        **figures,
        "drawn": drawn.hashes,
        "end": end,
        "calls": hits.counts,
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def walked(
    run: OnlineRun, parameters: Mapping[str, Mapping[str, Tensor]], start: Mapping[str, Tensor], config: PPOConfig
) -> dict[str, Any]:
    weights: list[str] = []
    curves: dict[str, list[float]] = {"reward": [], "kl": []}
    moved: dict[str, list[float]] = {}
    steps = config.training.steps
    for step in range(steps):
        record = train_step(run)
        run.core.progress.advance()
        weights.append(hash_of([p for _, group in sorted(parameters.items()) for _, p in sorted(group.items())]))
        curves["reward"].append(record.metrics["reward"])
        curves["kl"].append(record.metrics["kl_seq"])
        for name, at in (("first", config.ppo.value_warmup_steps), ("last", steps - 1)):
            if step == at:
                moved[name] = projected(start, parameters["policy"])
    return {"weights": weights, **curves, "moved": moved}


class Drawn:
    """A sink that keeps a hash of what each training step drew."""

    def __init__(self) -> None:
        self.hashes: list[str] = []

    def keep(self, step: int, attempt: int, rollout: Rollout, scores: Scores, split: str) -> None:
        if split == "train":
            self.hashes.append(hash_of([rollout.rows.tokens, rollout.rows.sequence_offsets]))


def hash_of(tensors: list[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:12]


def projected(start: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> list[float]:
    """(now - start) · normal directions, the same ones in every run of the same parameters."""
    generator, total = torch.Generator().manual_seed(0), torch.zeros(DIRECTIONS, dtype=torch.float64)
    for name in sorted(start):
        difference = (now[name].detach() - start[name]).flatten()
        for direction in range(DIRECTIONS):
            total[direction] += torch.dot(torch.randn(len(difference), generator=generator), difference).double()
    return [float(f"{value:.9g}") for value in total]
