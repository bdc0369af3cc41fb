"""What a person sets for each stage, and the config class of each command. Never imports torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from tightrope.config.base import Section
from tightrope.config.schema import OnlineConfig, RunConfig


class PPOOptions(Section):
    epochs: PositiveInt = 4
    """Passes over each rollout."""
    minibatches: PositiveInt = 4
    """Optimizer steps of one pass; a rollout of 64 in 4 minibatches takes 16 sequences a step."""
    clip_range: PositiveFloat = 0.2
    """The ratio is clipped to 1 - clip_range .. 1 + clip_range."""
    value_clip: PositiveFloat | None = 0.2
    """New values are clipped to this distance of the old ones in the value loss. Absent: no clip."""
    value_coef: PositiveFloat = 0.1
    """Weight of the value loss beside the policy loss on a shared trunk."""
    gamma: float = Field(default=1.0, gt=0.0, le=1.0)
    """Discount."""
    lam: float = Field(default=0.95, ge=0.0, le=1.0)
    """GAE lambda."""
    whiten_advantages: bool = True
    """Advantages of a rollout to mean 0, std 1 over all its actions."""
    value_warmup_steps: int = Field(default=2, ge=0)
    """First steps that train the critic alone."""
    target_kl: PositiveFloat | None = 0.05
    """Epochs stop when the KL per token between old and new policy exceeds 1.5 x this."""
    critic: Literal["shared", "separate"] = "shared"
    """Value head on the policy's trunk, or a critic of its own (an adapter with LoRA, else a model)."""


class RLOOOptions(Section):
    epochs: PositiveInt = 1
    """Passes over each rollout."""
    minibatches: PositiveInt = 1
    """Optimizer steps of one pass."""
    clip_range: PositiveFloat = 0.2
    """The product of a response's ratios is clipped to 1 - clip_range .. 1 + clip_range."""
    target_kl: PositiveFloat | None = 0.05
    """Epochs stop when the KL per token between old and new policy exceeds 1.5 x this."""


class OfflineOptions(Section):
    batch_size: PositiveInt = 32
    """Rows (or pairs) of one optimizer step; the last, smaller batch of an epoch is used too."""
    evaluate_every: PositiveInt = 50
    """Steps between measurements on the held-out rows."""


class SFTOptions(OfflineOptions):
    pass


class RewardModelOptions(OfflineOptions):
    center_coef: float = Field(default=0.0, ge=0.0)
    """Weight of mean((r_chosen + r_rejected)^2), which keeps scores near 0."""


class DPOOptions(OfflineOptions):
    beta: PositiveFloat = 0.1
    """Strength of the implicit KL constraint."""
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=0.5)
    """Assumed share of wrong labels (conservative DPO)."""


class SFTConfig(RunConfig):
    sft: SFTOptions = SFTOptions()


class RewardModelConfig(RunConfig):
    reward_model: RewardModelOptions = RewardModelOptions()


class DPOConfig(RunConfig):
    dpo: DPOOptions = DPOOptions()


class PPOConfig(OnlineConfig):
    ppo: PPOOptions = PPOOptions()


class RLOOConfig(OnlineConfig):
    rloo: RLOOOptions = RLOOOptions()


CONFIGS: dict[str, type[RunConfig]] = {
    "sft": SFTConfig,
    "rm": RewardModelConfig,
    "dpo": DPOConfig,
    "ppo": PPOConfig,
    "rloo": RLOOConfig,
}
