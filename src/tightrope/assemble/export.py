"""The result of a finished run as a folder that other tools load, with the manifest the next stage checks."""

from __future__ import annotations

from pathlib import Path

from tightrope.algorithms.options import RewardModelConfig
from tightrope.assemble.inputs import Inputs
from tightrope.assemble.parts import Assembled
from tightrope.config.schema import RunConfig
from tightrope.data.preferences import PreferenceData
from tightrope.maths.diagnostics import pair_outcomes, wilson_interval
from tightrope.maths.statistics import moments
from tightrope.models.export import RewardFacts, export_policy, export_reward
from tightrope.models.roles import Role
from tightrope.scoring.reward_model import RewardModel, fingerprints, scores_of


def export_result(stage: str, built: Assembled, config: RunConfig, inputs: Inputs, folder: Path) -> Path:
    """``export/`` of the run; a LoRA run has its adapter in ``export/adapter`` too."""
    if isinstance(config, RewardModelConfig):
        assert isinstance(inputs.data, PreferenceData)
        facts = reward_facts(built.result, inputs, inputs.data, config.training.token_budget)
        export_reward(built.result, inputs.folder, folder, facts)
    else:
        export_policy(built.result, inputs.folder, folder, stage)
    return folder


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
