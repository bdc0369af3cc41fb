"""Does one batch become the same weights however it is cut, and never a step on numbers that are not finite?

A toy objective stands in for a model: item i costs weight_i x (parameter - target_i)^2.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from tightrope.parallel.single import SingleProcess
from tightrope.training.learner import GradientLearner, Totals, UpdatePlan, scaled_total, split_evenly
from tightrope.training.optimisers import GroupOptions, NamedAdamW
from tightrope.training.seeds import permutation
from tightrope.types import Loss, LossTerm, microbatch_indices

OPTIONS = GroupOptions(learning_rate=0.1, betas=(0.9, 0.999), eps=1e-5, weight_decay=0.0, max_grad_norm=1e9)


@dataclass(frozen=True)
class Rows:
    """Items in rows of different length; ``poison`` is added to a row's loss."""

    items: tuple[tuple[float, ...], ...]
    poison: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def select(self, sequences: Sequence[int]) -> Rows:
        return Rows(
            tuple(self.items[i] for i in sequences), tuple(self.poison[i] for i in sequences) if self.poison else ()
        )

    def microbatches(self, token_budget: int | None) -> Iterator[Rows]:
        for group in microbatch_indices(torch.tensor([len(row) for row in self.items]), token_budget):
            yield self.select(group)

    @property
    def flat(self) -> Tensor:
        return torch.tensor([x for row in self.items for x in row], dtype=torch.float64)


@dataclass
class Toy:
    """Two groups of parameters: the policy follows the items, the critic their double."""

    policy: nn.Parameter
    critic: nn.Parameter
    approx_kl: list[float] = field(default_factory=list)
    forwards: int = 0

    def counts(self, batch: Rows) -> Mapping[str, int]:
        return {"policy": len(batch.flat), "value": len(batch.flat)}

    def loss(self, batch: Rows) -> Loss:
        self.forwards += 1
        items = batch.flat
        policy = (self.policy - items).square().sum() + sum(batch.poison)
        value = (self.critic - 2 * items).square().sum()
        stats = {"seen": (float(len(items)), len(items))}
        if self.approx_kl:
            stats["approx_kl"] = (self.approx_kl[min(self.forwards, len(self.approx_kl)) - 1] * len(items), len(items))
        terms = {"policy": LossTerm(policy, len(items)), "value": LossTerm(value, len(items), weight=0.5)}
        return Loss(terms, stats)


ROWS = Rows(((1.0, 2.0), (3.0,), (0.5, 0.5, 4.0, -2.0), (7.0,), (1.0, -1.0)))


def both(step: int) -> Collection[str]:
    return ("policy", "critic")


def learner_of(
    *,
    epochs: int = 2,
    minibatches: int = 2,
    token_budget: int | None = None,
    trained=both,
    limit: float | None = None,
    options: Mapping[str, GroupOptions] | None = None,
    factor=lambda step: 1.0,
    approx_kl: Sequence[float] = (),
) -> tuple[GradientLearner[Rows], Toy]:
    toy = Toy(nn.Parameter(torch.zeros((), dtype=torch.float64)), nn.Parameter(torch.zeros((), dtype=torch.float64)))
    toy.approx_kl = list(approx_kl)
    options = options or {"policy": OPTIONS, "critic": OPTIONS}
    optimizers = {
        "policy": NamedAdamW({"p": toy.policy}, options["policy"]),
        "critic": NamedAdamW({"c": toy.critic}, options["critic"]),
    }
    plan = UpdatePlan(epochs, minibatches, token_budget, factor, trained, seed=0, approx_kl_limit=limit)
    return GradientLearner(toy, optimizers, plan, SingleProcess(), lambda: 0), toy


def weights(toy: Toy) -> list[float]:
    return [toy.policy.item(), toy.critic.item()]


# the global count


