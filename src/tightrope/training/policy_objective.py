"""The objective of an online algorithm: one pass of the policy (and critic), then the algorithm's loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tightrope.models.packed_forward import action_values, token_logprobs
from tightrope.models.roles import Roles
from tightrope.protocols import Algorithm
from tightrope.types import Experience, Loss, PolicyOutput


class PolicyObjective:
    def __init__(self, algorithm: Algorithm, roles: Roles) -> None:
        self._algorithm = algorithm
        self._roles = roles

    def counts(self, batch: Experience) -> Mapping[str, int]:
        return self._algorithm.counts(batch)

    def loss(self, batch: Experience) -> Loss:
        return self._algorithm.loss(self.forward(batch), batch)

    def forward(self, batch: Experience) -> PolicyOutput:
        roles, temperature = self._roles, batch.rollout.temperature
        assert roles.policy is not None
        head_role = roles.critic if roles.shared_trunk else None
        output = token_logprobs(roles.policy, batch.rows, temperature, with_entropy=True, with_values=head_role)
        if roles.critic is not None and not roles.shared_trunk:
            output = replace(output, values=action_values(roles.critic, batch.rows))
        return output
