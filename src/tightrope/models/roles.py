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
from tightrope.models.load import (
    for_training,
    load_network,
    load_reward_head,
    load_trunk,
    read_json,
    reading_weights,
    resolve_model_folder,
)
from tightrope.models.lora import adapter_parameters, add_adapter, copy_adapter, load_adapter, read_shape, shape_of
from tightrope.models.manifest import ADAPTER_FOLDER, base_hash, read_manifest, require_kind, tokenizer_hash
from tightrope.models.weight_layout import lay_out_frozen

ADAPTER_MARK = ".lora_"
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
            role for role in (self.reference, self.reward) if role is not None and role.name not in self.parameters
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
    model, folder = for_training(model), resolve_model_folder(model.name, model.revision)
    reward_folder = None if reward_model is None else resolve_model_folder(reward_model)
    if reward_folder is not None:
        require_kind(reward_folder, "reward")
    network = load_network(folder, model)
    reference = reference_of(network, model.lora is not None) if needs_reference else None
    policy = policy_of(network, model.lora, seed)
    reward = None if reward_folder is None else reward_of(reward_folder, folder, network, model)
    groups: Groups = {"policy": policy_parameters(policy)}
    value = None
    if critic == "shared":
        value = Role("critic", network, policy.adapter, zero_head(network.hidden_size, network.device))
        groups["critic"] = head_parameters(value)
    elif critic == "separate":
        start = reward if reward_folder is not None and same_base(reward_folder, folder) else None
        value = separate_critic(policy, start, model.lora, seed)
        groups["critic"] = body_parameters(value)
    return finished(Roles(policy, reference, value, reward, parameters=groups, shared_trunk=critic == "shared"))


def offline_roles(model: ModelSection, stage: Literal["sft", "rm", "dpo"], seed: int) -> Roles:
    """Roles of a run over a fixed data set."""
    model, folder = for_training(model), resolve_model_folder(model.name, model.revision)
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
    if model.lora is not None and fits_as_adapter(folder, policy_folder):
        adapter = folder / ADAPTER_FOLDER
        with reading_weights(folder):
            add_adapter(network, "reward", read_shape(adapter), seed=0)
            load_adapter(network, "reward", adapter)
        return Role("reward", network, "reward", load_reward_head(folder, network.device))
    return load_reward(folder, model)


def load_policy(folder: Path) -> Role:
    """A finished model to ask, with the device and type that suit this machine."""
    return Role("policy", load_network(folder, ModelSection(name=str(folder))))


def load_reward(folder: Path, model: ModelSection | None = None) -> Role:
    """A reward model in a network of its own. ``model`` says device and type; absent, as for ``load_policy``."""
    model = ModelSection(name=str(folder)) if model is None else model
    own = load_trunk(folder, model.model_copy(update={"gradient_checkpointing": False}))
    return Role("reward", own, None, load_reward_head(folder, own.device))


def fits_as_adapter(folder: Path, policy_folder: Path) -> bool:
    """Was the reward model trained as an adapter on the very weights the policy starts from?"""
    manifest = read_manifest(folder)
    return manifest is not None and manifest.adapter and manifest.base == base_hash(policy_folder)


def separate_critic(policy: Role, start: Role | None, lora: LoraSection | None, seed: int) -> Role:
    """Starts as the reward model ``start`` where there is one of the same base, else as the policy with a zero head."""
    network = policy.network
    if lora is None:
        if start is not None and start.head is not None:
            return Role("critic", start.network.copy(), None, critic_head_from(start.head))
        return Role("critic", network.trunk_copy(), None, zero_head(network.hidden_size, network.device))
    if start is not None and start.network is network and start.adapter is not None and start.head is not None:
        add_adapter(network, "critic", shape_of(network, start.adapter), seed)
        copy_adapter(network, start.adapter, "critic")
        return Role("critic", network, "critic", critic_head_from(start.head))
    add_adapter(network, "critic", lora, seed)
    return Role("critic", network, "critic", zero_head(network.hidden_size, network.device))


def same_base(left: Path, right: Path) -> bool:
    """Can one start as a copy of the other: same architecture and sizes, same tokenizer."""
    configs = [read_json(folder / "config.json") for folder in (left, right)]
    sizes = [[config.get(key) for key in SHAPE_KEYS] for config in configs]
    return sizes[0] == sizes[1] and tokenizer_hash(left) == tokenizer_hash(right)


def policy_parameters(role: Role) -> dict[str, nn.Parameter]:
    """A tied output matrix is the embedding and is listed once."""
    if role.adapter is not None:
        return adapter_parameters(role.network, role.adapter)
    return dict(role.network.model.named_parameters())


def body_parameters(role: Role) -> dict[str, nn.Parameter]:
    """A network of its own (or adapter) and its head."""
    return policy_parameters(role) | head_parameters(role)


def head_parameters(role: Role) -> dict[str, nn.Parameter]:
    assert role.head is not None
    return {f"head.{name}": parameter for name, parameter in role.head.named_parameters()}


def finished(roles: Roles) -> Roles:
    """Gradients for what is listed as trained, and for nothing else."""
    for role in (roles.policy, roles.reference, roles.critic, roles.reward):
        if role is not None:
            role.network.model.requires_grad_(False)
            if role.head is not None:
                role.head.requires_grad_(False)
    for group in roles.parameters.values():
        for parameter in group.values():
            parameter.requires_grad_(True)
    for role in (roles.policy, roles.reference, roles.critic, roles.reward):
        if role is not None:
            lay_out_frozen(role.network)
    return roles


def role_hash(role: Role) -> str:
    """sha256 of every weight the role computes with."""
    weights = {name: parameter for name, parameter in role.network.model.named_parameters() if ADAPTER_MARK not in name}
    if role.adapter is not None:
        weights |= adapter_parameters(role.network, role.adapter)
    if role.head is not None:
        weights |= head_parameters(role)
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
