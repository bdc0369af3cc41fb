"""Do the exchanged layers compute what those of transformers and peft do, in values and gradients?"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.tiny import tiny_family, tiny_llama
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.kernels.products import WIDE_VECTORS
from tightrope.models.backbone import Network
from tightrope.models.layers import OURS, Adapted, GatedMLP, original_layers
from tightrope.models.load import load_network
from tightrope.models.lora import adapter_parameters, add_adapter
from tightrope.models.packed_forward import network_states
from tightrope.types import TokenRows

ROWS = TokenRows.of([([5, 6, 7], [8, 9, 10]), ([11], [5, 6]), ([7, 8, 9, 10, 11], [12])])
TOLERANCE = 1e-5
"""Of numbers around 1, float32."""


def states_and_gradients(network: Network, parameters: dict[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    states = network_states(network, ROWS)
    weights = torch.linspace(-1, 1, states.numel()).view_as(states)
    grads = torch.autograd.grad((states * weights).sum(), list(parameters.values()), allow_unused=True)
    return {"states": states.detach()} | {
        name: grad for name, grad in zip(parameters, grads, strict=True) if grad is not None
    }


def require_alike(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        share = float((value - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1.0))
        assert share < TOLERANCE, name


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2", "gemma2"])
def test_a_whole_trunk_gives_its_own_numbers_and_gradients(family, tmp_path) -> None:
    network = load_network(tiny_family(family, tmp_path / "base"), ModelSection(name="base"))
    parameters = dict(network.trunk.named_parameters())
    found = states_and_gradients(network, parameters)
    with original_layers(network.model):
        assert not any(isinstance(module, OURS) for module in network.model.modules())
        expected = states_and_gradients(network, parameters)
    assert any(isinstance(module, OURS) for module in network.model.modules())
    require_alike(found, expected)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_an_adapter_gives_pefts_numbers_and_gradients(family, tmp_path) -> None:
    network = adapted(tiny_family(family, tmp_path / "base"))
    parameters = adapter_parameters(network, "policy")
    with network.using("policy"):
        found = states_and_gradients(network, parameters)
        with original_layers(network.model):
            expected = states_and_gradients(network, parameters)
    assert len(found) == len(parameters) + 1
    require_alike(found, expected)


def test_an_adapter_can_be_off_and_its_base_can_be_trained(tmp_path) -> None:
    network = adapted(tiny_llama(tmp_path / "base"))
    with torch.no_grad():
        off = network_states(network, ROWS)
        assert not torch.allclose(off, on(network), atol=1e-3)
        plain = Network(AutoModelForCausalLM.from_pretrained(tmp_path / "base", attn_implementation="tightrope"))
        torch.testing.assert_close(off, network_states(plain, ROWS), rtol=0, atol=TOLERANCE)
    layer = next(module for module in network.trunk.modules() if isinstance(module, Adapted))
    layer.base_layer.weight.requires_grad_(True)
    on(network).sum().backward()
    assert layer.base_layer.weight.grad is not None


@pytest.mark.parametrize("lora", [False, True])
def test_a_gated_layer_keeps_two_tensors_of_its_inner_size(lora, tmp_path) -> None:
    folder = tiny_llama(tmp_path / "base")
    network = adapted(folder) if lora else load_network(folder, ModelSection(name="base"))
    (layer, *_) = [module for module in network.trunk.modules() if isinstance(module, GatedMLP)]
    inner, kept = network.config.intermediate_size, set[int]()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if (tensor.shape[-1] == inner and tensor.shape[0] == 1 and tensor.dim() == 3) or tensor.shape == (5, inner):
            kept.add(tensor.data_ptr())
        return tensor

    x = torch.randn(1, 5, network.hidden_size, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), using(network, lora):
        layer(x)
    product_is_kept = not lora or not WIDE_VECTORS  # down's own weight gradient needs it, and so does peft's layer
    assert len(kept) == (3 if product_is_kept else 2)


def using(network: Network, lora: bool) -> AbstractContextManager[None]:
    return network.using("policy") if lora else nullcontext()


def on(network: Network) -> torch.Tensor:
    with network.using("policy"):
        return network_states(network, ROWS)


def adapted(folder: Path) -> Network:
    network = load_network(folder, ModelSection(name="base"))
    network.model.requires_grad_(False)
    add_adapter(network, "policy", LoraSection(rank=4, alpha=8.0), seed=1)
    make = torch.Generator().manual_seed(2)
    for parameter in adapter_parameters(network, "policy").values():
        parameter.data.copy_(torch.randn(parameter.shape, generator=make) / 5)
        parameter.requires_grad_(True)
    return network
