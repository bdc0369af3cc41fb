"""Does every architecture give here what transformers gives for each row alone: values, gradients, and while sampling?

Tolerance 1e-5 throughout: float32 in another order of summation.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from tests.tiny import SHAPES, tiny_family
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.models.export import RewardFacts, classifier_of, export_policy, export_reward
from tightrope.models.families import PACKED
from tightrope.models.load import load_tokenizer
from tightrope.models.packed_forward import sequence_scores, token_logprobs
from tightrope.models.roles import Role, offline_roles, online_roles
from tightrope.rollout.local_engine import LocalEngine
from tightrope.types import Prompt, SampleKey, Sampling, TokenRows

CLOSE = {"rtol": 0, "atol": 1e-5}
TEMPERATURE = 0.7
# Shorter and longer than the windows of 4, both sides of a bucket's edge, the whole context; 0 is a real token.
PAIRS = [
    ([5, 6, 7], [8, 9]),
    ([5], [1]),
    ([6] * 20, [10, 11, 0, 12, 1, 13, 14, 15, 16, 17, 18, 19, 1]),
    ([20, 21, 22, 23, 24, 25, 26], list(range(30, 40))),
    (list(range(3, 40)), list(range(20, 47))),
]
ROWS = TokenRows.of(PAIRS)


@pytest.fixture(scope="module", params=SHAPES)
def folder(request, tmp_path_factory):
    return tiny_family(request.param, tmp_path_factory.mktemp("families") / request.param)


def policy_in(folder) -> Role:
    policy = offline_roles(ModelSection(name=folder), "sft", 0).policy
    assert policy is not None
    return policy


def plain(folder) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def logprobs_alone(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Each row by itself, without any filling; the shift is written out here once more."""
    logprobs, entropies = [], []
    for before, after in PAIRS:
        ids = torch.tensor([before + after])
        logp = (model(input_ids=ids).logits[0].float() / TEMPERATURE).log_softmax(-1)
        logp = logp[len(before) - 1 : -1]
        logprobs.append(logp.gather(1, torch.tensor(after)[:, None]).squeeze(1))
        entropies.append(-(logp.exp() * logp).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


def logprobs_padded(model: PreTrainedModel) -> Tensor:
    """One batch, filled up on the right, with a mask."""
    longest = max(len(a) + len(b) for a, b in PAIRS)
    ids = torch.tensor([a + b + [2] * (longest - len(a) - len(b)) for a, b in PAIRS])
    mask = torch.tensor([[1] * (len(a) + len(b)) + [0] * (longest - len(a) - len(b)) for a, b in PAIRS])
    logp = (model(input_ids=ids, attention_mask=mask).logits.float() / TEMPERATURE).log_softmax(-1)
    chosen = logp[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)
    return torch.cat([row[len(a) - 1 : len(a) + len(b) - 1] for row, (a, b) in zip(chosen, PAIRS, strict=True)])


def test_values_and_gradients_equal_each_row_alone(folder):
    policy, model = policy_in(folder), plain(folder)
    assert policy.network.family.packed == (policy.network.family.name in PACKED)
    expected, expected_entropy = logprobs_alone(model)
    found = token_logprobs(policy, ROWS, TEMPERATURE, with_entropy=True)
    assert found.entropy is not None
    torch.testing.assert_close(found.logprobs, expected, **CLOSE)
    torch.testing.assert_close(found.entropy, expected_entropy, **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(found.logprobs, logprobs_padded(model), **CLOSE)
    weights = torch.linspace(-1.0, 1.0, len(expected))
    (weights * expected + 0.3 * expected_entropy).mean().backward()
    (weights * found.logprobs + 0.3 * found.entropy).mean().backward()
    reference = dict(model.named_parameters())
    embedding = model.get_input_embeddings()
    for name, parameter in policy.network.model.named_parameters():
        grad = reference[name].grad
        assert parameter.grad is not None and grad is not None
        # transformers never trains the pad row of some families (id 0, which PAIRS contains as a real token).
        skip = embedding.padding_idx is not None and reference[name] is embedding.weight
        rows = slice(1, None) if skip else slice(None)
        torch.testing.assert_close(parameter.grad[rows], grad[rows], **CLOSE, msg=name)


@torch.no_grad()
def test_neither_order_nor_neighbours_matter(folder):
    policy = policy_in(folder)
    together = token_logprobs(policy, ROWS, TEMPERATURE).logprobs
    alone = [token_logprobs(policy, ROWS.select([i]), TEMPERATURE).logprobs for i in range(len(PAIRS))]
    torch.testing.assert_close(together, torch.cat(alone), **CLOSE)
    backwards = token_logprobs(policy, TokenRows.of(PAIRS[::-1]), TEMPERATURE).logprobs
    pieces = backwards.split([len(b) for _, b in PAIRS[::-1]])
    torch.testing.assert_close(together, torch.cat(pieces[::-1]), **CLOSE)


@torch.no_grad()
def test_the_sampler_says_what_the_trainer_says(folder):
    """Prompts of different length, answers far beyond the windows, some of which end and leave the batch early."""
    policy = policy_in(folder)
    engine = LocalEngine(policy, load_tokenizer(folder), lambda: 0)
    prompts = [Prompt(i, tuple(ids), "", {}) for i, ids in enumerate([[5], [6, 7, 8, 9, 10, 11], [12] * 20])]
    sampling = Sampling(max_new_tokens=24, temperature=TEMPERATURE, eos_ids=tuple(range(1, 5)))
    rollout = engine.generate(prompts, 4, sampling, SampleKey(0, 0, 1))
    lengths = rollout.rows.lengths
    assert len(set(lengths.tolist())) > 4, "all answers are equally long: nothing left the batch"
    expected = token_logprobs(policy, rollout.rows, TEMPERATURE).logprobs
    torch.testing.assert_close(rollout.behaviour_logprobs, expected, **CLOSE)


@pytest.mark.parametrize("kind", ["opt", "gpt_neox", "bloom", "mistral", "gemma2"])
@torch.no_grad()
def test_the_sampler_says_what_transformers_generate_says(kind, tmp_path):
    folder = tiny_family(kind, tmp_path / kind)
    engine = LocalEngine(policy_in(folder), load_tokenizer(folder), lambda: 0)
    prompt = [6, 7, 8, 9, 10, 11]
    near_greedy = Sampling(max_new_tokens=12, temperature=1e-3, eos_ids=(1,))
    found = engine.generate([Prompt(0, tuple(prompt), "", {})], 1, near_greedy, SampleKey(0, 0, 1)).rows.tokens.tolist()
    expected: Any = plain(folder)
    expected = expected.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=1)
    assert found == expected[0].tolist()


@pytest.mark.parametrize("lora", [False, True])
@torch.no_grad()
def test_exports_load_in_transformers_and_say_the_same(folder, lora, tmp_path):
    section = ModelSection(name=folder, lora=LoraSection(rank=2, alpha=4.0) if lora else None)
    policy, reward = offline_roles(section, "sft", 0).policy, offline_roles(section, "rm", 0).reward
    assert policy is not None and reward is not None
    for role in (policy, reward):
        for name, parameter in role.network.model.named_parameters():
            if "lora_B" in name or (not lora and name.endswith("weight")):
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    export_policy(policy, folder, tmp_path / "policy", "ppo")
    torch.testing.assert_close(
        token_logprobs(policy, ROWS, TEMPERATURE).logprobs, logprobs_alone(plain(tmp_path / "policy"))[0], **CLOSE
    )
    facts = RewardFacts(fingerprints=[0.0], mean=0.0, std=1.0, held_out_pairs=0, accuracy=None)
    export_reward(reward, folder, tmp_path / "reward", facts)
    scores = sequence_scores(reward, ROWS)
    if classifier_of(reward).endswith("ForSequenceClassification"):
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward", attn_implementation="eager")
        model.eval().config.pad_token_id = None
        expected = torch.cat([model(input_ids=torch.tensor([a + b])).logits[0] for a, b in PAIRS])
        torch.testing.assert_close(scores, expected, **CLOSE)
    loaded = online_roles(section, critic=None, reward_model=tmp_path / "reward", needs_reference=False, seed=0).reward
    assert loaded is not None
    torch.testing.assert_close(sequence_scores(loaded, ROWS), scores, **CLOSE)
