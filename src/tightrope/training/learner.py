"""From a batch to new weights: epochs, minibatches, micro-batches, gradients, optimizer steps.

Sums travel, means are taken once: each micro-batch adds its sum divided by the **global** count of the optimizer
step, so the token budget changes memory and speed, never the result. Non-finite numbers are caught before the
optimizer step, named, and the step is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch

from tightrope.protocols import Batch, BatchT, ConsumedT, Objective, State, Workers
from tightrope.training.optimisers import NamedAdamW
from tightrope.training.seeds import permutation
from tightrope.types import Demonstrations, Loss, UpdateReport

AnyBatchT = TypeVar("AnyBatchT", bound=Batch)


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How one batch becomes optimizer steps.

    ``approx_kl_limit`` nats per action: epochs end when a minibatch's KL between old and new policy exceeds it.
    ``rate_factor`` maps the step to a factor on every learning rate; ``trained`` to the groups that move.
    """

    epochs: int
    minibatches: int
    token_budget: int | None
    rate_factor: Callable[[int], float]
    trained: Callable[[int], Collection[str]]
    seed: int
    approx_kl_limit: float | None = None


class Totals:
    """Running sums and counts of named statistics; a mean is taken once, at the end."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}

    def add(self, stats: Mapping[str, tuple[float, float]]) -> None:
        for name, (total, count) in stats.items():
            self._sums[name] = self._sums.get(name, 0.0) + total
            self._counts[name] = self._counts.get(name, 0.0) + count

    def merge(self, other: Totals) -> None:
        self.add({name: (total, other._counts[name]) for name, total in other._sums.items()})

    def mean(self, name: str) -> float | None:
        count = self._counts.get(name, 0.0)
        return self._sums[name] / count if count else None

    def means(self) -> dict[str, float]:
        return {name: total / self._counts[name] for name, total in self._sums.items() if self._counts[name]}


class Mixing(Objective[Demonstrations], Protocol[ConsumedT]):
    """A second loss on data of its own, in the same optimizer step (training/mixing.py)."""

    def draw(self, step: int, minibatch: ConsumedT, /) -> Demonstrations | None: ...

    def gradients(self, step: int) -> Mapping[str, torch.Tensor] | None: ...

    def share(self, before: Mapping[str, torch.Tensor]) -> dict[str, tuple[float, float]]: ...


class GradientLearner(Generic[BatchT]):
    def __init__(
        self,
        objective: Objective[BatchT],
        optimizers: Mapping[str, NamedAdamW],
        plan: UpdatePlan,
        workers: Workers,
        attempt: Callable[[], int],
        mix: Mixing[BatchT] | None = None,
    ) -> None:
        self._objective = objective
        self._optimizers = optimizers
        self._plan = plan
        self._workers = workers
        self._attempt = attempt
        self._mix = mix
        self.step = 0

    def update(self, batch: BatchT) -> UpdateReport:
        plan, totals, done = self._plan, Totals(), _Done()
        stopped_early = False
        for epoch in range(plan.epochs):
            order = permutation(plan.seed, self._attempt(), self.step, epoch, len(batch))
            for chosen in split_evenly(order, plan.minibatches):
                minibatch_stats = self._optimizer_step(batch.select(chosen), done)
                totals.merge(minibatch_stats)
                if over_limit(minibatch_stats.mean("approx_kl"), plan.approx_kl_limit):
                    stopped_early = True
                    break
            if stopped_early:
                break
        metrics = totals.means() | {"learning_rate_factor": plan.rate_factor(self.step)}
        if stopped_early:
            metrics["stopped_in_epoch"] = float(epoch)
        self.step += 1
        return UpdateReport(metrics, done.steps, done.skipped, tuple(done.nonfinite), stopped_early)

    def _optimizer_step(self, minibatch: BatchT, done: _Done) -> Totals:
        """Gradients of one minibatch and, when all is finite, one step of each trained group."""
        totals = Totals()
        trouble = self._add_gradients(self._objective, minibatch, totals)
        if not trouble and self._mix is not None:
            trouble = self._add_mix(self._mix, minibatch, totals)
        trained = self._plan.trained(self.step)
        if not trouble:
            for name in trained:
                norm = self._optimizers[name].clip_gradients()
                totals.add({f"grad_norm_{name}": (norm, 1.0)})
                if not math.isfinite(norm):
                    broken = self._optimizers[name].nonfinite_gradients()
                    # Gradients that are finite one by one may have a norm that is not, and cannot be clipped then.
                    trouble += [f"gradient of {parameter}" for parameter in broken] or [f"gradient norm of {name}"]
        if trouble:
            done.skipped += 1
            done.nonfinite += [f"step {self.step}: {what}" for what in trouble[:3]]
        else:
            for name in trained:
                self._optimizers[name].step(self._plan.rate_factor(self.step))
            done.steps += 1
        for optimizer in self._optimizers.values():
            optimizer.clear_gradients()
        return Totals() if trouble else totals

    def _add_gradients(self, objective: Objective[AnyBatchT], batch: AnyBatchT, totals: Totals) -> list[str]:
        """Backward through every micro-batch; names the terms that are not finite, and stops at the first."""
        counts = self._workers.sum(objective.counts(batch))
        for microbatch in batch.microbatches(self._plan.token_budget):
            loss = objective.loss(microbatch)
            trouble = nonfinite_terms(loss)
            if trouble:
                return trouble
            scaled_total(loss, counts).backward()
            totals.add(loss.stats)
            totals.add({f"loss_{n}": (float(t.sum.detach()), t.count) for n, t in loss.terms.items()})
        return []

    def _add_mix(self, mix: Mixing[BatchT], minibatch: BatchT, totals: Totals) -> list[str]:
        batch = mix.draw(self.step, minibatch)
        if batch is None:
            return []
        before = mix.gradients(self.step)
        trouble = self._add_gradients(mix, batch, totals)
        if before is not None and not trouble:
            totals.add(mix.share(before))
        return trouble

    def state_dict(self) -> State:
        return {"step": self.step, "optimizers": {name: o.state_dict() for name, o in self._optimizers.items()}}

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the state is of other groups: an optimizer is never silently fresh after a resume."""
        if set(state["optimizers"]) != set(self._optimizers):
            raise ValueError(f"checkpoint trains {sorted(state['optimizers'])}, the run {sorted(self._optimizers)}")
        self.step = state["step"]
        for name, optimizer in self._optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])


