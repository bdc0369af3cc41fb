"""SFT and reward-model steps of TRL 1.16.0, timed. Runs in the peer's environment, with that release before 1.12.0:

PYTHONPATH=.venv/bench-peers/stages .venv/bench-peers/bin/python -m benchmarks.speed.peer_stages sft S FOLDER 5
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from transformers import TrainerCallback
from trl import (  # pyright: ignore[reportMissingImports]
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)

from benchmarks.speed.peer_models import classifier, language_model, tokenizer_of
from benchmarks.speed.sizes import SIZES, Size
from benchmarks.speed.turns import Turns

MANY = 100_000
IGNORED = -100
LONGEST = 256
"""Tokens of a row; none of the workload is cut."""


def main() -> None:
    parser = argparse.ArgumentParser(description="SFT and reward-model steps of TRL, timed.")
    parser.add_argument("stage", choices=("sft", "reward"))
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int, nargs="?", help="absent: one for each line on stdin")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    size = SIZES[asked.size]
    watch = Watch(Turns({"stage": asked.stage, "size": size.name, "side": "peer"}, asked.steps))
    rows = [json.loads(line) for line in (asked.folder / "answers.jsonl").read_text().splitlines()]
    build = sft if asked.stage == "sft" else reward
    trainer = build(size, asked.folder, rows, watch)
    trainer.model.register_forward_pre_hook(watch.count, with_kwargs=True)
    trainer.train()


def sft(size: Size, folder: Path, rows: list[dict[str, Any]], watch: Watch) -> Any:
    """Trained on answers alone, as ours."""
    data = [
        {"input_ids": row["ids"] + row["chosen_ids"], "labels": [IGNORED] * len(row["ids"]) + row["chosen_ids"]}
        for row in rows
    ]
    return SFTTrainer(
        language_model(folder),
        SFTConfig(**common(size), max_length=LONGEST),
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer_of(folder),
        callbacks=[watch],
    )


def reward(size: Size, folder: Path, rows: list[dict[str, Any]], watch: Watch) -> Any:
    data = [{f"{kind}_ids": row["ids"] + row[f"{kind}_ids"] for kind in ("chosen", "rejected")} for row in rows]
    return RewardTrainer(
        classifier(folder),
        RewardConfig(**common(size), max_length=LONGEST),
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer_of(folder),
        callbacks=[watch],
    )


def common(size: Size) -> dict[str, Any]:
    return {
        "output_dir": tempfile.mkdtemp(),
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": MANY,
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": size.minibatch,
        "max_steps": MANY,
        "learning_rate": size.learning_rate,
    }


class Watch(TrainerCallback):
    """Begins and ends the step's time, and counts its real tokens."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.tokens = 0

    def count(self, module: Any, arguments: Any, named: dict[str, Any]) -> None:
        self.tokens += int(named["attention_mask"].sum())

    def on_step_begin(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        if not self.turns.wait():
            raise SystemExit(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        self.turns.give({}, {"tokens": self.tokens})
        self.tokens = 0


if __name__ == "__main__":
    main()
