"""A run over a fixed data set: which objects play which part in SFT, reward-model training and DPO."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from tightrope.algorithms.dpo import DPO, reference_logprobs
from tightrope.algorithms.options import DPOConfig, OfflineOptions, RewardModelConfig, SFTConfig
from tightrope.algorithms.reward_modelling import RewardModelling
from tightrope.algorithms.sft import SFT
from tightrope.assemble.inputs import Inputs
from tightrope.assemble.parts import Assembled, Outputs, core_of, optimizers_of, rate_factor
from tightrope.data.demonstrations import DemonstrationData
from tightrope.data.preferences import PreferenceData
from tightrope.data.samplers import RowSampler
from tightrope.models.roles import Role, Roles, offline_roles
from tightrope.parallel.single import SingleProcess
from tightrope.protocols import Objective
from tightrope.training.evaluate import Evaluate, held_out_record, nothing_to_evaluate
from tightrope.training.learner import GradientLearner, UpdatePlan
from tightrope.training.loop import steps
from tightrope.training.optimisers import NamedWeights
from tightrope.training.run import OfflineRun, Progress
from tightrope.training.selftest import Check, dpo_check
from tightrope.training.step import offline_step
from tightrope.training.timing import Stopwatch, TimedLearner
from tightrope.types import Preferences

OfflineConfig = SFTConfig | RewardModelConfig | DPOConfig
SELF_TEST_PAIRS = 8


def build_offline(config: OfflineConfig, inputs: Inputs, outputs: Outputs) -> Assembled:
    assert isinstance(inputs.data, DemonstrationData | PreferenceData)
    roles = offline_roles(config.model, role_set(config), config.seed)
    objective, options = objective_of(config, roles), options_of(config)
    rows, held_out = rows_of(config, inputs.data, roles)
    progress, clock = Progress(), Stopwatch()
    sampler = RowSampler(len(rows), options.batch_size, config.seed)
    learner = GradientLearner(
        objective,
        optimizers_of(config.optimizer, roles),
        UpdatePlan(
            epochs=1,
            minibatches=1,
            token_budget=config.training.token_budget,
            rate_factor=rate_factor(config),
            trained=lambda step: tuple(roles.parameters),
            seed=config.seed,
        ),
        SingleProcess(),
        lambda: progress.attempt,
    )
    core = core_of(
        config,
        outputs,
        progress,
        clock,
        {"weights": NamedWeights(roles.parameters), "learner": learner, "rows": sampler},
        evaluation_of(config, objective, held_out),
        options.evaluate_every,
    )
    run = OfflineRun(
        core, lambda: rows.select(sampler.next_rows()), TimedLearner(learner, clock), core.guardian, core.tracker
    )
    result = roles.policy if roles.reward is None else roles.reward
    assert result is not None
    test = partial(self_test, objective, rows, roles)
    return Assembled(
        run,
        nothing_to_prepare,
        test,
        partial(steps, run, offline_step),
        roles,
        result,
    )


def options_of(config: OfflineConfig) -> OfflineOptions:
    if isinstance(config, RewardModelConfig):
        return config.reward_model
    return config.sft if isinstance(config, SFTConfig) else config.dpo


def role_set(config: OfflineConfig) -> Literal["sft", "rm", "dpo"]:
    if isinstance(config, RewardModelConfig):
        return "rm"
    return "sft" if isinstance(config, SFTConfig) else "dpo"


def objective_of(config: OfflineConfig, roles: Roles) -> Objective[Any]:
    if isinstance(config, RewardModelConfig):
        assert roles.reward is not None
        return RewardModelling(roles.reward, config.reward_model)
    assert roles.policy is not None
    return SFT(roles.policy) if isinstance(config, SFTConfig) else DPO(roles.policy, config.dpo)


def rows_of(config: OfflineConfig, data: DemonstrationData | PreferenceData, roles: Roles) -> tuple[Any, Any]:
    """Training and held-out rows; with their reference log-probs where the loss needs them."""
    if not isinstance(config, DPOConfig):
        return data.train, data.held_out
    assert roles.reference is not None and isinstance(data, PreferenceData)
    with_reference = partial(referenced, reference=roles.reference, token_budget=config.training.token_budget)
    return with_reference(data.train), with_reference(data.held_out)


def referenced(pairs: Preferences, *, reference: Role, token_budget: int | None) -> Preferences:
    return replace(pairs, ref_logprobs=reference_logprobs(reference, pairs, token_budget)) if len(pairs) else pairs


def evaluation_of(config: OfflineConfig, objective: Objective[Any], held_out: Any) -> Evaluate:
    """The objective on all held-out rows."""
    if not len(held_out):
        return nothing_to_evaluate
    budget = config.training.token_budget
    return lambda step: held_out_record(config.stage, step, 0, objective, held_out, budget)


def self_test(objective: Objective[Any], rows: Any, roles: Roles) -> list[Check]:
    """DPO starts at loss ln 2; the other losses have no exact start."""
    if not isinstance(objective, DPO):
        return []
    assert roles.policy is not None
    return [dpo_check(objective, rows.select(range(min(SELF_TEST_PAIRS, len(rows)))), roles.policy)]


def nothing_to_prepare() -> None:
    """The losses over a fixed data set have no constants to measure."""
