"""Do roles on one shared backbone compute what separate models compute, and does training touch only what it may?

Tolerance 1e-5: merged and unmerged weights sum in another order; 3e-6 was measured.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny import tiny_gpt2, tiny_llama
from tightrope.config.schema import LoraSection, ModelSection
from tightrope.models.export import RewardFacts, export_policy, export_reward
from tightrope.models.lora import adapter_layers
from tightrope.models.packed_forward import action_values, sequence_scores, token_logprobs
from tightrope.models.roles import Role, Roles, offline_roles, online_roles
from tightrope.types import TokenRows

LORA = LoraSection(rank=4, alpha=8.0)
ROWS = TokenRows.of([([5, 6, 7], [8, 9, 1]), ([5], [9]), ([6] * 20, [10, 11, 12, 1])])
FACTS = RewardFacts(fingerprints=[0.0], mean=0.0, std=1.0, held_out_pairs=0, accuracy=None)


def shake(parameters, seed: int) -> None:
    """A start that is not zero, so that an adapter that is left out is noticed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def section(folder: Path, lora: bool) -> ModelSection:
    return ModelSection(name=folder, lora=LORA if lora else None)


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def base(request, tmp_path_factory) -> Path:
    make = tiny_llama if request.param == "llama" else tiny_gpt2
    return make(tmp_path_factory.mktemp("base") / request.param)


@pytest.fixture(scope="module")
def rewards(base, tmp_path_factory) -> dict[bool, Path]:
    """A reward model trained with (True) and without (False) adapters."""
    found = {}
    for lora in (True, False):
        reward = offline_roles(section(base, lora), "rm", seed=3)
        assert reward.reward is not None
        shake(reward.parameters["reward"], seed=4)
        found[lora] = tmp_path_factory.mktemp("reward") / "export"
        export_reward(reward.reward, base, found[lora], FACTS)
    return found


def full_roles(base: Path, rewards, lora: bool, critic) -> Roles:
    return online_roles(section(base, lora), critic=critic, reward_model=rewards[lora], needs_reference=True, seed=0)


def four(roles: Roles) -> tuple[Role, Role, Role, Role]:
    assert roles.policy and roles.reference and roles.critic and roles.reward
    return roles.policy, roles.reference, roles.critic, roles.reward


