"""The seams: what a part must offer to be replaced by another (GPU, two processes, vLLM, a test double)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from typing_extensions import Self

from tightrope.records import Action, Finding, StepRecord, Tracker
from tightrope.types import (
    Experience,
    Loss,
    PolicyOutput,
    Prompt,
    Rollout,
    Sample,
    SampleKey,
    Sampling,
    Scores,
    UpdateReport,
)

State = dict[str, Any]
"""JSON values and tensors under string keys, nested at will: what a checkpoint can hold."""


class Stateful(Protocol):
    """Anything that changes during a run. Each is registered in the run's state tree, so that resume is exact."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class PromptSource(Protocol):
    """A stateless sampler over prompts: the batch is a function of (seed, position)."""

    def next_batch(self) -> Sequence[Prompt]: ...


class RolloutEngine(Protocol):
    """Draws responses and tells the exact log-prob of each token under the distribution it was drawn from."""

    def generate(
        self, prompts: Sequence[Prompt], samples_per_prompt: int, sampling: Sampling, key: SampleKey
    ) -> Rollout: ...


class RewardSource(Protocol):
    """Text in, one finite number a sample out."""

    def score(self, samples: Sequence[Sample]) -> Sequence[float]: ...


class Judge(Protocol):
    """Rewards, reference log-probs and values of a rollout."""

    def score(self, rollout: Rollout) -> Scores: ...


class Algorithm(Protocol):
    """What tells PPO, RLOO and their like apart: how credit is assigned, and the loss."""

    def credit(self, rollout: Rollout, scores: Scores) -> Experience: ...

    def counts(self, batch: Experience) -> Mapping[str, int]:
        """The global count of each loss term, known before any forward pass."""
        ...

    def loss(self, output: PolicyOutput, batch: Experience) -> Loss: ...


class Batch(Protocol):
    """What a learner can split: minibatches by ``select``, microbatches by tokens."""

    def __len__(self) -> int: ...

    def select(self, chosen: Sequence[int], /) -> Self: ...

    def microbatches(self, token_budget: int | None, /) -> Iterator[Self]: ...


BatchT = TypeVar("BatchT", bound=Batch)
ConsumedT = TypeVar("ConsumedT", bound=Batch, contravariant=True)


class Objective(Protocol[ConsumedT]):
    """A loss on a batch. ``counts`` gives the global count of each term before any forward pass."""

    def counts(self, batch: ConsumedT) -> Mapping[str, int]: ...

    def loss(self, batch: ConsumedT) -> Loss: ...


class Guardian(Protocol):
    """Reads each record and says what to do; never touches a tensor."""

    def review(self, record: StepRecord) -> tuple[Sequence[Finding], Sequence[Action]]: ...


class CheckpointStore(Protocol):
    """Atomic, verified checkpoints of a run's state tree."""

    def save(self, step: int, state: Mapping[str, State]) -> Path:
        """Raises CheckpointMissed when the disk does not take it and the run may go on without."""
        ...

    def load_latest(self) -> tuple[int, Mapping[str, State]] | None:
        """The newest checkpoint that verifies; invalid ones are kept under a name that says why."""
        ...


class Journal(Protocol):
    """Every change of the run that was not plain training, one event each, replayed on resume."""

    def append(self, step: int, kind: str, reason: str, source: str, value: float | None = None) -> None:
        """``source`` is person, guardian, controller, schedule or run."""
        ...


class SampleSink(Protocol):
    """Receives what was generated at a step, with its scores, for people to read."""

    def keep(self, step: int, attempt: int, rollout: Rollout, scores: Scores, split: str) -> None:
        """``split`` is train or probe."""
        ...


class Display(Tracker, SampleSink, Protocol):
    """Somebody who watches: sees each record, and the samples of each step and probe."""


class Workers(Protocol):
    """Where the learner's sums are added up: one process, or many."""

    def sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The same numbers added over all ranks."""
        ...

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...


class Learner(Protocol[ConsumedT]):
    """Minibatches, microbatches, gradients and optimizer steps for one batch."""

    def update(self, batch: ConsumedT) -> UpdateReport: ...
