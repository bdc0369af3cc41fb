"""What do the models of the demo write to prompts that nobody trained on, and what do the two judges say?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from tightrope.config.schema import DataSection
from tightrope.data.prompts import load_prompts
from tightrope.demo.card import Evaluated
from tightrope.demo.judges import GoldJudge, text_of
from tightrope.maths.diagnostics import distinct_n
from tightrope.maths.kl import k1
from tightrope.maths.ragged import segment_sum
from tightrope.models.load import context_length, eos_ids, load_tokenizer
from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import load_policy, load_reward
from tightrope.rollout.local_engine import LocalEngine
from tightrope.scoring.reward_model import RewardModel
from tightrope.types import Rollout, SampleKey, Sampling, TokenRows, microbatch_indices


@dataclass(frozen=True, slots=True)
class Limits:
    """Of sampling and scoring outside of training: ``token_budget`` tokens at once, ``temperature`` as in training."""

    max_new_tokens: int
    token_budget: int
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Answers:
    """Of one model, to the held-out prompts. ``kl`` to the SFT model where there is one, ``title`` on the card."""

    title: str
    rollout: Rollout
    kl: float | None = None


@dataclass(frozen=True, slots=True)
class Judges:
    """``independent``: scores from -1 to 1 of whole texts; nothing is trained on it."""

    gold: GoldJudge
    independent: Callable[[Sequence[str]], list[float]]


def sampled(folder: Path, prompts: Path, count: int, samples: int, key: SampleKey, limits: Limits) -> Rollout:
    """``samples`` responses of the model to each of the first ``count`` prompts; ``key`` names the random numbers."""
    tokenizer = load_tokenizer(folder)
    section = DataSection(train=prompts, held_out=0, limit=count)
    data = load_prompts(section, tokenizer, context=context_length(folder), new_tokens=limits.max_new_tokens)
    engine = LocalEngine(load_policy(folder), tokenizer, lambda: 0, limits.token_budget)
    sampling = Sampling(limits.temperature, limits.max_new_tokens, eos_ids(folder, tokenizer))
    return engine.generate(data.train, samples, sampling, key)


def best_of(rollout: Rollout, reward_folder: Path, n: int, limits: Limits) -> list[int]:
    """The sequence with the highest reward of each prompt, whose ``n`` sequences lie side by side."""
    role = load_reward(reward_folder)
    scores = RewardModel(role, load_tokenizer(reward_folder), limits.token_budget).score(rollout.samples())
    return [max(range(start, start + n), key=lambda i: scores[i]) for start in range(0, len(scores), n)]


def judged(answers: Mapping[str, Answers], judges: Judges) -> dict[str, Evaluated]:
    """One call of the independent judge for all models: it may have a network to load."""
    texts = {name: [text_of(sample) for sample in each.rollout.samples()] for name, each in answers.items()}
    scores = iter(judges.independent([text for several in texts.values() for text in several]))
    return {
        name: Evaluated(
            name=each.title,
            gold=judges.gold.probabilities(texts[name]).tolist(),
            independent=list(islice(scores, len(texts[name]))),
            lengths=each.rollout.rows.action_counts.tolist(),
            distinct_3=distinct_n(each.rollout.responses, 3),
            kl=each.kl,
        )
        for name, each in answers.items()
    }


def mean_kl(policy: Path, reference: Path, rollout: Rollout, limits: Limits) -> float:
    """Nats per response, from the policy's own samples (k1). One network at a time."""
    ours, theirs = (logprobs_of(folder, rollout.rows, limits) for folder in (policy, reference))
    return float(segment_sum(k1(ours, theirs), rollout.rows.action_offsets).double().mean())


@torch.no_grad()
def logprobs_of(folder: Path, rows: TokenRows, limits: Limits) -> Tensor:
    """Of every action; the network is gone afterwards."""
    role = load_policy(folder)
    groups = microbatch_indices(rows.lengths, limits.token_budget)
    return torch.cat([token_logprobs(role, rows.select(group), limits.temperature).logprobs for group in groups])
