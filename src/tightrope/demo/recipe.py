"""The whole way on real text, small enough for a laptop: corpus, SFT, synthetic preferences, reward model, DPO, PPO.

Every stage is the product's own, run through the same code as its command. The preferences are *synthetic*: samples of
the SFT model labelled by the gold judge, a classifier fitted on reviews that no other part sees. The independent judge
is a word list that nothing is trained on. Budgets are in steps; seconds are what they took.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tightrope.algorithms.options import CONFIGS
from tightrope.assemble.stage import DisplayFor, Finished, start
from tightrope.demo.card import DemoResult
from tightrope.demo.corpus import load_corpus
from tightrope.demo.evaluation import MAX_NEW_TOKENS, TOKEN_BUDGET, best_of, evaluated, sampled
from tightrope.demo.files import DemoFiles, widest_pairs, write_preferences, write_texts
from tightrope.demo.judges import GoldJudge
from tightrope.demo.model import write_base_model
from tightrope.demo.tokenizer import vocabulary_of
from tightrope.maths.diagnostics import Interval, best_of_n_kl
from tightrope.models.manifest import read_manifest

PAIRS = 4000
SAMPLES_PER_PAIR = 4
BEST_OF = 4
HELD_OUT = 320
PAIR_DRAWS, HELD_OUT_DRAWS = 1, 2  # name the random numbers of the samples that no training step draws

STAGES: dict[str, dict[str, Any]] = {
    "sft": {
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 50, "weight_decay": 0.1},
        "training": {"steps": 1000, "token_budget": TOKEN_BUDGET},
        "checkpoint": {"every": 500},
        "sft": {"batch_size": 64, "evaluate_every": 250},
    },
    "rm": {
        "optimizer": {"learning_rate": 1.5e-3, "warmup_steps": 10, "weight_decay": 1.0},
        "training": {"steps": 222, "token_budget": TOKEN_BUDGET},  # one epoch
        "checkpoint": {"every": 111},
        "reward_model": {"batch_size": 16, "evaluate_every": 111},
    },
    "dpo": {
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 5},
        "training": {"steps": 111, "token_budget": TOKEN_BUDGET},  # one epoch
        "checkpoint": {"every": 56},
        "dpo": {"batch_size": 32, "evaluate_every": 56, "beta": 0.3},
    },
    "ppo": {
        "optimizer": {"learning_rate": 2e-4, "critic_learning_rate": 2e-3},
        "training": {"steps": 42, "token_budget": TOKEN_BUDGET},
        "checkpoint": {"every": 14},
        "rollout": {"prompts_per_step": 64, "max_new_tokens": MAX_NEW_TOKENS},
        # A lower beta ends nearer 6 nats, but one word wins: distinct-3 fell to 0.67 on one of three seeds.
        "kl": {"beta": 0.15, "target": 5.0, "beta_min": 0.12},
        "evaluation": {"every": 7, "prompts": 64, "function": "tightrope.demo.judges:independent"},
        "samples": {"count": 16},
    },
}
"""What each stage changes of its defaults."""

Say = Callable[[str], None]


class StageEnded(Exception):
    """A stage did not reach its last step; ``done`` says how it ended."""

    def __init__(self, done: Finished) -> None:
        super().__init__(f"{done.stage} {done.outcome} after {done.steps} steps")
        self.done = done


class Demo:
    """One walk through all stages in ``folder``. ``seconds`` by part, filled on the way."""

    def __init__(self, folder: Path, seed: int, display_for: DisplayFor, say: Say) -> None:
        self.folder = folder
        self.files = DemoFiles(folder / "data")
        self.seconds: dict[str, float] = {}
        self._seed = seed
        self._display_for = display_for
        self._say = say

    def run(self) -> DemoResult:
        """Raises StageEnded when a stage was interrupted or stopped."""
        began = time.monotonic()
        gold = self.prepare()
        self.train("sft", self.folder / "base", self.files.demonstrations)
        self.label(gold)
        self.train("rm", self.folder / "sft", self.files.preferences)
        self.train("dpo", self.folder / "sft", self.files.preferences)
        self.train("ppo", self.folder / "sft", self.files.prompts)
        return self.judge(gold, began)

    def prepare(self) -> GoldJudge:
        """Texts, the gold judge, and the small model with random weights."""
        with self.timed("data", "reading movie reviews and fitting the gold judge on half of them"):
            self.files.folder.mkdir(parents=True)
            corpus = load_corpus(self._seed)
            vocabulary = vocabulary_of(corpus.writing)
            gold = GoldJudge.fit(corpus.judge)
            gold.save(self.files.gold_judge)
            write_texts(self.files, corpus, vocabulary, self._seed, prompts=PAIRS, held_out=HELD_OUT)
            parameters = write_base_model(self.folder / "base", vocabulary, self._seed)
        self._say(f"a Llama with {parameters:,} random parameters and {len(vocabulary):,} words is the start")
        return gold

    def label(self, gold: GoldJudge) -> None:
        """Several answers of the SFT model to each prompt, and the judge's noisy vote on two: synthetic preferences."""
        with self.timed("pairs", f"sampling {PAIRS:,} synthetic pairs; the gold judge votes"):
            rollout = sampled(self.sft, self.files.prompts, PAIRS, SAMPLES_PER_PAIR, self._seed, PAIR_DRAWS)
            texts = rollout.responses
            several = [texts[start : start + SAMPLES_PER_PAIR] for start in range(0, len(texts), SAMPLES_PER_PAIR)]
            pairs = widest_pairs([prompt.text for prompt in rollout.prompts], several, gold, self._seed)
            self.pairs = write_preferences(self.files, pairs, gold, self._seed)

    def judge(self, gold: GoldJudge, began: float) -> DemoResult:
        """Every model on the same held-out prompts with the same random numbers."""
        with self.timed("evaluation", f"judging every model on {HELD_OUT} held-out prompts"):
            draw = (self.files.held_out, HELD_OUT)
            several = sampled(self.sft, *draw, BEST_OF, self._seed, HELD_OUT_DRAWS)
            first = several.select(range(0, several.n_sequences, BEST_OF))
            best = several.select(best_of(several, self.folder / "rm" / "export", BEST_OF))
            base, dpo, ppo = (
                sampled(folder, *draw, 1, self._seed, HELD_OUT_DRAWS)
                for folder in (self.folder / "base", self.folder / "dpo" / "export", self.folder / "ppo" / "export")
            )
            models = {
                "base": evaluated("base (random)", base, gold, None, None),
                "sft": evaluated("SFT", first, gold, self.sft, self.sft),
                "best": evaluated(f"best of {BEST_OF}", best, gold, None, None, kl=best_of_n_kl(BEST_OF)),
                "dpo": evaluated("DPO", dpo, gold, self.folder / "dpo" / "export", self.sft),
                "ppo": evaluated("PPO", ppo, gold, self.folder / "ppo" / "export", self.sft),
            }
        manifest = read_manifest(self.folder / "rm" / "export")
        assert manifest is not None and manifest.accuracy is not None and manifest.accuracy_interval is not None
        return DemoResult(
            base=models["base"],
            sft=models["sft"],
            best_of_n=models["best"],
            dpo=models["dpo"],
            ppo=models["ppo"],
            n=BEST_OF,
            pairs=self.pairs,
            rm_accuracy=Interval(manifest.accuracy, *manifest.accuracy_interval),
            seed=self._seed,
            seconds=time.monotonic() - began,
            peak_rss_bytes=peak_rss_bytes(),
            next_commands=next_commands(self.folder),
            stage_seconds=self.seconds,
        )

    @property
    def sft(self) -> Path:
        return self.folder / "sft" / "export"

    def train(self, stage: str, model: Path, data: Path) -> None:
        settings = STAGES[stage]
        content: dict[str, Any] = {
            "output": self.folder / stage,
            "seed": self._seed,
            "model": {"name": model},
            "data": {"train": data, "held_out": 400 if stage in ("rm", "dpo") else 64},
            **settings,
        }
        if stage == "ppo":
            content["reward"] = {"model": self.folder / "rm"}
        with self.timed(stage, f"{stage}: {settings['training']['steps']} steps"):
            done = start(stage, CONFIGS[stage].model_validate(content), self._display_for)
        if done.outcome != "finished":
            raise StageEnded(done)

    @contextmanager
    def timed(self, part: str, what: str) -> Iterator[None]:
        self._say(what)
        began = time.monotonic()
        yield
        self.seconds[part] = time.monotonic() - began


def next_commands(folder: Path) -> tuple[str, str, str]:
    return (
        f"tightrope samples {folder}/ppo --step 42",
        f"tightrope generate {folder}/ppo {folder}/data/held_out.jsonl --output answers.jsonl --limit 30",
        "tightrope label answers.jsonl",
    )


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
