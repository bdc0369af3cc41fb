"""An engine whose rollouts bring the states below the first adapter, for everything that follows to start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tightrope.models.lower_layers import require_layers
from tightrope.models.packed_forward import with_lower_states
from tightrope.models.roles import Role
from tightrope.protocols import RolloutEngine
from tightrope.types import Prompt, Rollout, SampleKey, Sampling


class EngineWithLowerStates:
    """Raises TightropeError for an architecture whose layers cannot be passed over."""

    def __init__(self, engine: RolloutEngine, policy: Role, token_budget: int | None) -> None:
        require_layers(policy.network)
        self._engine = engine
        self._policy = policy
        self._token_budget = token_budget

    def generate(
        self, prompts: Sequence[Prompt], samples_per_prompt: int, sampling: Sampling, key: SampleKey
    ) -> Rollout:
        rollout = self._engine.generate(prompts, samples_per_prompt, sampling, key)
        network = self._policy.network
        layer = network.lowest_layer(self._policy.adapter)
        return replace(rollout, rows=with_lower_states(network, layer, rollout.rows, self._token_budget))
