"""A run with rollouts: which objects play which part in PPO and RLOO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from tightrope.algorithms.options import PPOConfig, PPOOptions, RLOOConfig, UpdateOptions
from tightrope.algorithms.plugins import plugin_of
from tightrope.algorithms.ppo import PPO
from tightrope.algorithms.rloo import RLOO
from tightrope.assemble.inputs import Inputs, stop_ids
from tightrope.assemble.parts import Assembled, Outputs, core_of, optimizers_of, rate_factor
from tightrope.assemble.reward_sources import composite_of
from tightrope.config.errors import TightropeError
from tightrope.config.schedule import Now, at_step, scheduled_values
from tightrope.config.schema import OnlineConfig
from tightrope.data.corpus import CorpusStream
from tightrope.data.prompts import PromptData
from tightrope.data.samplers import PromptSampler
from tightrope.models.load import eos_ids, load_tokenizer
from tightrope.models.manifest import read_manifest
from tightrope.models.roles import Roles, online_roles
from tightrope.parallel.single import SingleProcess
from tightrope.protocols import Algorithm, RewardSource
from tightrope.rollout.local_engine import LocalEngine
from tightrope.rollout.lower_states import EngineWithLowerStates
from tightrope.scoring.composite import CompositeReward
from tightrope.scoring.functions import load_function
from tightrope.scoring.judge import Judging, LocalJudge
from tightrope.scoring.normaliser import RewardNormaliser, RunningScale
from tightrope.scoring.reward_model import RewardModel, fingerprints
from tightrope.training.controls import BetaDial
from tightrope.training.evaluate import Probe, nothing_to_evaluate
from tightrope.training.forgetting import perplexity
from tightrope.training.learner import GradientLearner, UpdatePlan
from tightrope.training.loop import steps
from tightrope.training.mixing import PretrainingMix
from tightrope.training.optimisers import NamedWeights
from tightrope.training.policy_objective import PolicyObjective
from tightrope.training.preparation import Preparation
from tightrope.training.run import OnlineRun, Progress
from tightrope.training.selftest import Check, fingerprint_check, online_checks
from tightrope.training.step import train_step
from tightrope.training.timing import Stopwatch, TimedAlgorithm, TimedEngine, TimedJudge, TimedLearner
from tightrope.types import Sample, SampleKey, Sampling

SELF_TEST_PROMPTS = 8
SELF_TEST_STEP = 1_000_000_011  # its draws are no training step's, no probe's and no preparation's
TARGET_KL_FACTOR = 1.5  # epochs stop at this multiple of target_kl


def build_online(config: OnlineConfig, inputs: Inputs, outputs: Outputs, roles: Roles | None = None) -> Assembled:
    """``roles``: weights that lie in no folder; absent, they are loaded."""
    assert isinstance(inputs.data, PromptData)
    roles = roles_of(config, inputs) if roles is None else roles
    assert roles.policy is not None
    progress, clock, budget = Progress(), Stopwatch(), config.training.token_budget
    dial = BetaDial(config.kl, config.training.steps)
    now = at_step(lambda: progress.step, config.training.steps)
    algorithm = algorithm_of(config, dial.value, now)
    objective = PolicyObjective(algorithm, roles)
    source, normaliser = reward_of(config, inputs, roles)
    parts = source.state() if isinstance(source, CompositeReward) else {}
    sampling = sampling_of(config, inputs)
    bootstraps = isinstance(config, PPOConfig) and config.ppo.bootstrap_truncated
    critic = roles.critic if roles.shared_trunk else None
    sampler = LocalEngine(
        roles.policy, inputs.tokenizer, lambda: progress.policy_version, budget, critic, end_values=bootstraps
    )
    saved = config.model.lora is not None and config.model.lora.from_layer > 0
    engine = TimedEngine(EngineWithLowerStates(sampler, roles.policy, budget) if saved else sampler, clock)
    scale = RunningScale() if config.reward.scale == "running_std" else None
    judge, probe_judge = (
        TimedJudge(judge_of(config, source, normaliser, roles, Judging(bootstraps, scale, learns_scale, now)), clock)
        for learns_scale in (True, False)
    )
    optimizers, plan = optimizers_of(config.optimizer, roles), update_plan(config, roles)
    mix = mix_of(config, inputs, roles, plan, now)
    learner = GradientLearner(objective, optimizers, plan, SingleProcess(), lambda: progress.attempt, mix)
    prompts = PromptSampler(
        inputs.data.train, config.rollout.prompts_per_step, config.seed, config.rollout.fixed_prompts
    )
    state = {
        "weights": NamedWeights(roles.parameters),
        "learner": learner,
        "prompts": prompts,
        "dial": dial,
        "normaliser": normaliser,
        **({} if scale is None else {"scale": scale}),
        **({} if mix is None else {"corpus": mix.corpus}),
        **parts,
    }
    probe = Probe(
        stage=config.stage,
        seed=config.seed,
        prompts=inputs.data.held_out[: config.evaluation.prompts],
        engine=engine,
        judge=probe_judge,
        sampling=sampling,
        samples=outputs.samples,
        held_out=None if config.evaluation.function is None else load_function(config.evaluation.function),
        progress=progress,
        clock=clock,
        text_perplexity=partial(perplexity, roles.policy, inputs.plain_text, budget) if inputs.plain_text else None,
    )
    evaluate = probe if probe.prompts else nothing_to_evaluate
    core = core_of(config, outputs, progress, clock, state, evaluate, config.evaluation.every)
    run = OnlineRun(
        core=core,
        prompts=prompts,
        engine=engine,
        judge=judge,
        algorithm=TimedAlgorithm(algorithm, clock),
        learner=TimedLearner(learner, clock),
        guardian=core.guardian,
        tracker=core.tracker,
        samples=outputs.samples,
        dial=dial,
        sampling=sampling,
        samples_per_prompt=config.rollout.samples_per_prompt,
        scheduled=partial(scheduled_values, config, now),
        policy_trains=lambda step: "policy" in plan.trained(step),
    )
    prepare = Preparation(
        engine=engine,
        fit=fit_of(config, source, normaliser),
        dial=dial,
        prompts=inputs.data.train,
        sampling=sampling,
        seed=config.seed,
        count=config.reward.normalise_samples,
    )
    test = partial(self_test, run, objective, roles, inputs, partial(reward_model_of, config, inputs, roles))
    return Assembled(run, prepare, test, partial(steps, run, train_step), roles, roles.policy)


def mix_of(config: OnlineConfig, inputs: Inputs, roles: Roles, plan: UpdatePlan, now: Now) -> PretrainingMix | None:
    if config.ptx is None:
        return None
    assert roles.policy is not None
    corpus = CorpusStream(inputs.corpus, config.seed)
    return PretrainingMix(config.ptx, corpus, roles.policy, roles.parameters["policy"], now, plan.trained)


def judge_of(
    config: OnlineConfig, source: RewardSource, normaliser: RewardNormaliser, roles: Roles, judging: Judging
) -> LocalJudge:
    temperature, budget = config.rollout.temperature, config.training.token_budget
    return LocalJudge(source, normaliser, config.reward, roles, temperature, budget, judging)


def algorithm_of(config: OnlineConfig, beta: Callable[[], float], now: Now) -> Algorithm:
    if isinstance(config, PPOConfig):
        return PPO(config.ppo, beta, config.kl, now, config.rollout.max_new_tokens)
    if isinstance(config, RLOOConfig):
        return RLOO(config.rloo, beta, config.kl, now)
    return plugin_of(config.stage).make(config, beta)


def update_options(config: OnlineConfig) -> PPOOptions | UpdateOptions:
    if isinstance(config, PPOConfig):
        return config.ppo
    return config.rloo if isinstance(config, RLOOConfig) else plugin_of(config.stage).update(config)


def critic_of(config: OnlineConfig) -> Literal["shared", "separate"] | None:
    if isinstance(config, PPOConfig):
        return config.ppo.critic
    return None if isinstance(config, RLOOConfig) else plugin_of(config.stage).critic


def roles_of(config: OnlineConfig, inputs: Inputs) -> Roles:
    """Loads the weights."""
    return online_roles(
        config.model,
        critic=critic_of(config),
        reward_model=inputs.reward_folder,
        needs_reference=needs_reference(config),
        seed=config.seed,
    )


def needs_reference(config: OnlineConfig) -> bool:
    """Ours read the reference for the KL alone, so a run whose beta stays 0 does without; a plugin may want it."""
    return not (config.kl.always_zero and isinstance(config, PPOConfig | RLOOConfig))


def sampling_of(config: OnlineConfig, inputs: Inputs) -> Sampling:
    rollout, ends = config.rollout, eos_ids(inputs.folder, inputs.tokenizer)
    if rollout.truncate is None:
        return Sampling(rollout.temperature, rollout.max_new_tokens, ends)
    stops = stop_ids(inputs.tokenizer, rollout.truncate.token)
    return Sampling(rollout.temperature, rollout.max_new_tokens, ends, stops, rollout.truncate.after)


def reward_of(config: OnlineConfig, inputs: Inputs, roles: Roles) -> tuple[RewardSource, RewardNormaliser]:
    """The reward source, with its gain and bias where they are known before the first sample."""
    if config.reward.sources:
        model = None if inputs.reward_folder is None else reward_model_of(config, inputs, roles)
        return composite_of(config.reward, model), RewardNormaliser()
    if inputs.reward_folder is None:
        assert config.reward.function is not None
        return load_function(config.reward.function), RewardNormaliser()
    source = reward_model_of(config, inputs, roles)
    if config.reward.normalise != "manifest":
        return source, RewardNormaliser()
    manifest = read_manifest(inputs.reward_folder)
    if manifest is None or manifest.reward_mean is None or manifest.reward_std is None:
        raise TightropeError(
            "the reward model's manifest holds no constants",
            where=str(inputs.reward_folder),
            fix="set reward.normalise to samples",
        )
    return source, RewardNormaliser.from_constants(manifest.reward_mean, manifest.reward_std)


def reward_model_of(config: OnlineConfig, inputs: Inputs, roles: Roles) -> RewardModel:
    assert roles.reward is not None and inputs.reward_folder is not None
    return RewardModel(roles.reward, load_tokenizer(inputs.reward_folder), config.training.token_budget)


def fit_of(
    config: OnlineConfig, source: RewardSource, normaliser: RewardNormaliser
) -> Callable[[Sequence[Sample]], None] | None:
    """What is measured on the starting policy's samples: gain and bias of the sum, or of each source."""
    if config.reward.normalise != "samples":
        return None
    if isinstance(source, CompositeReward) and config.reward.order == "normalise_then_sum":
        return source.fit
    return lambda samples: normaliser.fit(list(source.score(samples)))


