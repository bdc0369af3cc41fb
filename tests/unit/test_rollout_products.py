"""Does decoding compute what the network computes, and leave it as it was?"""

from __future__ import annotations

import pytest
import torch

from tests.tiny import SHAPES, tiny_family
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.kernels.products import WIDE_VECTORS
from tightrope.models.load import load_tokenizer
from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import offline_roles, role_hash
from tightrope.models.weight_layout import by_inputs, lay_out_frozen
from tightrope.rollout import decode_products as module
from tightrope.rollout.decode_products import decode_products
from tightrope.rollout.local_engine import LocalEngine
from tightrope.types import Prompt, SampleKey, Sampling

CLOSE = {"rtol": 0, "atol": 1e-5}  # float32 in another order of summation
TOKENS = 40
PROMPTS = [Prompt(i, tuple(ids), "", {}) for i, ids in enumerate([[5], [6, 7, 8, 9, 10, 11], [12] * 20])]
needs_wide_vectors = pytest.mark.skipif(not WIDE_VECTORS, reason="the library is not used here")


@pytest.fixture(scope="module", params=SHAPES)
def folder(request, tmp_path_factory):
    return tiny_family(request.param, tmp_path_factory.mktemp("families") / request.param)


def policy_in(folder, lora: bool, scale: float = 0.05):
    roles = offline_roles(
        ModelSection(name=folder, device="cpu", lora=LoraSection(rank=2, alpha=3.0) if lora else None), "sft", 0
    )
    assert roles.policy is not None
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in roles.policy.network.model.named_parameters():
            if "lora_B" in name:
                parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return roles.policy


def own_forwards(policy):
    return [name for name, layer in policy.network.model.named_modules() if "forward" in vars(layer)]


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("small", [0, 2**30], ids=["onednn", "mkl"])
def test_every_architecture_samples_with_the_trainers_logprobs(folder, lora, small, monkeypatch):
    monkeypatch.setattr(module, "SMALL", small)
    policy = policy_in(folder, lora)
    before, hash_before = own_forwards(policy), role_hash(policy)
    engine = LocalEngine(policy, load_tokenizer(folder), lambda: 0)
    rollout = engine.generate(PROMPTS, 3, Sampling(0.7, TOKENS, tuple(range(1, 4))), SampleKey(0, 0, 1))
    assert rollout.rows.n_actions > 100
    expected = token_logprobs(policy, rollout.rows, 0.7).logprobs
    torch.testing.assert_close(rollout.behaviour_logprobs, expected, **CLOSE)
    assert own_forwards(policy) == before
    assert role_hash(policy) == hash_before


@needs_wide_vectors
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_every_matrix_is_exchanged_within_and_none_after_an_error(tmp_path, lora):
    network = policy_in(tiny_family("llama", tmp_path / "llama"), lora).network
    matrices = 7 * 2 + 1  # of two layers, and the output matrix
    with network.using("policy" if lora else None), pytest.raises(KeyError), decode_products(network, TOKENS):
        inside = [name for name, layer in network.model.named_modules() if "forward" in vars(layer)]
        raise KeyError
    assert len(inside) == matrices
    assert not any("forward" in vars(layer) for layer in network.model.modules())


@needs_wide_vectors
def test_a_few_tokens_are_drawn_without_copies(tmp_path):
    policy = policy_in(tiny_family("llama", tmp_path / "llama"), lora=False)
    with decode_products(policy.network, 8):
        assert own_forwards(policy) == []


@needs_wide_vectors
def test_what_is_frozen_lies_by_inputs_and_what_is_trained_does_not(tmp_path):
    folder = tiny_family("llama", tmp_path / "llama")
    for lora in (False, True):
        network = policy_in(folder, lora).network
        for name, parameter in network.trunk.named_parameters():
            if name.endswith("proj.weight") or "base_layer" in name:
                assert parameter.t().is_contiguous() == lora, name
            else:
                assert parameter.is_contiguous(), name


@needs_wide_vectors
def test_the_layout_changes_no_number_and_is_made_once(tmp_path):
    policy = policy_in(tiny_family("gpt2", tmp_path / "gpt2"), lora=False)
    policy.network.model.requires_grad_(False)
    policy.network.trunk.add_module("extra", torch.nn.Linear(3, 5).requires_grad_(False))
    before = {name: parameter.clone() for name, parameter in policy.network.model.named_parameters()}
    lay_out_frozen(policy.network)
    after = dict(policy.network.model.named_parameters())
    places = {name: parameter.data_ptr() for name, parameter in after.items()}
    assert all(torch.equal(before[name], after[name]) for name in before)
    lay_out_frozen(policy.network)
    assert {name: parameter.data_ptr() for name, parameter in after.items()} == places
    assert by_inputs(after["transformer.extra.weight"]).data_ptr() == after["transformer.extra.weight"].data_ptr()