@torch.no_grad()
def test_shared_backbone_equals_separate_merged_models(base, rewards, tmp_path):
    roles = full_roles(base, rewards, True, "separate")
    policy, reference, critic, reward = four(roles)
    assert policy.network is reference.network is critic.network is reward.network
    shake(roles.parameters["policy"], 1)
    shake(roles.parameters["critic"], 2)
    export_policy(policy, base, tmp_path / "policy", "ppo")
    export_reward(Role("reward", critic.network, "critic", critic.head), base, tmp_path / "critic", FACTS)
    alone = offline_roles(section(tmp_path / "policy", False), "sft", 0).policy
    start = offline_roles(section(base, False), "sft", 0).policy
    value = online_roles(
        section(base, False), critic=None, reward_model=tmp_path / "critic", needs_reference=False, seed=0
    ).reward
    merged = online_roles(
        section(base, False), critic=None, reward_model=rewards[True], needs_reference=False, seed=0
    ).reward
    assert alone and start and value and merged and critic.head and critic.head.bias is not None
    close = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(
        token_logprobs(policy, ROWS, 1.0).logprobs, token_logprobs(alone, ROWS, 1.0).logprobs, **close
    )
    torch.testing.assert_close(
        token_logprobs(reference, ROWS, 1.0).logprobs, token_logprobs(start, ROWS, 1.0).logprobs, **close
    )
    torch.testing.assert_close(sequence_scores(reward, ROWS), sequence_scores(merged, ROWS), **close)
    expected = action_values(value, ROWS) + critic.head.bias
    torch.testing.assert_close(action_values(critic, ROWS), expected, **close)
    difference = token_logprobs(policy, ROWS, 1.0).logprobs - token_logprobs(reference, ROWS, 1.0).logprobs
    assert difference.abs().max() > 0.01, "the policy's adapter does nothing"


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_a_step_changes_policy_and_critic_and_nothing_frozen(base, rewards, lora, critic):
    roles = full_roles(base, rewards, lora, critic)
    policy, reference, value, reward = four(roles)
    frozen = roles.frozen_hashes()
    assert set(frozen) == {"reference", "reward"} | ({"backbone"} if lora else set())
    before = {group: [p.detach().clone() for p in named.values()] for group, named in roles.parameters.items()}
    optimizer = torch.optim.AdamW([p for named in roles.parameters.values() for p in named.values()], lr=0.1)
    for _ in range(2):  # LoRA's A moves only once B is not zero, a zero head's trunk only once the head is not
        with torch.no_grad():
            token_logprobs(reference, ROWS, 1.0)
            sequence_scores(reward, ROWS)
        output = token_logprobs(policy, ROWS, 1.0, with_values=value if critic == "shared" else None)
        values = output.values if output.values is not None else action_values(value, ROWS)
        (output.logprobs.sum() + (values - 1.0).square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert roles.frozen_hashes() == frozen
    for group, named in roles.parameters.items():
        for (name, parameter), old in zip(named.items(), before[group], strict=True):
            if name == "lm_head.weight" and group == "critic":
                continue
            assert not torch.equal(parameter, old), f"{group}: {name} did not move"


def test_frozen_hashes_notice_one_changed_bit(base, rewards):
    roles = full_roles(base, rewards, True, "shared")
    _, reference, _, reward = four(roles)
    before = roles.frozen_hashes()
    weight = next(p for name, p in reference.network.model.named_parameters() if "base_layer" in name)
    with torch.no_grad():
        weight.view(torch.int32)[0, 0] ^= 1
    changed = roles.frozen_hashes()
    assert all(changed[name] != before[name] for name in before)
    assert reward.head is not None
    with torch.no_grad():
        reward.head.weight[0] += 1.0
    assert roles.frozen_hashes()["backbone"] == changed["backbone"]
    assert roles.frozen_hashes()["reward"] != changed["reward"]


def test_switching_adapters_never_changes_requires_grad(base, rewards):
    roles = full_roles(base, rewards, True, "separate")
    policy, _, _, reward = four(roles)
    wanted = {id(p) for group in roles.parameters.values() for p in group.values()}
    network = policy.network

    def trainable() -> set[int]:
        return {id(p) for p in network.model.parameters() if p.requires_grad}

    def heads() -> set[int]:
        return {id(p) for name, p in roles.parameters["critic"].items() if name.startswith("head.")}

    assert trainable() == wanted - heads()
    for adapter in ("reward", "critic", None, "policy"):
        with network.using(adapter):
            assert trainable() == wanted - heads()
            with network.using("reward"):
                assert trainable() == wanted - heads()
        assert trainable() == wanted - heads()
    assert reward.head is not None and not reward.head.weight.requires_grad


@torch.no_grad()
def test_using_restores_the_adapter_before_it_even_after_an_error(base, rewards):
    roles = full_roles(base, rewards, True, "shared")
    policy, reference, _, _ = four(roles)
    shake(roles.parameters["policy"], 1)
    expected = token_logprobs(policy, ROWS, 1.0).logprobs
    layer = next(iter(adapter_layers(policy.network, "policy").values()))
    with policy.network.using("policy"):
        with pytest.raises(RuntimeError), policy.network.using("reward"):
            assert layer.active_adapters == ["reward"]
            raise RuntimeError
        assert layer.active_adapters == ["policy"] and not layer.disable_adapters
    assert layer.disable_adapters
    assert torch.equal(token_logprobs(policy, ROWS, 1.0).logprobs, expected)
    with pytest.raises(ValueError, match="no adapter 'polici'"), policy.network.using("polici"):
        pass
    assert not torch.equal(token_logprobs(reference, ROWS, 1.0).logprobs, expected)


@pytest.mark.parametrize("lora", [True, False])
def test_a_separate_critic_starts_as_the_reward_model(base, rewards, lora):
    roles = full_roles(base, rewards, lora, "separate")
    _, _, critic, reward = four(roles)
    with torch.no_grad():
        torch.testing.assert_close(sequence_scores(critic, ROWS), sequence_scores(reward, ROWS), rtol=0, atol=1e-5)
    trained = {p.data_ptr() for p in roles.parameters["critic"].values()}
    assert reward.head is not None and reward.head.weight.data_ptr() not in trained


def test_a_separate_critic_without_reward_model_starts_at_zero(base):
    for lora in (True, False):
        roles = online_roles(section(base, lora), critic="separate", reward_model=None, needs_reference=False, seed=0)
        assert roles.critic is not None and roles.reference is None and roles.reward is None
        assert not bool(action_values(roles.critic, ROWS).any())


def test_a_reward_model_of_another_base_has_its_own_network(base, tmp_path):
    other = tiny_llama(tmp_path / "other", seed=9, hidden=16, heads=2, kv_heads=1)
    reward = offline_roles(section(other, True), "rm", 0).reward
    assert reward is not None
    export_reward(reward, other, tmp_path / "reward", FACTS)
    roles = online_roles(
        section(base, True), critic="separate", reward_model=tmp_path / "reward", needs_reference=True, seed=0
    )
    policy, _, critic, loaded = four(roles)
    assert loaded.network is not policy.network and loaded.adapter is None
    assert critic.network is policy.network and not bool(action_values(critic, ROWS).any())
    with torch.no_grad():
        torch.testing.assert_close(sequence_scores(loaded, ROWS), sequence_scores(reward, ROWS), rtol=0, atol=1e-5)


@pytest.mark.parametrize("lora", [True, False])
def test_building_roles_uses_no_global_random_number(base, rewards, lora):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = full_roles(base, rewards, lora, "separate")
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    two = full_roles(base, rewards, lora, "separate")
    for group, named in one.parameters.items():
        assert list(named) == list(two.parameters[group])
        assert all(torch.equal(p, q) for p, q in zip(named.values(), two.parameters[group].values(), strict=True))
