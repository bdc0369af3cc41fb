"""What must be true of one step, whatever is learned: named numbers, each with the bound that correct code keeps.

    self-test       the product's own, before the first step
    accounts        each number that the step hands on, against the tables, token by token
    invariances     what must not change a weight: token budget, order of rows, the other role's learning rate
    effects         what an option must do: a clip that holds, an entropy bonus that raises entropy

They run on the variable-length problem, in which prompts and responses differ in length, the temperature is not 1, and
some responses end by themselves. docs/proof.md says which fault each of them finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.proof.accounts import accounts
from benchmarks.proof.problem import Array
from benchmarks.proof.reading import Reading
from benchmarks.proof.runs import Pieces, Table, Variant
from benchmarks.proof.table_model import policy_logits, value_table

FEW = {"prompts_per_step": 6, "samples_per_prompt": 4}
"""Two batches of the three prompts: 24 responses."""
ROUNDING = 1e-6
"""Of a float32 weight after two steps in another order of summation; see tests/invariance/test_step.py."""
MOVED = 5e-5
"""Some weight of each role goes at least this far, so that equality says something."""
BETWEEN = 40
"""Tokens: four or five responses to a micro-batch."""
CLIP_RANGE = 0.2
CLIP_EPOCHS = 150
"""At the rates of ``clips``, far enough for a weight to go five times beyond either clip."""


@dataclass(frozen=True)
class Measured:
    name: str
    value: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.value <= self.bound  # False for NaN


Checker = Callable[[Variant], Iterator[Measured]]


def checkers_of(variant: Variant) -> tuple[Checker, ...]:
    """What can be checked of this kind of run: the last two are about a critic of its own."""
    return PPO_CHECKS if variant.stage == "ppo" and not variant.lora else COMMON_CHECKS


def small(variant: Variant) -> Variant:
    """With so few responses that a step takes hundredths of a second."""
    return variant.but("rollout", **FEW).but("reward", normalise_samples=24)


def self_test(variant: Variant) -> Iterator[Measured]:
    table = Table.of(variant)
    table.prepare()
    for check in table.built.self_test():
        yield Measured(f"self-test: {check.name}", check.value, check.bound)


def step_accounts(variant: Variant) -> Iterator[Measured]:
    """PPO at both ends of lambda; with a critic of its own also where cut responses are bootstrapped."""
    variants = {"": variant}
    if variant.stage == "ppo":
        variants = {"": variant.but("ppo", lam=1.0)}
        if not variant.lora:
            bootstrapped = variant.but("ppo", bootstrap_truncated=True)
            variants |= {
                ", bootstrapped": bootstrapped.but("ppo", lam=1.0),
                ", lam 0": bootstrapped.but("ppo", lam=0.0, critic_lam=0.0),
            }
    for how, changed in variants.items():
        for name, value, bound in accounts(changed):
            yield Measured(f"accounts: {name}{how}", value, bound)


def invariances(variant: Variant) -> Iterator[Measured]:
    """At a rate of 1e-4, because Adam divides a gradient by its own size, and rounding with it."""
    slow = variant.but("optimizer", learning_rate=1e-4, eps=1e-5)
    if slow.stage == "ppo":
        slow = slow.but("ppo", value_warmup_steps=0)
    start, whole = weights(Table.of(slow)), weights_after(slow.but("training", token_budget=None))
    still = sum(largest(only(start, role), whole) < MOVED for role in Table.of(slow).built.roles.parameters)
    yield Measured("invariance: roles that two steps do not move", float(still), 0.0)
    for budget in (1, BETWEEN):
        cut = weights_after(slow.but("training", token_budget=budget))
        yield Measured(f"invariance: token budget {budget}", largest(whole, cut), ROUNDING)
    reversed_rows = weights_after(slow.but("training", token_budget=None), backwards=True)
    yield Measured("invariance: order of rows", largest(whole, reversed_rows), ROUNDING)


def roles_apart(variant: Variant) -> Iterator[Measured]:
    """Within one update of a separate critic, neither role sees how the other moves."""
    variant = variant.but("ppo", value_warmup_steps=0)
    both = weights_after(variant, steps=1)
    for moved, changes in (
        ("policy", {"critic_learning_rate": 1e-12}),
        ("critic", {"critic_learning_rate": 0.25, "learning_rate": 1e-12}),
    ):
        other = weights_after(variant.but("optimizer", **changes), steps=1)
        yield Measured(
            f"invariance: the {moved}'s update, the other role's rate 0",
            largest(only(both, moved), only(other, moved)),
            0.0,
        )


def effects(variant: Variant) -> Iterator[Measured]:
    yield from first_step(variant)
    yield from draws_and_rows(variant)
    yield from clips(variant)
    yield from entropy(variant)


def first_step(variant: Variant) -> Iterator[Measured]:
    """Adam's first step moves the weight with the largest gradient by the learning rate, and what no sampled action
    depends on by nothing. The schedule's factor is 1 at step 0, whose run has four steps."""
    quick = replace(variant, steps=4).but("ppo", value_warmup_steps=0, epochs=1)
    table = Table.of(quick)
    table.prepare()
    before = weights(table)
    pieces = table.pieces()
    table.run.learner.update(pieces.experience)
    moved = {name: np.abs(now - before[name]) for name, now in weights(table).items()}
    for role, rate in (("policy", 0.05), ("critic", 0.25)):
        reached = max(float(change.max()) for change in only(moved, role).values())
        yield Measured(f"effect: the first step of the {role} / its rate − 1", abs(reached / rate - 1.0), 0.01)
    visited = Reading.of(variant.problem, pieces.rollout).visited()
    (change,) = only(moved, "policy").values()  # [vocabulary, states]
    yield Measured("effect: what no action depends on moves by", float(change[:, ~visited].max()), 0.0)
    left = [p.grad for group in table.built.roles.parameters.values() for p in group.values() if p.grad is not None]
    yield Measured(
        "effect: gradient that is left after an update", max([float(g.abs().max()) for g in left] or [0.0]), 0.0
    )


