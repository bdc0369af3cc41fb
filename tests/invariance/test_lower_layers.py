"""Do passes that start above the frozen layers give the numbers of whole passes, and a whole run its run?"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.runs import built_run, run_quietly, tiny_config, tiny_files
from tests.tiny import SHAPES, tiny_family, tiny_llama
from tightrope.assemble import online
from tightrope.config.errors import TightropeError
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.models.families import PACKED
from tightrope.models.heads import zero_head
from tightrope.models.load import load_network
from tightrope.models.lora import adapter_layers, adapter_parameters, add_adapter, read_shape
from tightrope.models.packed_forward import token_logprobs, with_lower_states
from tightrope.models.roles import Role
from tightrope.training.loop import StopSignals
from tightrope.types import TokenRows

ROWS = TokenRows.of([([5, 6, 7], [8, 9, 10]), ([11], [5, 6]), ([7, 8, 9, 10, 11], [12])])
TOLERANCE = {"rtol": 0, "atol": 1e-5}
"""Float32: the lower layers ran with other neighbours, so sums may come in another order."""


def policy_of(folder, from_layer: int = 1) -> Role:
    network = load_network(folder, ModelSection(name=str(folder)))
    network.model.requires_grad_(False)
    add_adapter(network, "policy", LoraSection(rank=4, alpha=8.0, from_layer=from_layer), seed=1)
    make = torch.Generator().manual_seed(2)
    for parameter in adapter_parameters(network, "policy").values():
        parameter.data.copy_(torch.randn(parameter.shape, generator=make) / 5)
        parameter.requires_grad_(True)
    return Role("policy", network, "policy", zero_head(network.hidden_size, network.device))


@pytest.mark.parametrize("family", [name for name in SHAPES if name in PACKED])
def test_upper_layers_alone_give_values_and_gradients_of_the_whole(family, tmp_path) -> None:
    policy = policy_of(tiny_family(family, tmp_path / "base"))
    parameters = adapter_parameters(policy.network, "policy")
    assert all(".0." not in name for name in parameters)
    found = []
    for rows in (ROWS, with_lower_states(policy.network, 1, ROWS, token_budget=7)):
        output = token_logprobs(policy, rows.select([2, 0]), 0.7, with_entropy=True)
        gradients = torch.autograd.grad(output.logprobs.sum(), list(parameters.values()))
        reference = token_logprobs(replace(policy, adapter=None), rows, 0.7).logprobs.detach()
        found.append([output.logprobs.detach(), output.entropy.detach(), reference, *gradients])
    for whole, upper in zip(*found, strict=True):
        torch.testing.assert_close(upper, whole, **TOLERANCE)


def test_the_lower_layers_are_really_passed_over(tmp_path) -> None:
    policy = policy_of(tiny_llama(tmp_path / "base"))
    rows = with_lower_states(policy.network, 1, ROWS, token_budget=None)
    before = token_logprobs(policy, rows, 1.0).logprobs.detach()
    with torch.no_grad():
        for parameter in policy.network.layers[0].parameters():
            parameter.zero_()
    torch.testing.assert_close(token_logprobs(policy, rows, 1.0).logprobs.detach(), before, rtol=0, atol=0)
    assert (token_logprobs(policy, ROWS, 1.0).logprobs - before).abs().max() > 0.1


def test_states_below_an_adapter_or_of_another_network_are_not_used(tmp_path) -> None:
    policy, other = (policy_of(tiny_llama(tmp_path / name), from_layer) for name, from_layer in (("a", 1), ("b", 0)))
    broken = replace(with_lower_states(policy.network, 1, ROWS, None).lower, states=torch.full((13, 32), 9.0))
    rows = replace(ROWS, lower=broken)
    torch.testing.assert_close(token_logprobs(other, rows, 1.0).logprobs, token_logprobs(other, ROWS, 1.0).logprobs)
    rows = replace(ROWS, lower=replace(broken, source=other.network))  # its adapter begins below
    torch.testing.assert_close(token_logprobs(other, rows, 1.0).logprobs, token_logprobs(other, ROWS, 1.0).logprobs)


def test_a_run_with_saved_states_is_the_run_without(tmp_path, monkeypatch) -> None:
    changes = {"model": {"lora": {"rank": 4, "alpha": 8.0, "from_layer": 1}}}
    config = tiny_config("ppo", tiny_files(tmp_path), tmp_path / "run", steps=2, changes=changes)
    saved = built_run(config, tmp_path / "saved")
    told = metrics_of(saved)
    monkeypatch.setattr(online, "EngineWithLowerStates", lambda engine, policy, budget: engine)
    whole = built_run(config, tmp_path / "whole")
    for mine, theirs in zip(told, metrics_of(whole), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert any(record.get("approx_kl", 0.0) > 0 for record in told)
    assert (
        saved.result.network.computed["trained"].operations < 0.7 * whole.result.network.computed["trained"].operations
    )


def metrics_of(built) -> list[dict[str, float]]:
    built.prepare()
    return [dict(record.metrics) for record in built.steps(StopSignals())]


def test_the_adapter_is_exported_as_peft_reads_it(tmp_path) -> None:
    changes = {"model": {"lora": {"rank": 4, "alpha": 8.0, "from_layer": 1}}}
    files = tiny_files(tmp_path)
    done = run_quietly("ppo", tiny_config("ppo", files, tmp_path / "run", steps=1, changes=changes))
    assert done.export is not None
    assert read_shape(done.export / "adapter").from_layer == 1
    base = AutoModelForCausalLM.from_pretrained(files.model)
    model = PeftModel.from_pretrained(base, done.export / "adapter")
    names = {name for name, _ in model.named_parameters() if "lora_" in name}
    assert names and all(".layers.1." in name for name in names)
    merged = AutoModelForCausalLM.from_pretrained(done.export)
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(model(ids).logits, merged(ids).logits, **TOLERANCE)


def test_an_adapter_of_another_role_may_reach_further_down(tmp_path) -> None:
    policy = policy_of(tiny_llama(tmp_path / "base"))
    alone = token_logprobs(policy, ROWS, 1.0).logprobs.detach()
    add_adapter(policy.network, "reward", LoraSection(rank=4), seed=3)
    for parameter in adapter_parameters(policy.network, "reward").values():
        parameter.data.fill_(0.1)
    rows = with_lower_states(policy.network, 1, ROWS, None)
    torch.testing.assert_close(token_logprobs(policy, rows, 1.0).logprobs.detach(), alone, **TOLERANCE)
    reward = replace(policy, adapter="reward")
    whole = token_logprobs(reward, ROWS, 1.0).logprobs
    assert (whole - alone).abs().max() > 0.01
    torch.testing.assert_close(token_logprobs(reward, rows, 1.0).logprobs, whole, rtol=0, atol=0)


def test_what_cannot_be_is_refused(tmp_path) -> None:
    with pytest.raises(TightropeError, match="the model has 2 layers"):
        policy_of(tiny_llama(tmp_path / "base"), from_layer=2)


def test_only_upper_layers_carry_the_adapter(tmp_path) -> None:
    network = policy_of(tiny_llama(tmp_path / "base", layers=3), from_layer=2).network
    assert {path.split(".")[1] for path in adapter_layers(network, "policy")} == {"2"}
