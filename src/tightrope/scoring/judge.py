"""What is known about a rollout before credit is assigned: rewards, reference log-probs, values.

No gradient, in micro-batches of ``token_budget`` tokens whose results are put back in order; neither the budget nor
the order of the rows changes a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tightrope.config.schedule import Now, at_start
from tightrope.config.schema import RewardSection
from tightrope.models.packed_forward import token_logprobs, values_and_end_values
from tightrope.models.roles import Roles
from tightrope.protocols import RewardSource
from tightrope.scoring.checked import NonFiniteReward as NonFiniteReward
from tightrope.scoring.checked import checked_rewards
from tightrope.scoring.composite import CompositeReward, Verdict
from tightrope.scoring.normaliser import RewardNormaliser, RunningScale
from tightrope.scoring.shaping import shape_rewards
from tightrope.types import Rollout, Sample, Scores, TokenRows, microbatch_indices


@dataclass(frozen=True)
class Judging:
    """What a judge does beyond the usual: bootstrap cut responses, scale rewards (and learn the scale from what it
    sees, which the probe must not), follow schedules."""

    bootstrap: bool = False
    scale: RunningScale | None = None
    learns_scale: bool = False
    now: Now = at_start


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
        judging: Judging | None = None,
    ) -> None:
        self._source = source
        self._normaliser = normaliser
        self._reward = reward
        self._roles = roles
        self._temperature = temperature
        self._token_budget = token_budget
        self._judging = Judging() if judging is None else judging

    @torch.no_grad()
    def score(self, rollout: Rollout) -> Scores:
        """Raises NonFiniteReward for a reward that is not a finite number, RewardSourceFailed where one of several
        sources gives none, ValueError for another temperature."""
        if rollout.temperature != self._temperature:
            raise ValueError(f"rollout at temperature {rollout.temperature}, judge at {self._temperature}")
        samples = rollout.samples()
        how = self._judging
        verdict = verdict_of(self._source, samples, how.learns_scale)
        raw, lengths = verdict.raw, rollout.rows.action_counts
        if how.scale is not None and how.learns_scale:
            how.scale.see(raw if self._reward.normalise == "off" else self._normaliser.apply(raw))
        reward, parts = shape_rewards(raw, lengths, rollout.stopped, self._normaliser, self._reward, how.scale, how.now)
        if verdict.cap is not None:
            reward, parts["gate"] = capped(reward, verdict.cap)
        parts |= {name: part.float() for name, part in verdict.parts.items()}
        policy_logprobs, values, end_values = self._policy_and_values(rollout)
        if end_values is not None:
            end_values = torch.where(rollout.stopped, 0.0, end_values) if how.bootstrap else None
        return Scores(
            reward=reward,
            parts=parts,
            ref_logprobs=self._reference_logprobs(rollout.rows),
            values=values,
            policy_logprobs=policy_logprobs,
            end_values=end_values,
        )

    def _reference_logprobs(self, rows: TokenRows) -> Tensor | None:
        reference = self._roles.reference
        if reference is None:
            return None
        return torch.cat([token_logprobs(reference, part, self._temperature).logprobs for part in self._parts(rows)])

    def _policy_and_values(self, rollout: Rollout) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Values and those after the end, of the rollout where it brings them; else with a shared trunk the policy's
        log-probs too, which the same pass gives."""
        roles, rows = self._roles, rollout.rows
        if roles.critic is None or rollout.values is not None:
            return None, rollout.values, rollout.end_values
        if not roles.shared_trunk:
            pairs = [values_and_end_values(roles.critic, part) for part in self._parts(rows)]
            return None, torch.cat([values for values, _ in pairs]), torch.cat([ends for _, ends in pairs])
        assert roles.policy is not None
        logprobs: list[Tensor] = []
        values: list[Tensor] = []
        ends: list[Tensor] = []
        for part in self._parts(rows):
            output = token_logprobs(roles.policy, part, self._temperature, with_values=roles.critic)
            assert output.values is not None and output.end_values is not None
            logprobs.append(output.logprobs)
            values.append(output.values)
            ends.append(output.end_values)
        return torch.cat(logprobs), torch.cat(values), torch.cat(ends)

    def _parts(self, rows: TokenRows) -> Iterator[TokenRows]:
        for group in microbatch_indices(rows.lengths, self._token_budget):
            yield rows.select(group)


def verdict_of(source: RewardSource, samples: Sequence[Sample], learns_scale: bool) -> Verdict:
    """Of one source, or of several with their own values."""
    if isinstance(source, CompositeReward):
        return source.judged(samples, learns_scale)
    return Verdict(
        torch.tensor(checked_rewards(source.score(samples), samples, "reward"), dtype=torch.float64), {}, None
    )


def capped(reward: Tensor, cap: Tensor) -> tuple[Tensor, Tensor]:
    """Reward after the gates, and what they took; f32 [sequences].

    >>> capped(torch.tensor([3.0, 2.0]), torch.tensor([-1.0, float("inf")]).double())
    (tensor([-1.,  2.]), tensor([-4.,  0.]))
    """
    held = torch.minimum(reward.double(), cap).to(reward.dtype)
    return held, held - reward
