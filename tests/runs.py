"""Small complete runs for the tests: a tiny model, a little data, and a config for each stage."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tiny import WORDS, tiny_llama
from tightrope.algorithms.options import CONFIGS
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.inputs import read_inputs
from tightrope.assemble.parts import Assembled, Outputs
from tightrope.assemble.stage import Finished, build, start
from tightrope.config.schema import RunConfig
from tightrope.storage.checkpoints import CheckpointStore
from tightrope.storage.journal import Journal
from tightrope.types import Sample

STAGES = ("sft", "rm", "dpo", "ppo", "rloo")


def length_reward(samples: Sequence[Sample]) -> list[float]:
    """Characters, in hundreds."""
    return [len(s.response) / 100 for s in samples]


def word_share(samples: Sequence[Sample]) -> list[float]:
    """A reward for the tests: the share of words with an `a` in them."""
    return [sum("a" in word for word in s.response.split()) / max(1, len(s.response.split())) for s in samples]


@dataclass(frozen=True)
class Files:
    """What the stages read."""

    model: Path
    demonstrations: Path
    preferences: Path
    prompts: Path


def tiny_files(folder: Path, model: Path | None = None, rows: int = 24) -> Files:
    """``rows`` rows of each kind, random words, every answer shorter than 8 words."""
    draw = random.Random(0)

    def text(low: int, high: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(low, high)))

    tables = {
        "demonstrations": [{"prompt": text(2, 5), "completion": text(1, 7)} for _ in range(rows)],
        "preferences": [{"prompt": text(2, 5), "chosen": text(1, 7), "rejected": text(1, 7)} for _ in range(rows)],
        "prompts": [{"prompt": text(2, 5)} for _ in range(rows)],
    }
    paths = {}
    for name, table in tables.items():
        paths[name] = folder / f"{name}.jsonl"
        paths[name].write_text("".join(json.dumps(row) + "\n" for row in table))
    return Files(model or tiny_llama(folder / "model"), **paths)


def tiny_config(
    stage: str,
    files: Files,
    output: Path,
    *,
    lora: bool = False,
    steps: int = 4,
    reward_model: Path | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> RunConfig:
    """Every part of a run is on and small: several epochs and minibatches, probes, a checkpoint every second step."""
    data = {"sft": files.demonstrations, "rm": files.preferences, "dpo": files.preferences}.get(stage, files.prompts)
    content: dict[str, Any] = {
        "output": output,
        "model": {"name": files.model} | ({"lora": {"rank": 4, "alpha": 8.0}} if lora else {}),
        "data": {"train": data, "held_out": 4},
        "optimizer": {"learning_rate": 1e-3},
        "training": {"steps": steps, "token_budget": 64},
        "checkpoint": {"every": 2},
    }
    if stage in ("ppo", "rloo"):
        reward = {"model": reward_model} if reward_model else {"function": "tests.runs:word_share"}
        content |= {
            "rollout": {
                "prompts_per_step": 6,
                "samples_per_prompt": 2,
                "max_new_tokens": 6,
            },
            "reward": reward | {"normalise_samples": 16},
            "evaluation": {"every": 2, "prompts": 4, "function": "tests.runs:word_share"},
        }
        content[stage] = {"epochs": 2, "minibatches": 2}
    else:
        section = {"sft": "sft", "rm": "reward_model", "dpo": "dpo"}[stage]
        content[section] = {"batch_size": 5, "evaluate_every": 2}
    for section, values in (changes or {}).items():
        content[section] = content.get(section, {}) | dict(values)
    return CONFIGS[stage].model_validate(content)


def run_quietly(stage: str, config: RunConfig) -> Finished:
    return start(stage, config, lambda name, settings: Nobody())


def built_run(config: RunConfig, folder: Path) -> Assembled:
    """The run as the command line builds it, before its first step; it is shown to nobody."""
    folder.mkdir(parents=True, exist_ok=True)
    store = CheckpointStore(folder / "checkpoints", config.checkpoint.keep, {})
    outputs = Outputs(store, Journal(folder / "events.jsonl"), Nobody(), Nobody())
    return build(config, read_inputs(config), outputs)
