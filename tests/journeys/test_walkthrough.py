"""Does the teaching page compute what the library computes, number by number, step after step?

The library trains tables of its own from the page's start: its credit, loss, learner, optimizers and beta, on the
responses that the page drew.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tightrope.algorithms.options import PPOOptions
from tightrope.algorithms.ppo import PPO
from tightrope.config.schema import KLSection
from tightrope.parallel.single import SingleProcess
from tightrope.training.controls import BetaDial
from tightrope.training.learner import GradientLearner, UpdatePlan
from tightrope.training.optimisers import GroupOptions, NamedAdamW
from tightrope.types import (
    Experience,
    Loss,
    PolicyOutput,
    Prompt,
    Rollout,
    Scores,
    TokenRows,
    UpdateReport,
)

PAGE = Path(__file__).parents[2] / "docs" / "walkthrough" / "ppo_in_one_page.py"
STEPS = 12
TOLERANCE = 1e-10
"""Float64; the library adds responses up in another order, and Adam divides by what may be small."""


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("ppo_in_one_page", PAGE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class Watched(NamedAdamW):
    """Keeps each gradient as it is before clipping."""

    def clip_gradients(self) -> float:
        (parameter,) = self.parameters.values()
        assert parameter.grad is not None
        self.seen.append(parameter.grad.clone())
        return super().clip_gradients()

    seen: list[Tensor]


@dataclass
class Tables:
    """The objective: log-probs and values of the library's own tables, then PPO's loss."""

    ppo: PPO
    policy: nn.Parameter
    critic: nn.Parameter
    losses: list[dict[str, float]] = field(default_factory=list)

    def output(self, rows: TokenRows) -> PolicyOutput:
        before, chosen = rows.tokens[rows.action_positions - 1], rows.tokens[rows.action_positions]
        logprobs = self.policy.log_softmax(-1)[before, chosen]
        return PolicyOutput(logprobs, values=self.critic[before])

    def counts(self, batch: Experience) -> Mapping[str, int]:
        return self.ppo.counts(batch)

    def loss(self, batch: Experience) -> Loss:
        loss = self.ppo.loss(self.output(batch.rows), batch)
        self.losses.append({name: float(term.sum.detach()) / term.count for name, term in loss.terms.items()})
        return loss


@dataclass
class Step:
    experience: Experience
    report: UpdateReport
    losses: list[dict[str, float]]
    gradients: dict[str, list[Tensor]]
    policy: Tensor
    critic: Tensor
    kl_seq: float
    next_beta: float


def rollout_of(page: Any, drawn: Any, logprobs: Tensor) -> Rollout:
    """The page's responses in the library's type."""
    bounds = drawn.bounds
    answers = [drawn.actions[a:b].tolist() for a, b in pairwise(bounds)]
    return Rollout(
        rows=TokenRows.of([([page.FILM], answer) for answer in answers]),
        behaviour_logprobs=logprobs,
        finish_reason=tuple("stop" if answer[-1] == page.END else "length" for answer in answers),
        responses=("",) * len(answers),
        prompts=(Prompt(0, (page.FILM,), "film", {"prompt": "film"}),),
        prompt_index=torch.zeros(len(answers), dtype=torch.int64),
        sample_index=torch.arange(len(answers)),
        policy_version=0,
        temperature=1.0,
    )


def library_steps(page: Any, pages: list[dict[str, Any]]) -> list[Step]:
    policy, critic = (nn.Parameter(table) for table in page.start())
    reference = policy.detach().clone()
    kl = KLSection(
        beta=page.BETA, target=page.KL_TARGET, gain=page.GAIN, max_step=page.MAX_STEP, lookahead=page.LOOKAHEAD
    )
    dial = BetaDial(kl, total_steps=len(pages))
    options = PPOOptions(
        gamma=page.GAMMA,
        lam=page.LAM,
        clip_range=page.CLIP_RANGE,
        value_clip=page.VALUE_CLIP,
        value_coef=page.VALUE_COEF,
    )
    tables = Tables(PPO(options, dial.value, kl), policy, critic)

    def optimizer(parameter: nn.Parameter, rate: float) -> Watched:
        found = Watched({"table": parameter}, GroupOptions(rate, (0.9, 0.999), 1e-5, 0.0, page.MAX_GRAD_NORM))
        found.seen = []
        return found

    optimizers = {
        "policy": optimizer(policy, page.LEARNING_RATE),
        "critic": optimizer(critic, page.CRITIC_FACTOR * page.LEARNING_RATE),
    }
    plan = UpdatePlan(page.EPOCHS, 1, None, lambda _: 1.0, lambda _: tuple(optimizers), 0, page.APPROX_KL_LIMIT)
    learner = GradientLearner(tables, optimizers, plan, SingleProcess(), lambda: 0)
    steps = []
    for number, numbers in enumerate(pages):
        rows = rollout_of(page, numbers["rollout"], torch.empty(0)).rows
        with torch.no_grad():
            start, reward = tables.output(rows), page.reward_model(numbers["rollout"])
            frozen = reference.log_softmax(-1)[
                rows.tokens[rows.action_positions - 1], rows.tokens[rows.action_positions]
            ]
        rollout = rollout_of(page, numbers["rollout"], start.logprobs)
        experience = tables.ppo.credit(rollout, Scores(reward, {}, ref_logprobs=frozen, values=start.values))
        tables.losses, before = [], {name: len(o.seen) for name, o in optimizers.items()}
        report = learner.update(experience)
        kl_seq = float((start.logprobs - frozen).sum()) / rollout.n_sequences
        dial.after_step(number, kl_seq, rollout.n_sequences)
        gradients = {name: o.seen[before[name] :] for name, o in optimizers.items()}
        after = policy.detach().clone(), critic.detach().clone()
        steps.append(Step(experience, report, tables.losses, gradients, *after, kl_seq, dial.value()))
    return steps


@pytest.fixture(scope="module")
def both(page) -> list[tuple[dict[str, Any], Step]]:
    pages = list(page.train(STEPS))
    return list(zip(pages, library_steps(page, pages), strict=True))


def same(found: Any, expected: Any) -> None:
    found = found.detach() if isinstance(found, Tensor) else found
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(found, dtype=torch.float64), wanted, rtol=0.0, atol=TOLERANCE)


def test_token_rewards_advantages_and_returns(both) -> None:
    for mine, theirs in both:
        same(mine["rewards"], theirs.experience.rewards)
        same(mine["advantages"], theirs.experience.advantages)
        same(mine["returns"], theirs.experience.returns)


def test_losses_and_gradients_of_every_epoch(both) -> None:
    for mine, theirs in both:
        assert len(mine["epochs"]) == len(theirs.losses)
        for number, (epoch, losses) in enumerate(zip(mine["epochs"], theirs.losses, strict=True)):
            same(epoch["policy_loss"], losses["policy"])
            same(epoch["value_loss"], losses["value"])
            for group, gradient in zip(("policy", "critic"), epoch["gradients"], strict=True):
                same(gradient, theirs.gradients[group][number])


def test_weights_after_every_update(both) -> None:
    for mine, theirs in both:
        same(mine["policy"], theirs.policy)
        same(mine["critic"], theirs.critic)


def test_kl_and_beta_of_every_step(both) -> None:
    for mine, theirs in both:
        same(mine["kl_seq"], theirs.kl_seq)
        same(mine["next_beta"], theirs.next_beta)


def test_epochs_end_early_at_the_same_moment(page, both) -> None:
    for mine, theirs in both:
        ended = mine["epochs"][-1]["approx_kl"] > page.APPROX_KL_LIMIT
        assert (ended, len(mine["epochs"])) == (theirs.report.stopped_early, theirs.report.optimizer_steps)
        same(
            sum(epoch["approx_kl"] for epoch in mine["epochs"]) / len(mine["epochs"]),
            theirs.report.metrics["approx_kl"],
        )


def test_the_steps_compared_show_everything_the_page_tells(page, both) -> None:
    """Both clips act, epochs end early and not, beta falls and rises, responses end and are cut."""
    clipped = [theirs.report.metrics["clip_fraction"] for _, theirs in both]
    value_clipped = [theirs.report.metrics["value_clip_fraction"] for _, theirs in both]
    assert max(clipped) > 0.01 and max(value_clipped) > 0.01
    assert {theirs.report.stopped_early for _, theirs in both} == {True, False}
    assert {mine["next_beta"] > mine["beta"] for mine, _ in both} == {True, False}
    ends = [mine["rollout"].actions[end - 1] == page.END for mine, _ in both for end in mine["rollout"].bounds[1:]]
    assert any(ends) and not all(ends)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GAMMA", 0.99),
        ("LAM", 1.0),
        ("CLIP_RANGE", 0.1),
        ("VALUE_CLIP", 0.1),
        ("VALUE_COEF", 0.2),
        ("GAIN", 0.2),
        ("LOOKAHEAD", 5.0),
    ],
)
def test_a_page_with_another_setting_is_told_from_the_library(page, both, monkeypatch, name, value) -> None:
    """The comparison can fail: each setting reaches a number that is compared."""
    monkeypatch.setattr(page, name, value)
    changed = list(page.train(STEPS))
    kept = [theirs for _, theirs in both]
    weights = any(not torch.allclose(m["policy"], t.policy, atol=1e-6) for m, t in zip(changed, kept, strict=True))
    gradients = any(
        len(m["epochs"]) != len(t.losses)
        or not torch.allclose(m["epochs"][0]["gradients"][1], t.gradients["critic"][0], atol=1e-6)
        for m, t in zip(changed, kept, strict=True)
    )
    assert weights or gradients


def test_the_page_runs_by_itself_and_its_policy_learns() -> None:
    done = subprocess.run([sys.executable, str(PAGE)], capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    scores = [float(row[1]) for row in rows]
    assert len(rows) > 10
    assert scores[-1] > scores[0] + 0.4