def update_plan(config: OnlineConfig, roles: Roles) -> UpdatePlan:
    options = update_options(config)
    warmup = config.ppo.value_warmup_steps if isinstance(config, PPOConfig) else 0
    return UpdatePlan(
        epochs=options.epochs,
        minibatches=options.minibatches,
        token_budget=config.training.token_budget,
        rate_factor=rate_factor(config),
        trained=lambda step: ("critic",) if step < warmup else tuple(roles.parameters),
        seed=config.seed,
        approx_kl_limit=None if options.target_kl is None else TARGET_KL_FACTOR * options.target_kl,
    )


def self_test(
    run: OnlineRun,
    objective: PolicyObjective,
    roles: Roles,
    inputs: Inputs,
    reward_model: Callable[[], RewardModel],
) -> list[Check]:
    """On a few responses of the starting policy."""
    assert roles.policy is not None and isinstance(inputs.data, PromptData)
    key = SampleKey(run.core.seed, 0, SELF_TEST_STEP)
    rollout = run.engine.generate(inputs.data.train[:SELF_TEST_PROMPTS], 1, run.sampling, key)
    scores = run.judge.score(rollout)
    checks = online_checks(objective, run.algorithm, roles.policy, rollout, scores, starts_at_reference=True)
    manifest = None if inputs.reward_folder is None else read_manifest(inputs.reward_folder)
    if manifest is None or not manifest.fingerprints:
        return checks
    assert roles.reward is not None
    return [*checks, fingerprint_check(fingerprints(reward_model()), manifest.fingerprints, roles.reward)]
