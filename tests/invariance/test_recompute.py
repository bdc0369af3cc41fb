"""With gradient checkpointing: the same numbers and gradients, less memory, the right adapter, no dropout."""

from __future__ import annotations

import json

import pytest
import torch

from tests.tiny import tiny_gpt2, tiny_llama
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.models.backbone import Network
from tightrope.models.load import load_network
from tightrope.models.lora import adapter_parameters, add_adapter
from tightrope.models.packed_forward import hidden_states, token_logprobs
from tightrope.models.roles import Role
from tightrope.types import TokenRows

ROWS = TokenRows.of([([4, 5, 6], [7, 8, 1]), ([9], [10, 11, 12, 13, 1]), ([14, 15], [16])])
MAKERS = {"llama": tiny_llama, "gpt2": tiny_gpt2}


def network_of(tmp_path, family, recompute):
    folder = tmp_path / family
    if not folder.exists():
        MAKERS[family](folder)
        if family == "llama":
            path = folder / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"attention_dropout": 0.1}))
    return load_network(folder, ModelSection(name=folder, gradient_checkpointing=recompute))


def randomised(network: Network, names) -> None:
    for seed, name in enumerate(names):
        add_adapter(network, name, LoraSection(rank=2), seed)
        generator = torch.Generator().manual_seed(seed)
        for parameter in adapter_parameters(network, name).values():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2


def gradients(network: Network, adapters) -> dict[str, torch.Tensor]:
    """One backward pass over a pass of each adapter: when it runs, none of them is active any more."""
    total = torch.zeros(())
    for weight, name in enumerate(adapters, start=1):
        total = total + weight * token_logprobs(Role("policy", network, name), ROWS, 0.9).logprobs.sum()
    total.backward()
    return {name: p.grad.clone() for name, p in network.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("adapters", [(None,), ("policy",), ("policy", "critic")])
def test_gradients_are_the_same(tmp_path, family, adapters):
    found = []
    for recompute in (False, True):
        network = network_of(tmp_path, family, recompute)
        if adapters != (None,):
            randomised(network, adapters)
            network.model.requires_grad_(False)
            for name in adapters:
                for parameter in adapter_parameters(network, name).values():
                    parameter.requires_grad_(True)
        found.append(gradients(network, adapters))
    assert found[0] and set(found[0]) == set(found[1])
    for name, gradient in found[0].items():
        scale = max(1.0, gradient.abs().max().item())
        assert (gradient - found[1][name]).abs().max() <= 1e-6 * scale, name
        assert gradient.abs().sum() > 0 or "k_proj.bias" in name, name


def kept_bytes(network: Network) -> int:
    """Of what the forward pass keeps for the backward pass, weights left out, each piece of memory once."""
    weights = {p.untyped_storage().data_ptr() for p in network.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = hidden_states(Role("policy", network), ROWS)
    del hidden
    return sum(kept.values())


@pytest.mark.parametrize("family", MAKERS)
def test_less_is_kept(tmp_path, family):
    plain, recomputed = (kept_bytes(network_of(tmp_path, family, choice)) for choice in (False, True))
    assert recomputed < plain / 3


def test_each_layer_runs_again_in_the_backward_pass_and_only_there(tmp_path):
    network = network_of(tmp_path, "llama", True)
    calls = []
    layer = network.trunk.get_submodule("layers.1.mlp")
    layer.register_forward_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    gradients(network, [None])
    assert len(calls) == 2
    with torch.no_grad():
        hidden_states(Role("policy", network), ROWS)
    assert len(calls) == 3


@pytest.mark.parametrize("family", MAKERS)
def test_dropout_stays_off(tmp_path, family):
    """Both configs ask for dropout 0.1."""
    network = network_of(tmp_path, family, True)
    for module in network.model.modules():
        assert not isinstance(module, torch.nn.Dropout) or not module.training
    first, second = (hidden_states(Role("policy", network), ROWS) for _ in range(2))
    with torch.no_grad():
        assert torch.equal(first, second) and torch.equal(first, hidden_states(Role("policy", network), ROWS))


@pytest.mark.parametrize("trunk_only", [False, True])
def test_a_copy_recomputes_with_its_own_adapters(tmp_path, trunk_only):
    network = network_of(tmp_path, "llama", True)
    copy = network.trunk_copy() if trunk_only else network.copy()
    randomised(copy, ["critic"])
    hidden_states(Role("critic", copy, "critic"), ROWS).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in adapter_parameters(copy, "critic").values())
    assert all(p.grad is None for p in network.model.parameters())
