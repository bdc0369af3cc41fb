"""What do the models of the demo write to prompts that nobody trained on, and what do the two judges say?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tightrope.config.schema import DataSection, ModelSection
from tightrope.data.prompts import load_prompts
from tightrope.demo.card import Evaluated
from tightrope.demo.judges import GoldJudge, text_of
from tightrope.maths.diagnostics import distinct_n
from tightrope.maths.kl import k1
from tightrope.maths.ragged import segment_sum
from tightrope.models.load import context_length, eos_ids, load_network, load_tokenizer
from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import Role, load_reward
from tightrope.rollout.local_engine import LocalEngine
from tightrope.scoring.reward_model import RewardModel
from tightrope.types import Rollout, SampleKey, Sampling


@dataclass(frozen=True, slots=True)
class Limits:
    """Of sampling and scoring outside of training: ``token_budget`` tokens at once."""

    max_new_tokens: int
    token_budget: int


@dataclass(frozen=True, slots=True)
class Judges:
    """``independent``: scores from -1 to 1 of whole texts; nothing is trained on it."""

    gold: GoldJudge
    independent: Callable[[Sequence[str]], list[float]]


def policy_of(folder: Path) -> Role:
    return Role("policy", load_network(folder, ModelSection(name=str(folder))))


def sampled(folder: Path, prompts: Path, count: int, samples: int, key: SampleKey, limits: Limits) -> Rollout:
    """``samples`` responses of the model to each of the first ``count`` prompts; ``key`` names the random numbers."""
    tokenizer = load_tokenizer(folder)
    section = DataSection(train=prompts, held_out=0, limit=count)
    data = load_prompts(section, tokenizer, context=context_length(folder), new_tokens=limits.max_new_tokens)
    engine = LocalEngine(policy_of(folder), tokenizer, lambda: 0, limits.token_budget)
    sampling = Sampling(1.0, limits.max_new_tokens, eos_ids(folder, tokenizer))
    return engine.generate(data.train, samples, sampling, key)


def best_of(rollout: Rollout, reward_folder: Path, n: int, limits: Limits) -> list[int]:
    """The sequence with the highest reward of each prompt, whose ``n`` sequences lie side by side."""
    role = load_reward(reward_folder, ModelSection(name=str(reward_folder)))
    scores = RewardModel(role, load_tokenizer(reward_folder), limits.token_budget).score(rollout.samples())
    return [max(range(start, start + n), key=lambda i: scores[i]) for start in range(0, len(scores), n)]


def evaluated(name: str, rollout: Rollout, judges: Judges, kl: float | None) -> Evaluated:
    texts = [text_of(sample) for sample in rollout.samples()]
    return Evaluated(
        name=name,
        gold=judges.gold.probabilities(texts).tolist(),
        independent=judges.independent(texts),
        lengths=rollout.rows.action_counts.tolist(),
        distinct_3=distinct_n(rollout.responses, 3),
        kl=kl,
    )


@torch.no_grad()
def mean_kl(policy: Path, reference: Path, rollout: Rollout) -> float:
    """Nats per response, from the policy's own samples (k1). One network at a time."""
    ours, theirs = (token_logprobs(policy_of(folder), rollout.rows, 1.0).logprobs for folder in (policy, reference))
    return float(segment_sum(k1(ours, theirs), rollout.rows.action_offsets).double().mean())
