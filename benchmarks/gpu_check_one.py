"""One check of ``gpu_check`` in a process of its own: prints its numbers as JSON, or ends with an error.

python -m benchmarks.gpu_check_one "ppo tiny fp32" cpu quick FOLDER [MODEL]
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.gpu_models import FULL, QUICK, Shape, four_roles, prompts_of, write_description, write_model
from tightrope.algorithms.options import CONFIGS, PPOConfig
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.inputs import read_inputs
from tightrope.assemble.memory import work_of
from tightrope.assemble.online import build_online
from tightrope.assemble.parts import Outputs
from tightrope.assemble.stage import Finished, resume, start
from tightrope.config.schema import LoraSection, RunConfig
from tightrope.models.memory import estimate
from tightrope.records import StepRecord
from tightrope.scoring.judge import LocalJudge
from tightrope.scoring.normaliser import RewardNormaliser
from tightrope.scoring.reward_model import RewardModel
from tightrope.storage.checkpoints import CheckpointStore
from tightrope.storage.journal import Journal
from tightrope.storage.metrics import MetricStore
from tightrope.training.run import OnlineRun
from tightrope.training.step import train_step
from tightrope.types import Sample

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PROMPT_WORDS = 16
LORA = {"rank": 16, "alpha": 32.0}


def share_of_even(samples: Sequence[Sample]) -> list[float]:
    """A reward: the share of words whose number is even."""
    return [sum(word[-1] in "02468" for word in s.response.split()) / max(1, s.n_tokens) for s in samples]


@dataclass(frozen=True)
class Check:
    stage: str
    size: str
    dtype: str
    device: str
    quick: bool
    folder: Path
    model: str | None

    @property
    def shape(self) -> Shape:
        return (QUICK if self.quick else FULL)[self.size]

    @property
    def steps(self) -> int:
        return 4 if self.quick else 8

    @property
    def token_budget(self) -> int:
        return 256 if self.quick else 8192


def main() -> None:
    name, device, amount, folder, *model = sys.argv[1:]
    stage, size, dtype = name.split()
    named = model[0] if model and size == "135m" else None
    check = Check(stage, size, dtype, device, amount == "quick", Path(folder), named)
    run = {"resume": resumed, "memory": memory_of_four_roles}.get(stage, trained)
    print(json.dumps(run(check)))


def trained(check: Check) -> dict[str, Any]:
    """A few steps, with the self-test before the first."""
    config = config_of(check, check.stage, model_of(check), "run")
    start(check.stage, config, silent)
    store = MetricStore(config.output / "run.db", read_only=True)
    records, told = store.rows(check.stage)[1:], store.summaries()["self_test"]  # the first step warms up
    store.close()
    note = ", ".join(f"{name} {value:.1e}" for name, value in told.items())
    numbers: dict[str, Any] = {"peak MiB": peak_mib(check), "note": note}
    if check.stage != "dpo":
        tokens = sum(record.metrics["sequences"] * record.metrics["response_tokens"] for record in records)
        numbers["tokens/s"] = round(tokens / sum(sum(record.seconds.values()) for record in records))
    return numbers


def resumed(check: Check) -> dict[str, Any]:
    """Interrupted in the middle and resumed: every logged number and every weight as without."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = model_of(check)
    whole, parted = (config_of(check, "ppo", model, name) for name in ("whole", "parted"))
    start("ppo", whole, silent)
    middle = check.steps // 2
    first: Finished = start("ppo", parted, lambda stage, settings: InterruptAt(middle - 1))
    assert first.outcome == "interrupted", first.outcome
    resume(parted.output, silent)
    pairs = list(zip(records_of(whole.output), records_of(parted.output), strict=True))
    different = [mine.step for mine, theirs in pairs if mine.reproducible() != theirs.reproducible()]
    gap = largest_gap(whole.output / "export", parted.output / "export")
    if different or gap:
        raise SystemExit(f"steps {different[:3]} differ after the resume; largest weight difference {gap:.2e}")
    return {"peak MiB": peak_mib(check), "note": f"{len(pairs)} records and all weights equal"}


