"""Is a response a function of its prompt and its own random numbers alone, with the trainer's log-probs?"""

from __future__ import annotations

import pytest
import torch

from tests.rollouts import differing_draws, engine_of, policy_of, prompts_of, responses
from tests.tiny import tiny_gpt2, tiny_llama
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.models.load import load_tokenizer
from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import online_roles
from tightrope.rollout.local_engine import LocalEngine
from tightrope.types import SampleKey, Sampling, TokenRows

KEY = SampleKey(1, 0, 2)
SAMPLING = Sampling(1.0, 24, (1, 9, 17))
TINY_FP32 = 1e-5  # two orders of summation in float32; the tiny models were measured at 4e-6


@pytest.fixture(scope="module", params=[tiny_llama, tiny_gpt2], ids=["llama", "gpt2"])
def folder(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("models") / request.param.__name__)


@pytest.fixture(scope="module")
def together(folder):
    return engine_of(folder).generate(prompts_of(folder, repeat=3), 2, SAMPLING, KEY)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_sampler_and_trainer_agree_on_every_logprob(folder, temperature):  # B05, B09, B29
    policy = policy_of(folder)
    engine = LocalEngine(policy, load_tokenizer(folder), lambda: 0)
    rollout = engine.generate(prompts_of(folder, repeat=3), 2, Sampling(temperature, 24, (1, 9, 17)), KEY)
    assert set(rollout.finish_reason) == {"stop", "length"}
    trainer = token_logprobs(policy, rollout.rows, temperature).logprobs
    torch.testing.assert_close(rollout.behaviour_logprobs, trainer, rtol=0, atol=TINY_FP32)


def test_sampler_agrees_with_transformers_own_forward(folder):
    from transformers import AutoModelForCausalLM

    rollout = engine_of(folder).generate(prompts_of(folder), 1, SAMPLING, KEY)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    for i in range(rollout.n_sequences):
        sequence, actions = rollout.rows.sequence(i), rollout.rows.actions(i)
        with torch.no_grad():
            logprobs = model(input_ids=sequence[None]).logits[0].log_softmax(-1)
        expected = logprobs[-len(actions) - 1 : -1].gather(1, actions[:, None])[:, 0]
        begin, end = rollout.rows.action_offsets[i : i + 2].tolist()
        torch.testing.assert_close(rollout.behaviour_logprobs[begin:end], expected, rtol=0, atol=TINY_FP32)


@pytest.mark.parametrize("composition", ["alone", "pairs", "shuffled", "budget 1", "budget 90", "budget 400"])
def test_neighbours_do_not_change_what_is_drawn(folder, together, composition):
    prompts = prompts_of(folder, repeat=3)
    budget = int(composition.split()[1]) if composition.startswith("budget") else None
    sizes = {"alone": 1, "pairs": 2}
    size = sizes.get(composition, len(prompts))
    order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(0)).tolist()
    ordered = [prompts[i] for i in order] if composition == "shuffled" else prompts
    engine, policy = engine_of(folder, budget), policy_of(folder)
    parts = [engine.generate(ordered[start : start + size], 2, SAMPLING, KEY) for start in range(0, len(ordered), size)]
    differing = sum(differing_draws(policy, prompts, SAMPLING, KEY, together, part) for part in parts)
    assert differing <= together.rows.n_actions // 1000  # a response differs from its first other draw on


def test_the_same_composition_gives_the_same_bits(folder, together):
    again = engine_of(folder).generate(prompts_of(folder, repeat=3), 2, SAMPLING, KEY)
    assert responses(again) == responses(together)
    assert torch.equal(again.behaviour_logprobs, together.behaviour_logprobs)
    assert again.responses == together.responses


def test_samples_of_one_prompt_are_the_samples_drawn_one_by_one(folder, together):
    prompts = prompts_of(folder, repeat=3)
    more = engine_of(folder).generate(prompts, 3, SAMPLING, KEY)
    assert sorted(responses(more)) == [(i, sample) for i in range(len(prompts)) for sample in range(3)]
    shared = more.select([i for i, sample in enumerate(more.sample_index.tolist()) if sample < 2])
    assert differing_draws(policy_of(folder), prompts, SAMPLING, KEY, together, shared) == 0


@pytest.mark.parametrize("key", [SampleKey(1, 1, 2), SampleKey(1, 0, 3), SampleKey(2, 0, 2)])
def test_a_new_attempt_step_or_seed_draws_other_samples(folder, together, key):
    other = engine_of(folder).generate(prompts_of(folder, repeat=3), 2, SAMPLING, key)
    same = sum(a == b for a, b in zip(responses(other).values(), responses(together).values(), strict=True))
    assert same <= 2  # a response of one token may repeat by chance


def test_a_short_prompt_beside_a_long_one_is_scored_as_alone(folder):  # B09: learned positions
    policy = policy_of(folder)
    short, long = ([5, 6], [7, 8, 9]), (list(range(10, 40)), [11, 12])
    beside = token_logprobs(policy, TokenRows.of([short, long]), 1.0).logprobs[:3]
    alone = token_logprobs(policy, TokenRows.of([short]), 1.0).logprobs
    torch.testing.assert_close(beside, alone, rtol=0, atol=TINY_FP32)


@pytest.mark.parametrize(("dtype", "move", "bound"), [(torch.float32, 0.01, TINY_FP32), (torch.float64, 0.1, 1e-9)])
def test_the_sampler_uses_the_policys_adapter_as_it_is_now(folder, dtype, move, bound):  # B57
    """The large move is tested in float64 alone: it makes GPT-2's inner activations 30 times as large (4.7 to 133), so
    that float32 rounds at 9e-5 although the final norm brings the logits back to their size; float64 gives 3e-13."""
    model = ModelSection(name=folder, device="cpu", lora=LoraSection(rank=2))
    roles = online_roles(model, critic=None, reward_model=None, needs_reference=True, seed=0)
    assert roles.policy is not None and roles.reference is not None
    roles.policy.network.model.to(dtype)
    engine = LocalEngine(roles.policy, load_tokenizer(folder), lambda: 0)
    start = engine.generate(prompts_of(folder), 1, SAMPLING, KEY)
    with torch.no_grad():
        for parameter in roles.parameters["policy"].values():
            parameter.add_(move)
        moved = engine.generate(prompts_of(folder), 1, SAMPLING, KEY)
        trainer = token_logprobs(roles.policy, moved.rows, 1.0).logprobs
        reference = token_logprobs(roles.reference, moved.rows, 1.0).logprobs
        start_reference = token_logprobs(roles.reference, start.rows, 1.0).logprobs
    torch.testing.assert_close(moved.behaviour_logprobs, trainer, rtol=0, atol=bound)
    torch.testing.assert_close(start.behaviour_logprobs, start_reference, rtol=0, atol=bound)
    assert float((trainer - reference).abs().max()) > 0.1
