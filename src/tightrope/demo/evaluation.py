"""What do the models of the demo write to prompts that nobody trained on, and what do the two judges say?"""

from __future__ import annotations

from pathlib import Path

import torch

from tightrope.config.schema import DataSection, ModelSection
from tightrope.data.prompts import load_prompts
from tightrope.demo.card import Evaluated
from tightrope.demo.judges import GoldJudge, independent, text_of
from tightrope.maths.diagnostics import distinct_n
from tightrope.maths.kl import k1
from tightrope.maths.ragged import segment_sum
from tightrope.models.load import context_length, eos_ids, load_network, load_tokenizer
from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import Role, load_reward
from tightrope.rollout.local_engine import LocalEngine
from tightrope.scoring.reward_model import RewardModel
from tightrope.types import Rollout, SampleKey, Sampling

MAX_NEW_TOKENS = 20
TOKEN_BUDGET = 16_384


def policy_of(folder: Path) -> Role:
    return Role("policy", load_network(folder, ModelSection(name=str(folder))))


def sampled(folder: Path, prompts: Path, count: int, samples: int, seed: int, draws: int) -> Rollout:
    """``samples`` responses of the model to each of the first ``count`` prompts; ``draws`` names the random numbers."""
    tokenizer = load_tokenizer(folder)
    section = DataSection(train=prompts, held_out=0, limit=count)
    data = load_prompts(section, tokenizer, context=context_length(folder), new_tokens=MAX_NEW_TOKENS)
    engine = LocalEngine(policy_of(folder), tokenizer, lambda: 0, TOKEN_BUDGET)
    sampling = Sampling(1.0, MAX_NEW_TOKENS, eos_ids(folder, tokenizer))
    return engine.generate(data.train, samples, sampling, SampleKey(seed, 0, draws))


def best_of(rollout: Rollout, reward_folder: Path, n: int) -> list[int]:
    """The sequence with the highest reward of each prompt, whose ``n`` sequences lie side by side."""
    role = load_reward(reward_folder, ModelSection(name=str(reward_folder)))
    scores = RewardModel(role, load_tokenizer(reward_folder), TOKEN_BUDGET).score(rollout.samples())
    return [max(range(start, start + n), key=lambda i: scores[i]) for start in range(0, len(scores), n)]


def evaluated(
    name: str, rollout: Rollout, gold: GoldJudge, policy: Path | None, reference: Path | None, kl: float | None = None
) -> Evaluated:
    """``policy`` and ``reference`` measure the KL; without them it is what is given."""
    samples = rollout.samples()
    if policy is not None and reference is not None:
        kl = mean_kl(policy_of(policy), policy_of(reference), rollout)
    return Evaluated(
        name=name,
        gold=gold.probabilities([text_of(sample) for sample in samples]).tolist(),
        independent=independent(samples),
        lengths=rollout.rows.action_counts.tolist(),
        distinct_3=distinct_n(rollout.responses, 3),
        kl=kl,
    )


@torch.no_grad()
def mean_kl(policy: Role, reference: Role, rollout: Rollout) -> float:
    """Nats per response, from the policy's own samples (k1)."""
    ours, theirs = (token_logprobs(role, rollout.rows, 1.0).logprobs for role in (policy, reference))
    return float(segment_sum(k1(ours, theirs), rollout.rows.action_offsets).double().mean())