def draws_and_rows(variant: Variant) -> Iterator[Measured]:
    """Two steps of the same policy, each of all prompts twice, draw different responses. And where minibatches do not
    divide the batch, each row still counts: every state in which an action was taken moves."""
    table = Table.of(variant.but("ppo", value_warmup_steps=0, epochs=1, minibatches=5))
    table.prepare()
    pieces = table.pieces()
    table.run.core.progress.advance()
    first, second = (sorted(zip(*drawn, strict=True)) for drawn in (drawn_of(pieces), drawn_of(table.pieces())))
    yield Measured("effect: two steps draw the same", float(first == second), 0.0)
    before = weights(table)
    table.run.learner.update(pieces.experience)
    (moved,) = (np.abs(now - before[name]).max(0) for name, now in only(weights(table), "policy").items())
    visited = Reading.of(variant.problem, pieces.rollout).visited()
    yield Measured("effect: states of sampled actions that stand still", float((moved[visited] == 0).sum()), 0.0)


def drawn_of(pieces: Pieces) -> tuple[list[int], tuple[str, ...]]:
    """Prompt and text of each response."""
    rollout = pieces.rollout
    return [rollout.prompts[index].token_ids[0] for index in rollout.prompt_index.tolist()], rollout.responses


def clips(variant: Variant) -> Iterator[Measured]:
    """Many small optimizer steps on one batch: whatever pays, no ratio and no value goes much beyond its clip."""
    rates = {"learning_rate": 0.004, "critic_learning_rate": 0.01, "schedule": "constant"}
    table = Table.of(
        variant.but("optimizer", **rates).but("ppo", value_warmup_steps=0, epochs=CLIP_EPOCHS, clip_range=CLIP_RANGE)
    )
    table.prepare()
    pieces, problem, roles = table.pieces(), variant.problem, table.built.roles
    reading, old_values = Reading.of(problem, pieces.rollout), value_table(problem, roles)
    old = reading.logprobs(policy_logits(problem, roles))
    table.run.learner.update(pieces.experience)
    ratio = np.exp(reading.logprobs(policy_logits(problem, roles)) - old)
    pays = ((ratio - 1.0) * np.sign(pieces.experience.advantages.numpy())).clip(min=0.0)
    moved = np.abs(reading.values(value_table(problem, roles)) - reading.values(old_values))
    yield Measured("effect: mean ratio − 1 where it pays, after many epochs", float(pays.mean()), 0.3)
    yield Measured("effect: largest move of a value, after many epochs", float(moved.max()), 0.4)


def entropy(variant: Variant) -> Iterator[Measured]:
    """A large entropy bonus must outweigh everything else."""
    table = Table.of(variant.but("ppo", value_warmup_steps=0, entropy_coef=10.0))
    table.prepare()
    pieces = table.pieces()
    reading = Reading.of(variant.problem, pieces.rollout)
    before = reading.entropy(policy_logits(variant.problem, table.built.roles)).mean()
    table.run.learner.update(pieces.experience)
    after = reading.entropy(policy_logits(variant.problem, table.built.roles)).mean()
    yield Measured("effect: entropy lost under a bonus", float(before - after), 0.0)


PPO_CHECKS: tuple[Checker, ...] = (self_test, step_accounts, invariances, roles_apart, effects)
COMMON_CHECKS: tuple[Checker, ...] = (self_test, step_accounts, invariances)


def weights_after(variant: Variant, *, steps: int = 2, backwards: bool = False) -> dict[str, Array]:
    table = Table.of(variant)
    table.prepare()
    for _ in range(steps):
        if backwards:
            experience = table.pieces().experience
            table.run.learner.update(experience.select(list(reversed(range(len(experience))))))
            table.run.core.progress.advance()
        else:
            table.step()
    return weights(table)


def weights(table: Table) -> dict[str, Array]:
    groups = table.built.roles.parameters.items()
    return {
        f"{group}.{name}": p.detach().double().numpy().copy() for group, named in groups for name, p in named.items()
    }


def only(named: Mapping[str, Array], group: str) -> dict[str, Array]:
    return {name: value for name, value in named.items() if name.startswith(f"{group}.")}


def largest(one: Mapping[str, Array], two: Mapping[str, Array]) -> float:
    return max(float(np.abs(value - two[name]).max()) for name, value in one.items())
