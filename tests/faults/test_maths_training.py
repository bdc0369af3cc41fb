"""Faults of controllers and of the optimizer step. One test an entry."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tightrope.config.schema import KLSection
from tightrope.maths.controllers import ziegler_step
from tightrope.parallel.single import SingleProcess
from tightrope.training.learner import GradientLearner, UpdatePlan
from tightrope.training.optimisers import GroupOptions, NamedAdamW
from tightrope.types import Demonstrations, Loss, LossTerm, TokenRows

VOCAB = 6


class BigramModel:
    """A table of next-token logits: the smallest policy. Loss: negative log-likelihood of the actions."""

    def __init__(self, poison: float = 0.0) -> None:
        self.table = nn.Parameter(torch.linspace(-1, 1, VOCAB * VOCAB).double().reshape(VOCAB, VOCAB).sin())
        self.poison = poison

    def counts(self, batch: Demonstrations) -> Mapping[str, int]:
        return {"nll": batch.rows.n_actions}

    def loss(self, batch: Demonstrations) -> Loss:
        rows = batch.rows
        before, chosen = rows.tokens[rows.action_positions - 1], rows.tokens[rows.action_positions]
        logprobs = self.table[before].log_softmax(-1).gather(1, chosen[:, None])
        return Loss({"nll": LossTerm(self.poison - logprobs.sum(), rows.n_actions)})


BATCH = Demonstrations(
    TokenRows.of([([1], [2, 3, 4]), ([2, 2], [0]), ([5], [5, 5, 5, 5, 1]), ([3], [1, 2]), ([0], [4]), ([1], [1, 1, 1])])
)


def learner_of(model: BigramModel, token_budget: int | None) -> GradientLearner[Demonstrations]:
    options = GroupOptions(0.05, (0.9, 0.999), 1e-5, 0.01, 1.0)
    plan = UpdatePlan(1, 1, token_budget, lambda step: 1.0, lambda step: ("policy",), seed=0)
    return GradientLearner(
        model, {"policy": NamedAdamW({"table": model.table}, options)}, plan, SingleProcess(), lambda: 0
    )


def test_b32_controller_refuses_zero_targets_and_horizons() -> None:
    """Adaptive controller: zero/negative target or horizon, wrong n."""
    for kl, beta in ((12.0, 0.201024), (0.0, 0.198976), (6.3, 0.200256), (-3.0, 0.198976)):
        assert ziegler_step(0.2, kl, 6.0, n=256, horizon=10_000) == pytest.approx(beta, abs=1e-9)
    for name in ("target", "horizon"):
        for bad in (0, -1):
            with pytest.raises(ValueError, match="must be positive"):
                ziegler_step(0.2, 1.0, **({"target": 6.0, "n": 256, "horizon": 10_000} | {name: bad}))
            with pytest.raises(ValidationError, match=name):
                KLSection.model_validate({"mode": "ziegler", name: bad})


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_b51_a_step_on_nan_changes_no_weight(poison) -> None:
    """Fp16 DPO NaN after one step."""
    model = BigramModel(poison)
    before = model.table.detach().clone()
    report = learner_of(model, None).update(BATCH)
    assert torch.equal(model.table, before)
    assert (report.skipped_steps, report.optimizer_steps) == (1, 0)
    assert report.nonfinite == ("step 0: nll loss",)


def test_b62_optimizer_state_is_never_silently_fresh() -> None:
    """Optimizer/critic state silently fresh after resume."""
    straight, first, second = BigramModel(), BigramModel(), BigramModel()
    learner = learner_of(straight, None)
    learner.update(BATCH)
    learner.update(BATCH)
    begun = learner_of(first, None)
    begun.update(BATCH)
    resumed = learner_of(second, None)
    resumed.load_state_dict(begun.state_dict())
    with torch.no_grad():
        second.table.copy_(first.table)
    resumed.update(BATCH)
    assert torch.equal(second.table, straight.table)
    with pytest.raises(ValueError, match="policy"):
        learner_of(BigramModel(), None).load_state_dict({"step": 1, "optimizers": {}})


def test_b71_a_gradient_that_is_not_finite_is_named_and_skipped() -> None:
    """`probability tensor contains inf/nan` after one step."""
    model = BigramModel()
    before = model.table.detach().clone()
    model.table.register_hook(lambda gradient: gradient / 0.0)
    report = learner_of(model, None).update(BATCH)
    assert torch.equal(model.table, before)
    assert report.nonfinite == ("step 0: gradient of table",)


@pytest.mark.parametrize("token_budget", [1, 4, 5, 9, 13])
def test_b87_weights_after_a_step_do_not_depend_on_microbatches(token_budget) -> None:
    """Optimizer drops intermediate micro-batches under CPU offload; loss aggregated per mini-batch wrongly."""
    whole, parts = BigramModel(), BigramModel()
    learner_of(whole, None).update(BATCH)
    learner_of(parts, token_budget).update(BATCH)
    torch.testing.assert_close(parts.table, whole.table, rtol=0, atol=1e-9)
    assert not torch.equal(whole.table, BigramModel().table)
