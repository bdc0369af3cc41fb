"""What is known about a rollout before credit is assigned: rewards, reference log-probs, values.

No gradient, in micro-batches of ``token_budget`` tokens whose results are put back in order; neither the budget nor
the order of the rows changes a number.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tightrope.config.schema import RewardSection
from tightrope.models.packed_forward import action_values, token_logprobs
from tightrope.models.roles import Roles
from tightrope.protocols import RewardSource
from tightrope.scoring.checked import NonFiniteReward as NonFiniteReward
from tightrope.scoring.checked import checked_rewards
from tightrope.scoring.normaliser import RewardNormaliser
from tightrope.scoring.shaping import shape_rewards
from tightrope.types import Rollout, Scores, TokenRows, microbatch_indices


class LocalJudge:
    """``reward`` says how the raw number is shaped; ``temperature`` is the rollout's."""

    def __init__(
        self,
        source: RewardSource,
        normaliser: RewardNormaliser,
        reward: RewardSection,
        roles: Roles,
        temperature: float,
        token_budget: int | None = None,
    ) -> None:
        self._source = source
        self._normaliser = normaliser
        self._reward = reward
        self._roles = roles
        self._temperature = temperature
        self._token_budget = token_budget

    @torch.no_grad()
    def score(self, rollout: Rollout) -> Scores:
        """Raises NonFiniteReward for a reward that is not a finite number, ValueError for another temperature."""
        if rollout.temperature != self._temperature:
            raise ValueError(f"rollout at temperature {rollout.temperature}, judge at {self._temperature}")
        samples = rollout.samples()
        raw = torch.tensor(checked_rewards(self._source.score(samples), samples, "reward"), dtype=torch.float64)
        lengths = rollout.rows.action_counts
        reward, parts = shape_rewards(raw, lengths, rollout.stopped, self._normaliser, self._reward)
        policy_logprobs, values = self._policy_and_values(rollout.rows)
        return Scores(
            reward=reward,
            parts=parts,
            ref_logprobs=self._reference_logprobs(rollout.rows),
            values=values,
            policy_logprobs=policy_logprobs,
        )

    def _reference_logprobs(self, rows: TokenRows) -> Tensor | None:
        reference = self._roles.reference
        if reference is None:
            return None
        return torch.cat([token_logprobs(reference, part, self._temperature).logprobs for part in self._parts(rows)])

    def _policy_and_values(self, rows: TokenRows) -> tuple[Tensor | None, Tensor | None]:
        """Values, and with a shared trunk the policy's log-probs, which the same pass gives."""
        roles = self._roles
        if roles.critic is None:
            return None, None
        if not roles.shared_trunk:
            return None, torch.cat([action_values(roles.critic, part) for part in self._parts(rows)])
        assert roles.policy is not None
        logprobs: list[Tensor] = []
        values: list[Tensor] = []
        for part in self._parts(rows):
            output = token_logprobs(roles.policy, part, self._temperature, with_values=roles.critic)
            assert output.values is not None
            logprobs.append(output.logprobs)
            values.append(output.values)
        return torch.cat(logprobs), torch.cat(values)

    def _parts(self, rows: TokenRows) -> Iterator[TokenRows]:
        for group in microbatch_indices(rows.lengths, self._token_budget):
            yield rows.select(group)
