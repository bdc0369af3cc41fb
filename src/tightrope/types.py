"""The nouns between two stages: ragged, action-only, immutable.

Axes
    tokens      all token positions of all sequences, back to back
    sequences   one prompt with one response
    actions     the tokens the policy chose, back to back in sequence order

Index convention, used everywhere: log-prob, value, reward and advantage of action *i* sit at index *i*.
``values[i]`` is read at the position that predicts action *i*. The terminal score sits on the last action of a
sequence (its EOS when one was emitted). Nothing is padded, so nothing is masked: lengths say everything, token
ids say nothing. Log-probs are at the sampling temperature. What is exponentiated or summed is float32 or wider.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

FinishReason = Literal["stop", "length"]


def offsets_of(lengths: Sequence[int] | Tensor) -> Tensor:
    """Start of each piece and the end of the last, int64 [pieces + 1].

    >>> offsets_of([3, 0, 2]).tolist()
    [0, 3, 3, 5]
    """
    lengths = torch.as_tensor(lengths, dtype=torch.int64)
    return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])


def integers(x: Tensor) -> list[int]:
    """The numbers of a flat integer tensor; torch leaves the type of ``tolist`` open."""
    return x.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the data set, ready to generate from.

    ``index`` is the row's number in the data set and keys the randomness of its responses; ``row`` is the original
    row with all its columns, handed to reward functions untouched.
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. ``eos_ids`` is the union of every id that ends a response. An id of ``stop_ids``
    ends it too, and stays in its text, at response token number ``stop_after`` (from 0) or later."""

    temperature: float
    max_new_tokens: int
    eos_ids: tuple[int, ...]
    stop_ids: tuple[int, ...] = ()
    stop_after: int = 0


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Names a stream of random numbers. With prompt and sample number it fixes every token of a response."""

    seed: int
    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class LowerStates:
    """What enters layer ``layer`` of the network ``source``, [tokens, hidden]: the same for all roles and epochs where
    nothing below that layer is trained."""

    states: Tensor
    layer: int
    source: object


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Sequences back to back with the positions of their actions.

    ``tokens`` int64 [tokens], ``sequence_offsets`` int64 [sequences + 1], ``action_positions`` int64 [actions]
    (index into ``tokens``, ascending), ``action_offsets`` int64 [sequences + 1].

    Two sequences, prompts of 2 and 1 tokens, responses of 2 and 1:

    >>> rows = TokenRows.of([([5, 6], [7, 8]), ([5], [9])])
    >>> rows.tokens.tolist(), rows.sequence_offsets.tolist()
    ([5, 6, 7, 8, 5, 9], [0, 4, 6])
    >>> rows.action_positions.tolist(), rows.action_offsets.tolist()
    ([2, 3, 5], [0, 2, 3])
    """

    tokens: Tensor
    sequence_offsets: Tensor
    action_positions: Tensor
    action_offsets: Tensor
    lower: LowerStates | None = None
    """Of these tokens, where they were computed already."""

    @staticmethod
    def of(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> TokenRows:
        """From (context ids, action ids) pairs; all ids of the second part are actions."""
        return TokenRows.with_mask(
            [[*context, *actions] for context, actions in pairs],
            [[False] * len(context) + [True] * len(actions) for context, actions in pairs],
        )

    @staticmethod
    def with_mask(sequences: Sequence[Sequence[int]], is_action: Sequence[Sequence[bool]]) -> TokenRows:
        """From sequences and, per token, whether it is an action (chosen by the policy, or trained on)."""
        tokens = torch.tensor([token for sequence in sequences for token in sequence], dtype=torch.int64)
        flags = torch.tensor([flag for row in is_action for flag in row], dtype=torch.bool)
        return TokenRows(
            tokens=tokens,
            sequence_offsets=offsets_of([len(sequence) for sequence in sequences]),
            action_positions=flags.nonzero().flatten(),
            action_offsets=offsets_of([sum(row) for row in is_action]),
        )

    @property
    def n_sequences(self) -> int:
        return len(self.sequence_offsets) - 1

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def n_actions(self) -> int:
        return len(self.action_positions)

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sequence, int64 [sequences]."""
        return self.sequence_offsets.diff()

    @property
    def action_counts(self) -> Tensor:
        """Actions of each sequence, int64 [sequences]."""
        return self.action_offsets.diff()

    def sequence(self, index: int) -> Tensor:
        return self.tokens[self.sequence_offsets[index] : self.sequence_offsets[index + 1]]

    def actions(self, index: int) -> Tensor:
        """Token ids the policy chose in one sequence, int64 [actions of that sequence]."""
        return self.tokens[self.action_positions[self.action_offsets[index] : self.action_offsets[index + 1]]]

    def select(self, sequences: Sequence[int] | Tensor) -> TokenRows:
        """The named sequences, in the order given."""
        chosen = torch.as_tensor(sequences, dtype=torch.int64)
        token_index = spans(self.sequence_offsets, chosen)
        lengths = self.lengths[chosen]
        starts = offsets_of(lengths)
        action_index = spans(self.action_offsets, chosen)
        counts = self.action_counts[chosen]
        shift = (starts[:-1] - self.sequence_offsets[chosen]).repeat_interleave(counts)
        return TokenRows(
            tokens=self.tokens[token_index],
            sequence_offsets=starts,
            action_positions=self.action_positions[action_index] + shift,
            action_offsets=offsets_of(counts),
            lower=None if self.lower is None else replace(self.lower, states=self.lower.states[token_index]),
        )


def spans(offsets: Tensor, chosen: Tensor) -> Tensor:
    """Indices of the chosen pieces of a ragged axis, in the order given.

    >>> spans(torch.tensor([0, 2, 5]), torch.tensor([1, 0])).tolist()
    [2, 3, 4, 0, 1]
    """
    lengths = offsets.diff()[chosen]
    begin = offsets[chosen].repeat_interleave(lengths)
    within = torch.arange(int(lengths.sum())) - offsets_of(lengths)[:-1].repeat_interleave(lengths)
    return begin + within


TOKENS_AT_ONCE = 16_384
"""Of one pass through a network where no config says ``training.token_budget``: memory and speed, never the result."""


def microbatch_indices(lengths: Tensor, token_budget: int | None) -> list[list[int]]:
    """Consecutive sequences whose tokens fit the budget; a longer sequence goes alone. None: all at once.

    >>> microbatch_indices(torch.tensor([3, 3, 3, 9]), 6)
    [[0, 1], [2], [3]]
    """
    if token_budget is None:
        return [list(range(len(lengths)))] if len(lengths) else []
    groups: list[list[int]] = []
    used = 0
    for index, length in enumerate(integers(lengths)):
        if not groups or used + length > token_budget:
            groups.append([])
            used = 0
        groups[-1].append(index)
        used += length
    return groups


@dataclass(frozen=True, slots=True)
class Rollout:
    """Responses of one policy version to a batch of prompts.

    ``rows`` prompts and responses (actions = response tokens, the EOS included when it was sampled);
    ``behaviour_logprobs`` f32 [actions] under the very distribution that was sampled; ``finish_reason``,
    ``responses`` (decoded text without special tokens), ``prompt_index`` int64 (into ``prompts``: the group) and
    ``sample_index`` int64, each [sequences]. Where the critic is a head on the policy's trunk, its ``values`` f32
    [actions] come along, and ``end_values`` f32 [sequences] after the last token of a cut response where they are asked
    for.

    One prompt sampled twice has ``prompt_index`` [0, 0] and ``sample_index`` [0, 1].
    """

    rows: TokenRows
    behaviour_logprobs: Tensor
    finish_reason: tuple[FinishReason, ...]
    responses: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    prompt_index: Tensor
    sample_index: Tensor
    policy_version: int
    temperature: float
    values: Tensor | None = None
    end_values: Tensor | None = None

    @property
    def n_sequences(self) -> int:
        return self.rows.n_sequences

    @property
    def stopped(self) -> Tensor:
        """True where the policy ended its response itself, bool [sequences]."""
        return torch.tensor([reason == "stop" for reason in self.finish_reason], dtype=torch.bool)

    def samples(self) -> list[Sample]:
        """What a reward may see of each sequence."""
        counts = integers(self.rows.action_counts)
        return [
            Sample(self.prompts[prompt], response, reason, count)
            for prompt, response, reason, count in zip(
                integers(self.prompt_index), self.responses, self.finish_reason, counts, strict=True
            )
        ]

    def select(self, sequences: Sequence[int] | Tensor) -> Rollout:
        chosen = torch.as_tensor(sequences, dtype=torch.int64)
        actions = spans(self.rows.action_offsets, chosen)
        return replace(
            self,
            rows=self.rows.select(chosen),
            behaviour_logprobs=self.behaviour_logprobs[actions],
            values=None if self.values is None else self.values[actions],
            end_values=None if self.end_values is None else self.end_values[chosen],
            finish_reason=tuple(self.finish_reason[i] for i in integers(chosen)),
            responses=tuple(self.responses[i] for i in integers(chosen)),
            prompt_index=self.prompt_index[chosen],
            sample_index=self.sample_index[chosen],
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """What a reward sees of one sequence: the original row and text, never the policy's token ids."""

    prompt: Prompt
    response: str
    finish_reason: FinishReason
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Scores:
    """What the judge says about a rollout.

    ``reward`` f32 [sequences] enters the algorithm; ``parts`` name -> f32 [sequences] are what it was made of
    (``raw`` is the reward source's own number). ``ref_logprobs`` and ``values`` f32 [actions] are None when no
    reference or no critic exists; ``policy_logprobs`` f32 [actions] are None when the sampler's own are used.
    """

    reward: Tensor
    parts: Mapping[str, Tensor]
    ref_logprobs: Tensor | None = None
    values: Tensor | None = None
    policy_logprobs: Tensor | None = None
    end_values: Tensor | None = None
    """V after the last action, f32 [sequences]; 0 where the policy ended its response itself."""


@dataclass(frozen=True, slots=True)
class Experience:
    """A rollout with credit assigned to each action: what the learner trains on.

    All tensors f32 [actions]. ``rewards`` hold the KL penalty and, on the last action, the score; ``returns`` and
    ``values`` are None for algorithms without a critic.
    """

    rollout: Rollout
    old_logprobs: Tensor
    rewards: Tensor
    advantages: Tensor
    returns: Tensor | None = None
    values: Tensor | None = None
    ref_logprobs: Tensor | None = None
    stats: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def rows(self) -> TokenRows:
        return self.rollout.rows

    def __len__(self) -> int:
        return self.rollout.n_sequences

    def select(self, sequences: Sequence[int] | Tensor) -> Experience:
        chosen = torch.as_tensor(sequences, dtype=torch.int64)
        actions = spans(self.rows.action_offsets, chosen)
        return replace(
            self,
            rollout=self.rollout.select(chosen),
            old_logprobs=self.old_logprobs[actions],
            rewards=self.rewards[actions],
            advantages=self.advantages[actions],
            returns=None if self.returns is None else self.returns[actions],
            values=None if self.values is None else self.values[actions],
            ref_logprobs=None if self.ref_logprobs is None else self.ref_logprobs[actions],
        )

    def microbatches(self, token_budget: int | None) -> Iterator[Experience]:
        for group in microbatch_indices(self.rows.lengths, token_budget):
            yield self.select(group)


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """A batch of supervised rows: ``rows.action_positions`` are the tokens trained on."""

    rows: TokenRows

    def __len__(self) -> int:
        return self.rows.n_sequences

    def select(self, sequences: Sequence[int] | Tensor) -> Demonstrations:
        return Demonstrations(self.rows.select(sequences))

    def microbatches(self, token_budget: int | None) -> Iterator[Demonstrations]:
        for group in microbatch_indices(self.rows.lengths, token_budget):
            yield self.select(group)


@dataclass(frozen=True, slots=True)
class Preferences:
    """A batch of pairs: sequence 2i of ``rows`` is the chosen and 2i + 1 the rejected answer of pair i.

    ``ref_logprobs`` f32 [2 * pairs]: summed reference log-prob of each answer, None where no reference is needed.
    ``len()`` and ``select`` count pairs, so a pair is never split.
    """

    rows: TokenRows
    ref_logprobs: Tensor | None = None

    def __len__(self) -> int:
        return self.rows.n_sequences // 2

    def select(self, pairs: Sequence[int] | Tensor) -> Preferences:
        chosen = torch.as_tensor(pairs, dtype=torch.int64)
        sequences = torch.stack([2 * chosen, 2 * chosen + 1], dim=1).flatten()
        return Preferences(
            self.rows.select(sequences), None if self.ref_logprobs is None else self.ref_logprobs[sequences]
        )

    def microbatches(self, token_budget: int | None) -> Iterator[Preferences]:
        for group in microbatch_indices(self.rows.lengths.reshape(-1, 2).sum(1), token_budget):
            yield self.select(group)


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """What one forward pass says at the action positions, each f32 [actions]; None where it was not asked for."""

    logprobs: Tensor
    entropy: Tensor | None = None
    values: Tensor | None = None
    end_values: Tensor | None = None
    """V after the last token of each sequence, f32 [sequences]."""


@dataclass(frozen=True, slots=True)
class LossTerm:
    """A **sum** over ``count`` items; the learner divides by the global count of the optimizer step."""

    sum: Tensor
    count: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Loss:
    """Named terms and, for the record, sums of detached statistics with their counts.

    >>> loss = Loss({"policy": LossTerm(torch.tensor(3.0), 4)}, {"clip_fraction": (1.0, 4)})
    >>> loss.terms["policy"].sum.item() / loss.terms["policy"].count
    0.75
    """

    terms: Mapping[str, LossTerm]
    stats: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What the learner did with one batch: means over everything it processed, and what it refused.

    ``nonfinite`` names the tensor, rows and step of each non-finite number that was caught before an optimizer
    step; ``stopped_early`` is True when the target-KL rule ended the epochs.
    """

    metrics: Mapping[str, float]
    optimizer_steps: int
    skipped_steps: int = 0
    nonfinite: tuple[str, ...] = ()
    stopped_early: bool = False
