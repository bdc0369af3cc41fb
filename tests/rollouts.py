"""Roles over tiny models, prompts for them, and what two rollouts of the same numbers may differ by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from tightrope.config.schema import ModelSection
from tightrope.models.heads import Head
from tightrope.models.load import load_network, load_tokenizer
from tightrope.models.packed_forward import hidden_states
from tightrope.models.roles import Role
from tightrope.rollout.local_engine import LocalEngine
from tightrope.rollout.sampling import uniforms
from tightrope.types import Prompt, Rollout, SampleKey, Sampling, TokenRows

TEXTS = (
    "the cat sat",
    "a",
    "tell me about the film and the actor in it . what was the plot ?",
    "user : who was the actor ? assistant :",
    "one two three four five six seven eight nine ten",
    "not good",
    "the house in the river is",
    "dull , awful and bad !",
)
MARGIN = 1e-4
"""A draw may come out otherwise beside other neighbours only where the uniform number is this near to a border."""


def policy_of(folder: Path) -> Role:
    return Role("policy", load_network(folder, ModelSection(name=folder, device="cpu")))


def reward_of(folder: Path, seed: int = 0) -> Role:
    """The tiny model's trunk with a random head."""
    network = policy_of(folder).network
    weight = torch.randn(network.hidden_size, generator=torch.Generator().manual_seed(seed))
    return Role("reward", network, None, Head(weight, torch.zeros(1)))


def engine_of(folder: Path, token_budget: int | None = None) -> LocalEngine:
    return LocalEngine(policy_of(folder), load_tokenizer(folder), lambda: 5, token_budget)


def prompts_of(folder: Path, texts: Sequence[str] = TEXTS, repeat: int = 1) -> list[Prompt]:
    """Prompt i is text i of the texts repeated; ``row`` holds a second column."""
    tokenizer = load_tokenizer(folder)
    return [
        Prompt(index, tuple(tokenizer(text)["input_ids"]), text, {"prompt": text, "id": f"row-{index}"})
        for index, text in enumerate(list(texts) * repeat)
    ]


def responses(rollout: Rollout) -> dict[tuple[int, int], list[int]]:
    """Sampled ids by (prompt index in the data set, sample number)."""
    names = zip(rollout.prompt_index.tolist(), rollout.sample_index.tolist(), strict=True)
    return {
        (rollout.prompts[prompt].index, sample): rollout.rows.actions(i).tolist()
        for i, (prompt, sample) in enumerate(names)
    }


def differing_draws(
    policy: Role, prompts: Sequence[Prompt], sampling: Sampling, key: SampleKey, first: Rollout, second: Rollout
) -> int:
    """Responses of ``second`` that differ from ``first``; fails unless each first difference is a near draw."""
    context = {prompt.index: prompt.token_ids for prompt in prompts}
    expected, found = responses(first), responses(second)
    differing = 0
    for name, ids in found.items():
        other = expected[name]
        if ids == other:
            continue
        differing += 1
        at = next(i for i in range(len(ids)) if ids[: i + 1] != other[: i + 1])
        uniform = float(uniforms(key, [name], sampling.max_new_tokens)[0, at])
        cumulative = distribution(policy, [*context[name[0]], *ids[:at]], sampling.temperature).cumsum(0)
        assert float((cumulative - uniform).abs().min()) <= MARGIN, f"{name} differs at token {at}"
    return differing


@torch.no_grad()
def distribution(policy: Role, ids: Sequence[int], temperature: float) -> torch.Tensor:
    """Probabilities of the next token, float64 [vocab]."""
    hidden = hidden_states(policy, TokenRows.of([(ids, [])]))[-1]
    return (policy.network.unembedding_weight @ hidden / temperature).double().softmax(0)
