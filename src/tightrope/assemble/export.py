"""The result of a run as a folder that other tools load, with the manifest the next stage checks and a model card."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tightrope.algorithms.options import RewardModelConfig
from tightrope.algorithms.plugins import STAGES
from tightrope.assemble.inputs import Inputs, read_inputs
from tightrope.assemble.model_card import CardFacts, model_card
from tightrope.assemble.parts import Assembled
from tightrope.config.errors import TightropeError
from tightrope.config.load import load_resolved
from tightrope.config.schema import OnlineConfig, RunConfig
from tightrope.data.preferences import PreferenceData
from tightrope.maths.diagnostics import pair_outcomes, wilson_interval
from tightrope.maths.statistics import moments
from tightrope.models.export import Form, RewardFacts, export_policy, export_reward, reward_pad_id
from tightrope.models.load import load_tokenizer, resolve_model_folder
from tightrope.models.manifest import StageManifest, read_manifest
from tightrope.models.roles import Role, offline_roles
from tightrope.records import StepRecord
from tightrope.scoring.reward_model import RewardModel, fingerprints, scores_of
from tightrope.storage.checkpoints import CheckpointStore, read_state
from tightrope.storage.metrics import MetricStore
from tightrope.storage.run_folder import RunFolder
from tightrope.training.optimisers import NamedWeights

BEST = {"sft": ("sft/held_out", "loss", min), "dpo": ("dpo/held_out", "loss", min), "rm": ("rm/held_out", "loss", min)}


@dataclass(frozen=True, slots=True)
class Exported:
    """Where the model is, and the step whose weights it holds."""

    folder: Path
    step: int
    total: int


def export_result(
    stage: str, built: Assembled, config: RunConfig, inputs: Inputs, folder: Path, metrics: MetricStore
) -> Path:
    """``export/`` of the run; a LoRA run has its adapter in ``export/adapter`` too."""
    steps = config.training.steps
    facts = None
    if isinstance(config, RewardModelConfig):
        assert isinstance(inputs.data, PreferenceData)
        facts = reward_facts(built.result, inputs, inputs.data, config.training.token_budget)
    told = CardFacts(stage, config, steps, dict(inputs.fingerprints), metrics.rows(), facts)
    write(built.result, inputs.folder, folder, told, Form())
    return folder


def write(role: Role, source: Path, folder: Path, told: CardFacts, form: Form) -> None:
    told = replace(told, reward_pad=reward_pad_id(source), reward_model=reward_manifest(told.config))
    form = replace(form, card=model_card(told, adapter_only=not form.merged))
    if told.reward is not None:
        export_reward(role, source, folder, told.reward, form)
    else:
        export_policy(role, source, folder, told.stage, form)


def reward_manifest(config: RunConfig) -> StageManifest | None:
    """Of the reward model the policy was trained on; None where there was none, or where it is gone since."""
    if not isinstance(config, OnlineConfig) or not config.reward.models:
        return None
    try:
        return read_manifest(resolve_model_folder(config.reward.models[0]))
    except TightropeError:
        return None


def export_run(path: Path, checkpoint: str, to: Path | None, form: Form) -> Exported:
    """From a checkpoint of a run: the newest valid one, a named one, or the best held-out one. Changes nothing else.

    Raises TightropeError, before weights load where that is possible.
    """
    run = RunFolder.read(path)
    stage, config = load_resolved(run.resolved, STAGES)
    if not form.merged and config.model.lora is None:
        raise TightropeError(
            "this run trained all weights, so there is no adapter", where=str(path), fix="leave --adapter out"
        )
    source = resolve_model_folder(config.model.name, config.model.revision)
    metrics = MetricStore(run.database, read_only=True)
    try:
        rows = metrics.rows()
    finally:
        metrics.close()
    store = CheckpointStore(run.checkpoints)
    step = chosen_step(checkpoint, store.valid_steps(), rows, stage, run.checkpoints)
    manifest = store.manifest(step)
    weights: Any = read_state(run.checkpoints / f"iter-{step:06d}", manifest)["weights"]
    role = trained_role(stage, config, weights)
    facts = later_reward_facts(role, config, source) if isinstance(config, RewardModelConfig) else None
    told = CardFacts(stage, config, step, dict(manifest.facts.get("data") or {}), rows, facts)
    folder = run.export if to is None else to
    write(role, source, folder, told, form)
    return Exported(folder, step, config.training.steps)


def chosen_step(asked: str, valid: list[int], rows: list[StepRecord], stage: str, folder: Path) -> int:
    """The step of ``latest``, ``best`` or ``iter-N``. A checkpoint of step n was measured by the probe of step n."""
    if not valid:
        raise TightropeError("there is no valid checkpoint to export", where=str(folder))
    named = ", ".join(f"iter-{step}" for step in valid)
    if asked == "latest":
        return valid[0]
    if asked == "best":
        probe, metric, better = BEST.get(stage, (f"{stage}/probe", "held_out", max))
        metric = metric if any(metric in row.metrics for row in rows) else "reward_raw"
        measured = {row.step: row.metrics[metric] for row in rows if row.stage == probe and metric in row.metrics}
        known = [step for step in valid if step in measured]
        if not known:
            raise TightropeError(
                "no checkpoint was measured on held-out data", where=str(folder), expected=f"latest, or one of {named}"
            )
        return better(known, key=lambda step: measured[step])
    number = asked.removeprefix("iter-")
    if not number.isdecimal() or int(number) not in valid:
        raise TightropeError(
            "no such checkpoint", where="--checkpoint", expected=f"latest, best, {named}", found=repr(asked)
        )
    return int(number)


def trained_role(stage: str, config: RunConfig, weights: Any) -> Role:
    """The role that is exported, with the checkpoint's weights and nothing else of the run loaded."""
    roles = offline_roles(config.model, "rm" if stage == "rm" else "sft", config.seed)
    try:
        NamedWeights(roles.parameters).load_state_dict({name: weights[name] for name in roles.parameters})
    except (KeyError, ValueError) as error:
        raise TightropeError(f"the checkpoint does not fit the model: {error}", where=config.model.name) from error
    role = roles.policy if roles.reward is None else roles.reward
    assert role is not None
    return role


def later_reward_facts(role: Role, config: RewardModelConfig, source: Path) -> RewardFacts:
    """As at the end of the stage where the data is still there, else only what the model itself says."""
    budget = config.training.token_budget
    if all(file.is_file() for file in (config.data.train, config.data.evaluation) if file is not None):
        inputs = read_inputs(config)
        assert isinstance(inputs.data, PreferenceData)
        return reward_facts(role, inputs, inputs.data, budget)
    told = fingerprints(RewardModel(role, load_tokenizer(source), budget))
    return RewardFacts(told, mean=None, std=None, held_out_pairs=0, accuracy=None)


def reward_facts(reward: Role, inputs: Inputs, data: PreferenceData, token_budget: int | None) -> RewardFacts:
    """Constants and accuracy on held-out pairs; on the training pairs where none are held out (then no accuracy)."""
    measured = data.held_out if len(data.held_out) else data.train
    scores = scores_of(reward, measured.rows, token_budget)
    seen = moments(scores)
    assert seen.std is not None
    accuracy = None
    if len(data.held_out):
        outcomes = pair_outcomes(scores[0::2], scores[1::2])
        accuracy = wilson_interval(outcomes.right, len(data.held_out))
    source = RewardModel(reward, inputs.tokenizer, token_budget)
    return RewardFacts(
        fingerprints=fingerprints(source),
        mean=seen.mean,
        std=seen.std,
        held_out_pairs=len(data.held_out),
        accuracy=accuracy,
    )
