"""The whole way on real text, small enough for a laptop: corpus, SFT, synthetic preferences, reward model, DPO, PPO.

Every stage is the product's own, run through the same code as its command. The preferences are *synthetic*: samples of
the SFT model labelled by the gold judge, a classifier fitted on reviews that no other part sees. The independent judge
is a word list that nothing is trained on. Budgets are in steps; seconds are what they took.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tightrope.assemble.stage import Finished

PAIRS = 4000
BEST_OF = 4
HELD_OUT = 256
MAX_NEW_TOKENS = 20
TOKEN_BUDGET = 16_384
PAIR_KEY, EVALUATION_KEY = 1, 2  # step numbers of the draws outside training

Say = Callable[[str], None]


class Interrupted(Exception):
    """A stage ended before its last step; ``done`` says where it stands."""

    def __init__(self, done: Finished) -> None:
        super().__init__(f"{done.stage} {done.outcome} after {done.steps} steps")
        self.done = done


def stage_settings(seed: int) -> dict[str, dict[str, Any]]:
    """What each stage changes of its defaults."""
    return {
        "sft": {
            "optimizer": {"learning_rate": 3e-3, "warmup_steps": 50},
            "training": {"steps": 1000, "token_budget": TOKEN_BUDGET},
            "sft": {"batch_size": 64, "evaluate_every": 250},
        },
        "rm": {
            "optimizer": {"learning_rate": 1e-3, "warmup_steps": 10},
            "training": {"steps": 60, "token_budget": TOKEN_BUDGET},
            "reward_model": {"batch_size": 64, "evaluate_every": 20},
        },
        "dpo": {
            "optimizer": {"learning_rate": 2e-4, "warmup_steps": 5},
            "training": {"steps": 60, "token_budget": TOKEN_BUDGET},
            "dpo": {"batch_size": 64, "evaluate_every": 20},
        },
        "ppo": {
            "optimizer": {"learning_rate": 3e-4, "critic_learning_rate": 3e-3},
            "training": {"steps": 42, "token_budget": TOKEN_BUDGET},
            "rollout": {"prompts_per_step": 64, "max_new_tokens": MAX_NEW_TOKENS},
            "kl": {"beta": 0.1, "target": 6.0},
            "evaluation": {"every": 10, "prompts": 64, "function": "tightrope.demo.judges:independent"},
            "samples": {"count": 16},
        },
    }
