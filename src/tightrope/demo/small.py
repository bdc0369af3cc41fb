"""The small size: a Llama of a million random weights learns to write, then what to write; minutes on a laptop.

The independent judge is a word list (VADER) that nothing is trained on.
"""

from __future__ import annotations

from pathlib import Path

from tightrope.demo.corpus import load_corpus
from tightrope.demo.evaluation import Judges, Limits
from tightrope.demo.files import DemoFiles, write_texts
from tightrope.demo.judges import GoldJudge, vader_scores
from tightrope.demo.model import write_base_model
from tightrope.demo.recipe import Beginning, Recipe
from tightrope.demo.tokenizer import vocabulary_of

LIMITS = Limits(max_new_tokens=20, token_budget=16_384)


def begin(recipe: Recipe, files: DemoFiles, folder: Path, seed: int) -> Beginning:
    corpus = load_corpus(seed)
    vocabulary = vocabulary_of(corpus.writing)
    gold = GoldJudge.fit(corpus.judge)
    gold.save(files.gold_judge)
    write_texts(files, corpus, vocabulary, seed, prompts=recipe.pairs, held_out=recipe.held_out)
    base = folder / "base"
    parameters = write_base_model(base, vocabulary, seed)
    told = f"a Llama with {parameters:,} random parameters and {len(vocabulary):,} words is the start"
    return Beginning(base, Judges(gold, vader_scores), told)


SMALL = Recipe(
    begin=begin,
    stages={
        "sft": {
            "optimizer": {"learning_rate": 3e-3, "warmup_steps": 50, "weight_decay": 0.1},
            "training": {"steps": 1000, "token_budget": LIMITS.token_budget},
            "checkpoint": {"every": 500},
            "sft": {"batch_size": 64, "evaluate_every": 250},
        },
        "rm": {
            "optimizer": {"learning_rate": 1.5e-3, "warmup_steps": 10, "weight_decay": 1.0},
            "training": {"steps": 222, "token_budget": LIMITS.token_budget},  # one epoch
            "checkpoint": {"every": 111},
            "reward_model": {"batch_size": 16, "evaluate_every": 111},
        },
        "dpo": {
            "optimizer": {"learning_rate": 1e-3, "warmup_steps": 5},
            "training": {"steps": 111, "token_budget": LIMITS.token_budget},  # one epoch
            "checkpoint": {"every": 56},
            "dpo": {"batch_size": 32, "evaluate_every": 56, "beta": 0.3},
        },
        "ppo": {
            "optimizer": {"learning_rate": 2e-4, "critic_learning_rate": 2e-3},
            "training": {"steps": 42, "token_budget": LIMITS.token_budget},
            "checkpoint": {"every": 14},
            "rollout": {"prompts_per_step": 64, "max_new_tokens": LIMITS.max_new_tokens},
            # A lower beta ends nearer 6 nats, but one word wins: distinct-3 fell to 0.67 on one of three seeds.
            # The bound, tried with these seeds, holds beta here; a controller that looks ahead would stay above it.
            "kl": {"beta": 0.15, "target": 5.0, "beta_min": 0.12, "lookahead": 0.0},
            "evaluation": {"every": 7, "prompts": 64, "function": "tightrope.demo.judges:independent"},
            "samples": {"count": 16},
        },
    },
    pairs=4000,
    samples_per_pair=4,
    held_out_pairs=400,
    held_out=320,
    best_of=4,
    limits=LIMITS,
    base_title="base (random)",
)
