"""Does a whole step give the same weights however it is cut, ordered or shared among networks?

Each test goes through the run that the command line builds: rollout, scores, credit, update, in float32. Tolerance 1e-6
on every weight after the step; 1.2e-7 was measured at the learning rate used here, where weights move by 1e-4 to 2e-3.
Adam divides a gradient by its own size, so rounding grows with the learning rate: at 1e-3, far over what a real run
takes, four optimizer steps of RLOO differed by 8.5e-6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.runs import STAGES, Files, built_run, tiny_config, tiny_files
from tests.tiny import tiny_gpt2, tiny_llama
from tightrope.algorithms.ppo import PPO
from tightrope.algorithms.rloo import RLOO
from tightrope.assemble import online
from tightrope.assemble.parts import Assembled
from tightrope.config.schema import ModelSection, RunConfig
from tightrope.models.export import RewardFacts, export_reward
from tightrope.models.roles import Roles, offline_roles, online_roles
from tightrope.training.run import OfflineRun, OnlineRun
from tightrope.training.step import offline_step, train_step

TOLERANCE = 1e-6
LEARNING_RATE = 1e-4
MOVED = 5e-5
"""A step moves some weight at least this far, so that equality says something."""
BETWEEN = 40
"""Tokens: two or three of the tiny sequences to a micro-batch."""
ONLINE = ("ppo", "rloo")


@pytest.fixture(scope="module", params=[tiny_llama, tiny_gpt2], ids=["llama", "gpt2"])
def files(request, tmp_path_factory) -> Files:
    folder = tmp_path_factory.mktemp(request.param.__name__)
    return tiny_files(folder, request.param(folder / "model"))


@pytest.fixture(scope="module")
def reward_folder(files, tmp_path_factory) -> Path:
    """A reward model on the policy's own base, as adapter: with LoRA it sits on the shared backbone."""
    section = config_of("rm", files, lora=True).model
    reward = offline_roles(section, "rm", seed=3).reward
    assert reward is not None
    folder = tmp_path_factory.mktemp("reward") / "export"
    export_reward(reward, files.model, folder, RewardFacts([0.0], 0.0, 1.0, 0, None))
    return folder


def config_of(
    stage: str, files: Files, *, budget: int | None = None, options: Mapping[str, Any] | None = None, **settings: Any
) -> RunConfig:
    """The critic is trained from the first step, and no rule ends an epoch early. ``options``: of PPO and RLOO."""
    changes: dict[str, dict[str, Any]] = {
        "training": {"token_budget": budget},
        "optimizer": {"learning_rate": LEARNING_RATE},
    }
    if stage in ONLINE:
        changes[stage] = {"target_kl": None} | ({"value_warmup_steps": 0} if stage == "ppo" else {})
        changes[stage] |= options or {}
    return tiny_config(stage, files, files.prompts.parent / "unused", changes=changes, **settings)


def step(built: Assembled) -> None:
    built.prepare()
    if isinstance(built.run, OnlineRun):
        train_step(built.run)
    else:
        offline_step(built.run)


def weights(built: Assembled) -> dict[str, Tensor]:
    groups = built.roles.parameters.items()
    return {f"{group}.{name}": p.detach().clone() for group, named in groups for name, p in named.items()}


def stepped(config: RunConfig, folder: Path, walk: Callable[[Assembled], None] = step) -> dict[str, Tensor]:
    """The weights after one step; fails where the step moved nothing."""
    built = built_run(config, folder)
    before = weights(built)
    walk(built)
    after = weights(built)
    for group in built.roles.parameters:
        names = [name for name in after if name.startswith(f"{group}.")]
        assert largest({n: before[n] for n in names}, {n: after[n] for n in names}) > MOVED, f"{group} did not move"
    return after


def largest(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("stage", STAGES)
def test_the_token_budget_changes_nothing(files, tmp_path, stage, lora):
    whole = stepped(config_of(stage, files, lora=lora), tmp_path / "whole")
    for budget in (1, BETWEEN):
        cut = stepped(config_of(stage, files, budget=budget, lora=lora), tmp_path / str(budget))
        assert largest(whole, cut) <= TOLERANCE, f"token_budget {budget}"


@pytest.mark.parametrize("stage", STAGES)
def test_the_order_of_rows_inside_a_minibatch_changes_nothing(files, tmp_path, stage):
    config = config_of(stage, files, options={"epochs": 1, "minibatches": 1})
    forward = stepped(config, tmp_path / "forward", lambda built: reordered_step(built, backwards=False))
    backward = stepped(config, tmp_path / "backward", lambda built: reordered_step(built, backwards=True))
    assert largest(forward, backward) <= TOLERANCE


def reordered_step(built: Assembled, *, backwards: bool) -> None:
    built.prepare()
    run = built.run
    if isinstance(run, OfflineRun):
        batch: Any = run.next_batch()
    else:
        rollout = run.engine.generate(run.prompts.next_batch(), run.samples_per_prompt, run.sampling, run.key())
        batch = run.algorithm.credit(rollout, run.judge.score(rollout))
    rows = range(len(batch))
    run.learner.update(batch.select(list(reversed(rows)) if backwards else list(rows)))


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("budget", [None, 1], ids=["together", "one by one"])
@pytest.mark.parametrize("algorithm", [PPO, RLOO])
def test_the_first_minibatch_has_ratio_one(files, tmp_path, monkeypatch, algorithm, budget, lora):
    """Every action of it, not the mean; the first update moves the policy, so later minibatches differ."""
    errors: list[float] = []
    loss_of = algorithm.loss

    def watched(self, output, batch):
        errors.append(float(((output.logprobs.detach() - batch.old_logprobs).exp() - 1.0).abs().max()))
        return loss_of(self, output, batch)

    monkeypatch.setattr(algorithm, "loss", watched)
    stage = algorithm.__name__.lower()
    options = {"epochs": 1, "minibatches": 2}
    built = built_run(config_of(stage, files, budget=budget, lora=lora, options=options), tmp_path)
    step(built)
    first = errors[: len(errors) // 2]
    assert max(first) <= 1e-5
    assert max(errors[len(errors) // 2 :]) > 1e-4


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_one_shared_backbone_trains_as_separate_copies_do(files, reward_folder, tmp_path, monkeypatch, critic):
    config = config_of("ppo", files, lora=True, reward_model=reward_folder, options={"critic": critic})
    shared = stepped(config, tmp_path / "shared")
    monkeypatch.setattr(online, "online_roles", separate_roles)
    separate = stepped(config, tmp_path / "separate")
    assert largest(shared, separate) <= TOLERANCE


def separate_roles(
    model: ModelSection, *, critic: Any, reward_model: Path | None, needs_reference: bool, seed: int
) -> Roles:
    """Each role from a backbone of its own with the same numbers; a shared critic stays on the policy's."""

    def loaded() -> Roles:
        return online_roles(model, critic=critic, reward_model=reward_model, needs_reference=needs_reference, seed=seed)

    policy, reference, reward = loaded(), loaded(), loaded()
    value = policy if critic == "shared" else loaded()
    assert policy.policy and reference.reference and reward.reward and value.critic
    networks = {id(role.network) for role in (policy.policy, reference.reference, reward.reward, value.critic)}
    assert len(networks) == (3 if critic == "shared" else 4)
    return Roles(
        policy.policy,
        reference.reference,
        value.critic,
        reward.reward,
        parameters={"policy": policy.parameters["policy"], "critic": value.parameters["critic"]},
        shared_trunk=critic == "shared",
    )
