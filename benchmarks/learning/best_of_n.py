"""What would choosing among samples have given? Best of n = 1 .. 64 from the SFT model, as a curve over KL.

Of 64 responses to each held-out prompt the expected best of n by the reward, judged by the gold judge: the unbiased
estimate over all subsets, so that one set of samples gives every n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.figures import interval, rounded
from benchmarks.learning.fit import best_of_weights
from benchmarks.learning.material import Material
from benchmarks.learning.settings import HELD_OUT, TRUE
from tightrope.demo.evaluation import sampled
from tightrope.demo.judges import text_of
from tightrope.demo.small import LIMITS
from tightrope.maths.diagnostics import best_of_n_kl, paired_difference
from tightrope.models.load import load_tokenizer
from tightrope.models.roles import load_reward
from tightrope.scoring.reward_model import RewardModel
from tightrope.types import SampleKey

SAMPLES, DRAWS = 64, 13
COUNTS = (1, 2, 4, 8, 16, 32, 64)
Matrix = NDArray[np.float64]


def best_of_n_figures(material: Material, reward: str, seed: int) -> dict[str, Any]:
    rollout = sampled(material.sft, material.files.held_out, HELD_OUT, SAMPLES, SampleKey(seed, 0, DRAWS), LIMITS)
    samples = rollout.samples()
    odds = np.array(material.gold().log_odds([text_of(sample) for sample in samples])).reshape(HELD_OUT, SAMPLES)
    if reward == TRUE:
        chosen_by = odds
    else:
        folder = material.reward_folder(reward) / "export"
        model = RewardModel(load_reward(folder), load_tokenizer(folder), LIMITS.token_budget)
        chosen_by = np.array(model.score(samples)).reshape(HELD_OUT, SAMPLES)
    return curves_of(odds, chosen_by)


def curves_of(odds: Matrix, chosen_by: Matrix) -> dict[str, Any]:
    """Rows are prompts. ``odds`` and ``proxy`` in standard deviations of single samples."""
    order = np.argsort(chosen_by, axis=1, kind="stable")
    odds, chosen_by = (np.take_along_axis(matrix, order, axis=1) for matrix in (odds, chosen_by))
    true = 1.0 / (1.0 + np.exp(-odds))
    found: dict[str, Any] = {"n": list(COUNTS), "kl": [rounded(best_of_n_kl(n)) for n in COUNTS]}
    found |= {"true": [], "odds": [], "proxy": []}
    for n in COUNTS:
        weights = np.array(best_of_weights(odds.shape[1], n))
        best: list[float] = (true @ weights).tolist()
        found["true"].append(interval(paired_difference([0.0] * len(best), best)))
        for name, matrix in (("odds", odds), ("proxy", chosen_by)):
            found[name].append(rounded(float((matrix @ weights).mean() - matrix.mean()) / float(matrix.std())))
    return found
