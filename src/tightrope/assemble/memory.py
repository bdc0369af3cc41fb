"""What of a config decides how much memory its run takes? Answered from the config and the lengths of its data."""

from __future__ import annotations

from tightrope.algorithms.options import DPOConfig, PPOConfig, RewardModelConfig, RLOOConfig, SFTConfig
from tightrope.assemble.inputs import Inputs
from tightrope.config.schema import OnlineConfig, RunConfig
from tightrope.models.memory import Work


def work_of(config: RunConfig, inputs: Inputs) -> Work:
    """At its worst: every sequence as long as the longest."""
    longest, budget = inputs.data.report.longest, config.training.token_budget
    # The reference, which an adapter spares, and the reward model.
    has_reference = isinstance(config, OnlineConfig | DPOConfig) and config.model.lora is None
    copies = int(has_reference) + int(inputs.reward_folder is not None)
    if isinstance(config, PPOConfig | RLOOConfig):
        options = config.ppo if isinstance(config, PPOConfig) else config.rloo
        room, sequences = longest + config.rollout.max_new_tokens, config.rollout.sequences
        return Work(
            tokens=fitting(-(-sequences // options.minibatches), room, budget) * room,
            copies=copies,
            critic=config.ppo.critic if isinstance(config, PPOConfig) else None,
            responses=fitting(sequences, room, budget),
            room=room,
        )
    assert isinstance(config, SFTConfig | DPOConfig | RewardModelConfig)
    if isinstance(config, SFTConfig):
        return Work(fitting(config.sft.batch_size, longest, budget) * longest, copies)
    options = config.dpo if isinstance(config, DPOConfig) else config.reward_model
    pairs = fitting(options.batch_size, 2 * longest, budget)
    return Work(pairs * 2 * longest, copies, logits=isinstance(config, DPOConfig))


def fitting(sequences: int, length: int, budget: int | None) -> int:
    """How many go through together, at least one.

    >>> fitting(64, 100, 1024), fitting(4, 100, 1024), fitting(64, 100, None), fitting(64, 2000, 1024)
    (10, 4, 64, 1)
    """
    return sequences if budget is None else max(1, min(sequences, budget // length))