@dataclass(slots=True)
class _Done:
    steps: int = 0
    skipped: int = 0
    nonfinite: list[str] = field(default_factory=list[str])


def scaled_total(loss: Loss, counts: Mapping[str, float]) -> torch.Tensor:
    """Σ weight · sum / global count over the terms; a term without items adds nothing."""
    scales = {name: term.weight / counts[name] if counts[name] else 0.0 for name, term in loss.terms.items()}
    return torch.stack([scales[name] * term.sum for name, term in loss.terms.items()]).sum()


def nonfinite_terms(loss: Loss) -> list[str]:
    return [f"{name} loss" for name, term in loss.terms.items() if not bool(torch.isfinite(term.sum))]


def over_limit(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value > limit


def split_evenly(order: list[int], pieces: int) -> list[list[int]]:
    """Consecutive pieces whose sizes differ by at most one; never an empty one.

    >>> split_evenly([0, 1, 2, 3, 4], 2)
    [[0, 1, 2], [3, 4]]
    """
    pieces = min(pieces, len(order))
    short, longer = divmod(len(order), pieces) if pieces else (0, 0)
    result: list[list[int]] = []
    start = 0
    for piece in range(pieces):
        end = start + short + (piece < longer)
        result.append(order[start:end])
        start = end
    return result
