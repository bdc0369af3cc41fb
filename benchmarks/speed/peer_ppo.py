"""The other side of the PPO benchmark: TRL 1.12.0, the last release that has PPO. Runs in the peer's environment.

    .venv/bench-peers/bin/python -m benchmarks.speed.peer_ppo S FOLDER 3       # FOLDER: as material.py makes it

Its steps are cut into phases from outside: a rollout ends when its generation returns, scoring when policy and value
model are run together for the first time. Gradient checkpointing, on by default there, is off: that favours it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import trl.experimental.ppo.ppo_trainer as trainer_module  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from transformers import TrainerCallback
from trl.experimental.ppo import PPOConfig, PPOTrainer  # pyright: ignore[reportMissingImports]

from benchmarks.speed import sizes
from benchmarks.speed.peer_models import classifier, language_model, tokenizer_of
from benchmarks.speed.sizes import SIZES, Size
from benchmarks.speed.turns import Turns

MANY = 1000
"""Steps of which the run may be left at any time."""


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO steps of TRL, timed.")
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int, nargs="?", help="absent: one for each line on stdin")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    size = SIZES[asked.size]
    phases = Phases(Turns({"stage": "ppo", "size": size.name, "side": "peer"}, asked.steps))
    phases.watch()
    trainer_of(size, asked.folder, phases).train()


def trainer_of(size: Size, folder: Path, phases: Phases) -> Any:
    lines = (folder / "prompts.jsonl").read_text().splitlines()
    prompts = Dataset.from_list([{"input_ids": json.loads(line)["ids"]} for line in lines])
    tokenizer = tokenizer_of(folder)
    phases.pad, phases.eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    return PPOTrainer(
        args=config_of(size),
        processing_class=tokenizer,
        model=language_model(folder),
        ref_model=language_model(folder),
        reward_model=classifier(folder),
        value_model=classifier(folder),
        train_dataset=prompts,
        callbacks=[phases],
    )


def config_of(size: Size) -> Any:
    return PPOConfig(
        output_dir=tempfile.mkdtemp(),
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        fp16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=size.prompts,
        gradient_accumulation_steps=1,
        num_mini_batches=size.minibatches,
        num_ppo_epochs=size.epochs,
        total_episodes=size.prompts * MANY,
        local_rollout_forward_batch_size=size.prompts,
        num_sample_generations=0,
        learning_rate=size.learning_rate,
        response_length=size.new_tokens,
        stop_token="eos",
        temperature=sizes.TEMPERATURE,
        missing_eos_penalty=sizes.MISSING_EOS,
        kl_coef=sizes.BETA,
        cliprange=sizes.CLIP_RANGE,
        cliprange_value=sizes.VALUE_CLIP,
        vf_coef=sizes.VALUE_COEF,
        gamma=sizes.GAMMA,
        lam=sizes.LAM,
        seed=0,
    )


class Phases(TrainerCallback):
    """When each phase of the current step ended, in CPU seconds, and how many of its tokens are real."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.pad = self.eos = 0
        self.counts: dict[str, int] = {}
        self.ends: dict[str, float] = {}

    def watch(self) -> None:
        """Puts a clock around the two functions that the trainer calls."""
        generation, forward = trainer_module.batch_generation, trainer_module.forward

        def timed_generation(
            model: Any, queries: torch.Tensor, batch: int, pad: int, config: Any
        ) -> tuple[torch.Tensor, Any]:
            if not self.turns.wait():
                raise SystemExit(0)
            self.ends = {"begin": time.process_time()}
            made, logits = generation(model, queries, batch, pad, config)
            self.ends["rollout"] = time.process_time()
            self.count(queries, made)
            return made, logits

        def timed_forward(model: Any, rows: torch.Tensor, pad: int) -> Any:
            if isinstance(model, trainer_module.PolicyAndValueWrapper) and "score" not in self.ends:
                self.ends["score"] = time.process_time()
            return forward(model, rows, pad)

        trainer_module.batch_generation, trainer_module.forward = timed_generation, timed_forward

    def count(self, queries: torch.Tensor, made: torch.Tensor) -> None:
        responses = made[:, queries.shape[1] :].tolist()
        drawn = sum(row.index(self.eos) + 1 if self.eos in row else len(row) for row in responses)
        self.counts = {"tokens": int((queries != self.pad).sum()) + drawn, "response_tokens": drawn}

    def on_step_end(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        ends = self.ends
        phases = {
            "rollout": ends["rollout"] - ends["begin"],
            "score": ends["score"] - ends["rollout"],
            "update": time.process_time() - ends["score"],
        }
        self.turns.give(phases, self.counts)


if __name__ == "__main__":
    main()