@pytest.mark.parametrize("token_budget", [1, 2, 3, 4, 7, 100])
def test_the_token_budget_changes_nothing(token_budget) -> None:
    whole, whole_toy = learner_of()
    parts, parts_toy = learner_of(token_budget=token_budget)
    reports = [whole.update(ROWS), parts.update(ROWS)]
    assert weights(parts_toy) == pytest.approx(weights(whole_toy), abs=1e-9)
    assert reports[0].metrics == pytest.approx(reports[1].metrics, abs=1e-9)
    assert reports[0].optimizer_steps == reports[1].optimizer_steps == 4
    assert parts_toy.forwards >= whole_toy.forwards


def test_each_term_is_divided_by_its_own_global_count_and_weighted() -> None:
    terms = {"policy": LossTerm(torch.tensor(8.0), 8), "value": LossTerm(torch.tensor(6.0), 2, weight=0.5)}
    assert scaled_total(Loss(terms), {"policy": 16, "value": 4}).item() == 8 / 16 + 0.5 * 6 / 4


def test_a_batch_without_items_is_legal() -> None:
    learner, toy = learner_of(epochs=1, minibatches=1)
    report = learner.update(Rows(((), ())))
    assert weights(toy) == [0.0, 0.0]
    assert report.skipped_steps == 0
    assert "loss_policy" not in report.metrics


def test_reported_losses_are_means_over_everything_processed() -> None:
    learner, _ = learner_of(epochs=1, minibatches=1, token_budget=1)
    report = learner.update(ROWS)
    items = ROWS.flat
    assert report.metrics["loss_policy"] == pytest.approx(float(items.square().mean()))
    assert report.metrics["loss_value"] == pytest.approx(float((2 * items).square().mean()))
    assert report.metrics["seen"] == 1.0
    assert report.metrics["grad_norm_policy"] == pytest.approx(2 * float(items.mean()))


# numbers that are not finite


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_named_and_changes_no_byte(poison) -> None:
    learner, toy = learner_of(epochs=1, minibatches=1, token_budget=1)
    report = learner.update(Rows(ROWS.items, (0.0, 0.0, poison, 0.0, 0.0)))
    assert weights(toy) == [0.0, 0.0]
    assert (report.optimizer_steps, report.skipped_steps) == (0, 1)
    assert report.nonfinite == ("step 0: policy loss",)
    assert toy.policy.grad is None
    assert learner.state_dict()["optimizers"] == {"policy": {}, "critic": {}}
    assert "loss_policy" not in report.metrics
    assert toy.forwards == permutation(0, 0, 0, 0, 5).index(2) + 1  # nothing is computed for a step that is lost


def test_a_gradient_that_is_not_finite_is_named_by_parameter_and_stops_every_group() -> None:
    learner, toy = learner_of(epochs=1, minibatches=1)
    toy.critic.register_hook(lambda gradient: gradient * math.nan)
    report = learner.update(ROWS)
    assert weights(toy) == [0.0, 0.0]
    assert report.nonfinite == ("step 0: gradient of c",)


def test_the_next_minibatch_goes_on_after_a_skipped_one() -> None:
    learner, toy = learner_of(epochs=1, minibatches=5)
    report = learner.update(Rows(ROWS.items, (0.0, 0.0, math.nan, 0.0, 0.0)))
    assert (report.optimizer_steps, report.skipped_steps) == (4, 1)
    assert weights(toy) != [0.0, 0.0]
    assert all(math.isfinite(value) for value in report.metrics.values())


# target KL


def test_epochs_end_when_the_policy_has_moved_too_far() -> None:
    learner, _ = learner_of(epochs=4, minibatches=1, limit=0.1, approx_kl=[0.0, 0.05, 0.2, 0.0])
    report = learner.update(ROWS)
    assert report.stopped_early
    assert report.optimizer_steps == 3
    assert report.metrics["stopped_in_epoch"] == 2.0


@pytest.mark.parametrize(("limit", "kl"), [(None, 9.0), (0.1, 0.1)])
def test_epochs_go_on_without_a_limit_and_at_it(limit, kl) -> None:
    learner, _ = learner_of(epochs=3, minibatches=1, limit=limit, approx_kl=[kl])
    report = learner.update(ROWS)
    assert not report.stopped_early
    assert report.optimizer_steps == 3
    assert "stopped_in_epoch" not in report.metrics