def memory_of_four_roles(check: Check) -> dict[str, Any]:
    """One PPO step; the backbone is made on the device and the disk sees no weight."""
    folder = write_description(check.shape, check.folder / "model")
    config = config_of(check, "ppo", folder, "run")
    assert isinstance(config, PPOConfig) and config.model.lora is not None
    inputs = read_inputs(config)
    lora = LoraSection(**LORA)
    roles = four_roles(check.shape, lora, TORCH_DTYPES[check.dtype], torch.device(check.device))
    assert roles.reward is not None
    config.output.mkdir()
    store = CheckpointStore(config.output / "checkpoints", 1, {})
    outputs = Outputs(store, Journal(config.output / "events.jsonl"), Nobody(), Nobody())
    built = build_online(config, inputs, outputs, roles)
    assert isinstance(built.run, OnlineRun)
    budget = config.training.token_budget
    source = RewardModel(roles.reward, inputs.tokenizer, budget)
    judge = LocalJudge(source, RewardNormaliser(), config.reward, roles, config.rollout.temperature, budget)
    record = train_step(replace(built.run, judge=judge))
    assert "nonfinite" not in record.metrics, record.notes
    expected = estimate(folder, config.model, work_of(config, inputs))
    seconds = sum(record.seconds.values())
    tokens = record.metrics["sequences"] * record.metrics["response_tokens"]
    return {
        "peak MiB": peak_mib(check),
        "estimate MiB": round(expected.total / 2**20),
        "tokens/s": round(tokens / seconds),
        "note": f"{expected.parameters:,} parameters, four roles, one step",
    }


class InterruptAt(Nobody):
    """Asks for a stop while a step is shown, as Ctrl-C would."""

    def __init__(self, step: int) -> None:
        self._step = step

    def write(self, record: StepRecord) -> None:
        if record.step == self._step and "/" not in record.stage:
            os.kill(os.getpid(), signal.SIGTERM)


def silent(stage: str, settings: RunConfig) -> Nobody:
    return Nobody()


def records_of(run: Path) -> list[StepRecord]:
    store = MetricStore(run / "run.db", read_only=True)
    try:
        return store.rows()
    finally:
        store.close()


def largest_gap(one: Path, two: Path) -> float:
    gaps = [0.0]
    for file in sorted(one.rglob("*.safetensors")):
        other = load_file(two / file.relative_to(one))
        gaps += [float((value.float() - other[name].float()).abs().max()) for name, value in load_file(file).items()]
    return max(gaps)


def peak_mib(check: Check) -> int:
    if check.device == "cuda":
        return round(torch.cuda.max_memory_allocated() / 2**20)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)


def model_of(check: Check) -> str | Path:
    return check.model if check.model is not None else write_model(check.shape, check.folder / "model")


def config_of(check: Check, stage: str, model: str | Path, name: str) -> RunConfig:
    """bfloat16 weights are never trained themselves: adapters carry the training there."""
    data = write_data(check, stage)
    section: dict[str, Any] = {"name": model, "dtype": DTYPES[check.dtype], "device": check.device}
    content: dict[str, Any] = {
        "output": check.folder / name,
        "model": section | ({"lora": LORA} if check.dtype == "bf16" else {}),
        "data": {"train": data, "held_out": 8},
        "optimizer": {"learning_rate": 1e-5},
        "training": {"steps": check.steps, "token_budget": check.token_budget},
        "checkpoint": {"every": check.steps // 2},
    }
    if stage == "dpo":
        content["dpo"] = {"batch_size": 8}
    else:
        content |= {
            "rollout": {"prompts_per_step": 8 if check.quick else 64, "max_new_tokens": 8 if check.quick else 128},
            "reward": {"function": "benchmarks.gpu_check_one:share_of_even", "normalise": "off"},
            "kl": {"target": 5.0},
            "evaluation": {"prompts": 8, "every": check.steps},
            stage: {"epochs": 2, "minibatches": 2},
        }
        if stage == "rloo":
            content["rollout"]["samples_per_prompt"] = 2
        if check.stage == "memory":
            content["ppo"]["critic"] = "separate"
            content["rollout"]["prompts_per_step"] = 8
    return CONFIGS[stage].model_validate(content)


def write_data(check: Check, stage: str) -> Path:
    texts = prompts_of(check.shape, 3 * 80, PROMPT_WORDS)
    file = check.folder / f"{stage}.jsonl"
    if stage == "dpo":
        rows = [dict(zip(("prompt", "chosen", "rejected"), texts[i : i + 3], strict=True)) for i in range(0, 240, 3)]
    else:
        rows = [{"prompt": text} for text in texts]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


if __name__ == "__main__":
    main()
