"""The policy of the proof: a table from (prompt, position, token before) to logits, as a transformers model.

It runs wherever a packed family runs. That it knows its prompt it owes to the library's own attention: every token
attends to the first of its sequence, whose id names the prompt. So positions, packing, caches and who sees whom are on
the path that is proven, although nothing in attention is learned.

    state    one-hot [tokens, prompts · positions · vocabulary]; the hidden state
    logits   output matrix · hidden: its columns are the table. A critic's head on the same states is a table too.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from benchmarks.proof.problem import Array, Problem
from tightrope.config.schema import LoraSection
from tightrope.models.attention import Layout, Scores
from tightrope.models.backbone import Network
from tightrope.models.families import Family
from tightrope.models.heads import zero_head
from tightrope.models.lora import adapter_layers
from tightrope.models.roles import (
    Groups,
    Role,
    Roles,
    body_parameters,
    finished,
    head_parameters,
    policy_of,
    policy_parameters,
    reference_of,
    separate_critic,
)

FIRST = 60.0
"""Attention score of a sequence's first token; the others have 0, which is a weight of e⁻⁶⁰."""
DROPOUT = 0.1
"""As published checkpoints have it. The library switches it off; whoever does not, shows."""


class TableConfig(PretrainedConfig):
    model_type = "table"
    max_position_embeddings: int = 0


def config_of(problem: Problem) -> TableConfig:
    config = TableConfig()
    config.max_position_embeddings = problem.positions
    return config


class TableTrunk(nn.Module):
    """``mix``: a matrix [states, states], zero at the start, for adapters to sit on; without adapters there is none."""

    def __init__(self, prompts: int, positions: int, vocabulary: int, with_mix: bool) -> None:
        super().__init__()
        self.prompts, self.positions, self.vocabulary = prompts, positions, vocabulary
        self.states = prompts * positions * vocabulary
        self.dropout = nn.Dropout(DROPOUT)
        self.register_buffer("one_hot", torch.eye(self.states))
        self.mix = nn.Linear(self.states, self.states, bias=False) if with_mix else None
        if self.mix is not None:
            nn.init.zeros_(self.mix.weight)

    def forward(self, input_ids: Tensor, position_ids: Tensor, layout: Layout, use_cache: bool) -> BaseModelOutput:
        is_first = (position_ids == 0).float()[:, None, :, None]  # [rows, one head, length, width 1]
        ids = input_ids.float()[:, None, :, None]
        first = layout.attend(torch.ones_like(ids), is_first, ids, Scores(scale=FIRST))[..., 0, 0]
        prompt = first.round().long().clamp(max=self.prompts - 1)  # seeded faults may show it any token
        index = (prompt * self.positions + position_ids) * self.vocabulary + input_ids
        state = self.dropout(nn.functional.embedding(index, self.get_buffer("one_hot")))
        return BaseModelOutput(last_hidden_state=state if self.mix is None else state + self.mix(state))  # pyright: ignore[reportArgumentType]


class TableModel(PreTrainedModel):
    config_class = TableConfig
    base_model_prefix = "trunk"

    def __init__(self, problem: Problem, with_mix: bool) -> None:
        super().__init__(config_of(problem))
        self.trunk = TableTrunk(len(problem.prompts), problem.positions, problem.vocabulary, with_mix)
        self.output = nn.Linear(self.trunk.states, problem.vocabulary, bias=False)
        table = torch.from_numpy(problem.reference).reshape(self.trunk.states, problem.vocabulary)
        self.output.weight = nn.Parameter(table.T.float().contiguous())

    def get_input_embeddings(self) -> nn.Module:
        """Tokens are read one-hot; what is asked of this is its shape, [vocabulary, states]."""
        return self.output

    def get_output_embeddings(self) -> nn.Module:
        return self.output


def table_roles(
    problem: Problem, critic: Literal["shared", "separate"] | None, lora: LoraSection | None, seed: int
) -> Roles:
    """The roles as a run loads them from a folder, over a table."""
    network = Network(TableModel(problem, with_mix=lora is not None), family=Family("table", packed=True))
    reference = reference_of(network, lora is not None)
    policy = policy_of(network, lora, seed)
    groups: Groups = {"policy": policy_parameters(policy)}
    value = None
    if critic == "shared":
        value = Role("critic", network, policy.adapter, zero_head(network.hidden_size, network.device))
        groups["critic"] = head_parameters(value)
    elif lora is not None and critic == "separate":
        value = separate_critic(policy, None, lora, seed)
        groups["critic"] = body_parameters(value)
    elif critic == "separate":
        value = Role("critic", network.copy(), None, zero_head(network.hidden_size, network.device))
        groups["critic"] = head_parameters(value)
    return finished(Roles(policy, reference, value, parameters=groups, shared_trunk=critic == "shared"))


def policy_logits(problem: Problem, roles: Roles) -> Array:
    """The whole table of the policy, read from its weights and not through the network."""
    assert roles.policy is not None and isinstance(roles.policy.network.model, TableModel)
    table = roles.policy.network.model.output.weight.detach().double().numpy()
    if roles.policy.adapter is not None:
        table = table + table @ adapter_matrix(roles.policy)
    shape = (len(problem.prompts), problem.positions, problem.vocabulary, problem.vocabulary)
    return np.ascontiguousarray(table.T).reshape(shape)


def adapter_matrix(role: Role) -> Array:
    """What the adapter adds to the mix: alpha / rank · B A."""
    assert role.adapter is not None
    layer = adapter_layers(role.network, role.adapter)["mix"]
    weights = [part[role.adapter].weight for part in (layer.lora_A, layer.lora_B)]
    a, b = (weight.detach().double().numpy() for weight in weights if isinstance(weight, Tensor))
    return (layer.lora_alpha[role.adapter] / layer.r[role.adapter]) * (b @ a)


def value_table(problem: Problem, roles: Roles) -> Array:
    """V of each (prompt, position, token), read from the head's weights; for a critic without an adapter."""
    assert roles.critic is not None and roles.critic.adapter is None and roles.critic.head is not None
    head = roles.critic.head
    assert head.bias is not None
    table = head.weight.detach().double().numpy() + float(head.bias.detach())
    return table.reshape(len(problem.prompts), problem.positions, problem.vocabulary)
