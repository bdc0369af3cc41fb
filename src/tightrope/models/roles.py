"""Who is who in a run: policy, reference, critic and reward model over as few weights as possible.

Full fine-tuning: every role has a network of its own, but a shared critic, which is a head on the policy's.
LoRA: one frozen backbone carries all roles. The policy is an adapter. The reference is the bare backbone: an SFT result
trained with adapters is exported merged, so the backbone *is* the starting policy; its bytes are hashed. A reward
model sits there as an adapter where it was trained on the same base weights, else it has a network of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from tightrope.config.schema import LoraSection, ModelSection
from tightrope.models.backbone import Network
from tightrope.models.heads import Head, critic_head_from, reward_head, zero_head
from tightrope.models.load import load_network, load_reward_head, load_trunk, read_json, resolve_model_folder
from tightrope.models.lora import adapter_layers, adapter_parameters, add_adapter, copy_adapter, load_adapter, read_shape
from tightrope.models.manifest import base_hash, read_manifest, require_kind, tokenizer_hash

SHAPE_KEYS = ("model_type", "hidden_size", "n_embd", "num_hidden_layers", "n_layer", "vocab_size")
Groups = dict[str, dict[str, nn.Parameter]]


@dataclass(frozen=True)
class Role:
    """A network seen through one adapter (None: the bare backbone), with the head that is read, if any."""

    name: str
    network: Network
    adapter: str | None = None
    head: Head | None = None


@dataclass(frozen=True)
class Roles:
    """``parameters``: what is trained, by group (policy, critic, reward) and stable name. Everything else is frozen."""

    policy: Role | None = None
    reference: Role | None = None
    critic: Role | None = None
    reward: Role | None = None
    parameters: Mapping[str, Mapping[str, nn.Parameter]] = field(default_factory=Groups)
    shared_trunk: bool = False

    def frozen_hashes(self) -> dict[str, str]:
        """sha256 of all weights behind each frozen role, and of the backbone under the adapters: equal at any step."""
        frozen = [
            role
            for role in (self.reference, self.reward)
            if role is not None and role.name not in self.parameters
        ]
        hashes = {role.name: role_hash(role) for role in frozen}
        bodies = [role.network for role in (self.policy, self.reward) if role is not None and role.network.adapters]
        return hashes | ({"backbone": role_hash(Role("backbone", bodies[0]))} if bodies else {})


def online_roles(
    model: ModelSection,
    *,
    critic: Literal["shared", "separate"] | None,
    reward_model: Path | None,
    needs_reference: bool,
    seed: int,
) -> Roles:
    """Roles of a run with rollouts. Raises TightropeError where a folder does not hold what its role needs."""
    folder = resolve_model_folder(model.path)
    reward_folder = None if reward_model is None else resolve_model_folder(reward_model)
    if reward_folder is not None:
        require_kind(reward_folder, "reward")
    network = load_network(folder, model)
    reference = reference_of(network, model.lora is not None) if needs_reference else None
    policy = policy_of(network, model.lora, seed)
    reward = None if reward_folder is None else reward_of(reward_folder, folder, network, model)
    value = None if critic is None else critic_of(critic, policy, reward, model, seed)
    groups: Groups = {"policy": policy_parameters(policy)}
    if value is not None:
        groups["critic"] = head_parameters(value) if critic == "shared" else body_parameters(value)
    return finished(
        Roles(policy, reference, value, reward, parameters=groups, shared_trunk=critic == "shared"),
    )


def offline_roles(model: ModelSection, stage: Literal["sft", "rm", "dpo"], seed: int) -> Roles:
    """Roles of a run over a fixed data set."""
    folder = resolve_model_folder(model.path)
    if stage == "rm":
        network = load_trunk(folder, model)
        adapter = None
        if model.lora is not None:
            adapter = "reward"
            add_adapter(network, adapter, model.lora, seed)
        head = reward_head(network.hidden_size, network.device, seed)
        reward = Role("reward", network, adapter, head)
        return finished(Roles(reward=reward, parameters={"reward": body_parameters(reward)}))
    network = load_network(folder, model)
    reference = reference_of(network, model.lora is not None) if stage == "dpo" else None
    policy = policy_of(network, model.lora, seed)
    return finished(Roles(policy, reference, parameters={"policy": policy_parameters(policy)}))


def reference_of(network: Network, lora: bool) -> Role:
    """The starting policy, before anything is added to it."""
    return Role("reference", network if lora else network.copy())


def policy_of(network: Network, lora: LoraSection | None, seed: int) -> Role:
    if lora is None:
        return Role("policy", network)
    add_adapter(network, "policy", lora, seed)
    return Role("policy", network, "policy")


def reward_of(folder: Path, policy_folder: Path, network: Network, model: ModelSection) -> Role:
    manifest = read_manifest(folder)
    adapter = folder / "adapter"
    if model.lora is not None and manifest is not None and manifest.adapter and adapter.is_dir():
        if manifest.base == base_hash(policy_folder):
            add_adapter(network, "reward", read_shape(adapter), seed=0)
            load_adapter(network, "reward", adapter)
            return Role("reward", network, "reward", load_reward_head(folder, network.device))
    own = load_trunk(folder, model)
    return Role("reward", own, None, load_reward_head(folder, own.device))


def critic_of(
    kind: Literal["shared", "separate"], policy: Role, reward: Role | None, model: ModelSection, seed: int
) -> Role:
    """A separate critic starts from the reward model where both have one base, else from the policy with a zero head."""
    network = policy.network
    if kind == "shared":
        return Role("critic", network, policy.adapter, zero_head(network.hidden_size, network.device))
    if model.lora is None:
        if reward is not None and same_base(reward.network, network):
            assert reward.head is not None
            return Role("critic", reward.network.copy(), None, critic_head_from(reward.head))
        return Role("critic", trunk_copy(network), None, zero_head(network.hidden_size, network.device))
    if reward is not None and reward.network is network and reward.adapter is not None and reward.head is not None:
        add_adapter(network, "critic", shape_of(network, reward.adapter), seed + 1)
        copy_adapter(network, reward.adapter, "critic")
        return Role("critic", network, "critic", critic_head_from(reward.head))
    add_adapter(network, "critic", model.lora, seed + 1)
    return Role("critic", network, "critic", zero_head(network.hidden_size, network.device))