# groups


def test_only_the_trained_groups_move() -> None:
    learner, toy = learner_of(epochs=1, minibatches=1, trained=lambda step: ("critic",) if step < 1 else both(step))
    learner.update(ROWS)
    assert toy.policy.item() == 0.0
    assert toy.critic.item() != 0.0
    assert toy.policy.grad is None
    learner.update(ROWS)
    assert toy.policy.item() != 0.0


def test_each_group_is_clipped_by_its_own_norm() -> None:
    """Plain SGD would show the norm; Adam's first moment does: it is (1 - 0.9) x the clipped gradient."""
    clipped = GroupOptions(0.1, (0.9, 0.999), 1e-5, 0.0, max_grad_norm=0.5)
    learner, _ = learner_of(epochs=1, minibatches=1, options={"policy": clipped, "critic": OPTIONS})
    report = learner.update(ROWS)
    state = learner.state_dict()["optimizers"]
    mean = float(ROWS.flat.mean())
    assert float(state["policy"]["p"]["exp_avg"]) == pytest.approx(-0.1 * 0.5, rel=1e-5)
    assert float(state["critic"]["c"]["exp_avg"]) == pytest.approx(-0.1 * 0.5 * 4 * mean)
    assert report.metrics["grad_norm_policy"] == pytest.approx(2 * mean)


def test_the_schedule_scales_the_rate_of_every_group() -> None:
    """Adam's first step moves by the learning rate."""
    learner, toy = learner_of(epochs=1, minibatches=1, factor=lambda step: 0.5 if step == 0 else 0.0)
    report = learner.update(ROWS)
    assert weights(toy) == pytest.approx([0.05, 0.05], rel=1e-4)
    assert report.metrics["learning_rate_factor"] == 0.5
    before = weights(toy)
    learner.update(ROWS)
    assert weights(toy) == before


# state


def test_a_restored_learner_goes_on_as_if_never_interrupted() -> None:
    straight, straight_toy = learner_of()
    for _ in range(4):
        straight.update(ROWS)
    first, first_toy = learner_of()
    first.update(ROWS)
    first.update(ROWS)
    second, second_toy = learner_of()
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        second_toy.policy.copy_(first_toy.policy)
        second_toy.critic.copy_(first_toy.critic)
    second.update(ROWS)
    second.update(ROWS)
    assert second.step == 4
    assert weights(second_toy) == weights(straight_toy)


def test_state_without_one_of_the_optimizers_is_refused() -> None:
    learner, _ = learner_of()
    learner.update(ROWS)
    state = learner.state_dict()
    del state["optimizers"]["critic"]
    with pytest.raises(ValueError, match="critic"):
        learner_of()[0].load_state_dict(state)


# helpers


@pytest.mark.parametrize("n", range(12))
@pytest.mark.parametrize("pieces", [1, 2, 3, 8])
def test_pieces_keep_everything_in_order_and_differ_by_one(n, pieces) -> None:
    found = split_evenly(list(range(n)), pieces)
    assert [item for piece in found for item in piece] == list(range(n))
    assert all(found)
    assert len(found) == min(n, pieces)
    sizes = [len(piece) for piece in found]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_permutation_is_a_function_of_where_the_run_stands() -> None:
    base = (0, 0, 3, 1, 64)
    assert permutation(*base) == permutation(*base)
    assert sorted(permutation(*base)) == list(range(64))
    for changed in ((1, 0, 3, 1, 64), (0, 1, 3, 1, 64), (0, 0, 4, 1, 64), (0, 0, 3, 2, 64)):
        assert permutation(*changed) != permutation(*base)
    assert permutation(0, 0, 0, 0, 0) == []


def test_totals_take_the_mean_once() -> None:
    totals, other = Totals(), Totals()
    totals.add({"a": (8.0, 8), "b": (0.0, 0)})
    other.add({"a": (6.0, 2)})
    totals.merge(other)
    assert totals.means() == {"a": 1.4}
    assert totals.mean("b") is None
    assert totals.mean("c") is None
