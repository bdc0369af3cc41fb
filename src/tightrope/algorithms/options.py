"""What a person sets for each stage, and the config class of each command. Never imports torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from typing_extensions import Self

from tightrope.config.base import Section, refused
from tightrope.config.schedule import Coefficient, PositiveCoefficient, ShareCoefficient, extremes
from tightrope.config.schema import OnlineConfig, RunConfig


class PPOOptions(Section):
    epochs: PositiveInt = 4
    """Passes over each rollout."""
    minibatches: PositiveInt = 4
    """Optimizer steps of one pass; a rollout of 64 in 4 minibatches takes 16 sequences a step."""
    clip_range: ShareCoefficient = 0.2
    """The ratio is clipped to 1 - clip_range .. 1 + clip_range. A number or a schedule."""
    clip_range_high: PositiveCoefficient | None = None
    """Upper side of the clip where it differs (DAPO's clip-higher, 0.28). Absent: ``clip_range``."""
    dual_clip: float | None = Field(default=None, gt=1.0)
    """The loss of an action with advantage A < 0 is at most dual_clip x -A (3 is usual). Absent: no such bound."""
    loss_aggregation: Literal[
        "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "token_sum_const"
    ] = "token_mean"
    """How the losses of actions become one number: their mean; the mean over responses of their mean or sum; or
    their sum / (responses x rollout.max_new_tokens). Counted over the whole minibatch. The value loss is a mean."""
    entropy_coef: Coefficient = 0.0
    """The loss loses this much per nat of the policy's entropy, which keeps it undecided. A number or a schedule."""
    value_clip: PositiveCoefficient | None = 0.2
    """New values are clipped to this distance of the old ones in the value loss. Absent: no clip."""
    value_clip_unit: Literal["reward", "return_std"] = "reward"
    """``value_clip`` is a distance in rewards, or in standard deviations of the rollout's returns."""
    value_coef: PositiveCoefficient = 0.1
    """Weight of the value loss beside the policy loss on a shared trunk. A number or a schedule."""
    gamma: float = Field(default=1.0, gt=0.0, le=1.0)
    """Discount."""
    lam: float = Field(default=0.95, ge=0.0, le=1.0)
    """GAE lambda."""
    critic_lam: float | None = Field(default=None, ge=0.0, le=1.0)
    """Lambda of the critic's targets alone (decoupled GAE; VAPO has 1). Absent: that of the advantages."""
    lam_alpha: PositiveFloat | None = None
    """Lambda of the advantages = 1 - 1 / (lam_alpha x response length), at least 0, instead of ``lam`` (VAPO: 0.05)."""
    bootstrap_truncated: bool = False
    """After a cut response stands the critic's value of what might follow, not 0. Off: the reward judges the cut text,
    so its end is the end."""
    whiten_rewards: bool = False
    """Token rewards of a rollout to std 1, keeping their mean (lm-human-preferences)."""
    advantage_clip: PositiveFloat | None = None
    """Advantages are held within -advantage_clip .. advantage_clip, after whitening."""
    whiten_advantages: bool = True
    """Advantages of a rollout to mean 0, std 1 over all its actions."""
    value_warmup_steps: int = Field(default=2, ge=0)
    """First steps that train the critic alone."""
    target_kl: PositiveFloat | None = 0.05
    """Epochs stop when the KL per token between old and new policy exceeds 1.5 x this."""
    critic: Literal["shared", "separate"] = "shared"
    """Value head on the policy's trunk, or a critic of its own (an adapter with LoRA, else a model)."""

    @model_validator(mode="after")
    def has_one_lambda(self) -> Self:
        if self.lam_alpha is not None and self.lam != PPOOptions.model_fields["lam"].default:
            raise refused("lam_alpha", "ppo.lam and ppo.lam_alpha both say what lambda is", "remove one of them")
        if self.clip_range_high is not None and extremes(self.clip_range_high)[0] < extremes(self.clip_range)[0]:
            raise refused("clip_range_high", "ppo.clip_range_high is under ppo.clip_range", "raise it")
        return self


class UpdateOptions(Section):
    """How often an algorithm with rollouts learns from each; a plugin's section is one of these."""

    epochs: PositiveInt = 1
    """Passes over each rollout."""
    minibatches: PositiveInt = 1
    """Optimizer steps of one pass."""
    target_kl: PositiveFloat | None = 0.05
    """Epochs stop when the KL per token between old and new policy exceeds 1.5 x this."""


class RLOOOptions(UpdateOptions):
    clip_range: ShareCoefficient = 0.2
    """The product of a response's ratios is clipped to 1 - clip_range .. 1 + clip_range. A number or a schedule."""


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
    stage: ClassVar[str] = "sft"
    sft: SFTOptions = SFTOptions()
    """Supervised fine-tuning."""


class RewardModelConfig(RunConfig):
    stage: ClassVar[str] = "rm"
    reward_model: RewardModelOptions = RewardModelOptions()
    """The reward model's training."""


class DPOConfig(RunConfig):
    stage: ClassVar[str] = "dpo"
    dpo: DPOOptions = DPOOptions()
    """Direct preference optimization."""


class PPOConfig(OnlineConfig):
    stage: ClassVar[str] = "ppo"
    ppo: PPOOptions = PPOOptions()
    """The update of policy and critic."""

    @model_validator(mode="after")
    def fills_its_minibatches(self) -> Self:
        check_minibatches("ppo", self.ppo.minibatches, self.rollout.sequences)
        return self


class RLOOConfig(OnlineConfig):
    stage: ClassVar[str] = "rloo"
    rloo: RLOOOptions = RLOOOptions()
    """The update of the policy."""

    @model_validator(mode="after")
    def has_groups(self) -> Self:
        if self.rollout.samples_per_prompt < 2:
            raise refused(
                "rollout.samples_per_prompt",
                "RLOO compares responses to the same prompt, and rollout.samples_per_prompt is 1",
                "set rollout.samples_per_prompt to 2 or more",
            )
        check_minibatches("rloo", self.rloo.minibatches, self.rollout.sequences)
        return self


def check_minibatches(section: str, minibatches: int, sequences: int) -> None:
    if minibatches > sequences:
        raise refused(
            f"{section}.minibatches",
            f"{minibatches} minibatches cannot be made of {sequences} responses a step",
            f"set {section}.minibatches to at most {sequences}, or raise rollout.prompts_per_step",
        )


CONFIGS: dict[str, type[RunConfig]] = {
    "sft": SFTConfig,
    "rm": RewardModelConfig,
    "dpo": DPOConfig,
    "ppo": PPOConfig,
    "rloo": RLOOConfig,
}

SMALL_BATCH = 32
"""Responses a step under which PPO's advantages and the adaptive beta become noise."""
LOW_TEMPERATURE = 0.5
"""Sampling temperature under which responses to a prompt are nearly the same."""
WIDE_CLIP = 0.3
"""Clip range over which the ratio no longer holds the policy near the one that sampled."""


def warnings_of(config: RunConfig) -> list[str]:
    """What is allowed but seldom meant, one sentence each."""
    found = schedule_warnings(config) + dtype_warnings(config)
    if isinstance(config, OnlineConfig):
        found += online_warnings(config)
    if isinstance(config, PPOConfig):
        found += clip_warnings("ppo", extremes(config.ppo.clip_range)[1]) + critic_warnings(config)
    if isinstance(config, RLOOConfig):
        found += clip_warnings("rloo", extremes(config.rloo.clip_range)[1])
    return found


def dtype_warnings(config: RunConfig) -> list[str]:
    if config.model.dtype != "bfloat16":
        return []
    found = list[str]()
    if config.model.lora is None:
        found.append(
            "model.dtype: bfloat16 without model.lora trains weights that round small updates away: "
            "set model.dtype to auto or float32"
        )
    if config.model.device == "cpu":
        found.append("model.dtype: bfloat16 on a CPU without bfloat16 units may be much slower than float32")
    return found


def schedule_warnings(config: RunConfig) -> list[str]:
    steps, found = config.training.steps, list[str]()
    if config.checkpoint.every > steps:
        found.append(
            f"checkpoint.every ({config.checkpoint.every}) is over training.steps ({steps}): only the end is saved"
        )
    if config.optimizer.warmup_steps >= steps:
        found.append(
            f"optimizer.warmup_steps ({config.optimizer.warmup_steps}) is not under training.steps ({steps}): "
            "the peak learning rate is never reached"
        )
    return found


def online_warnings(config: OnlineConfig) -> list[str]:
    found = list[str]()
    sequences, steps = config.rollout.sequences, config.training.steps
    if sequences < SMALL_BATCH:
        found.append(f"{sequences} responses a step are few (under {SMALL_BATCH}): expect noisy updates")
    if config.reward.missing_eos.mode == "replace":
        found.append(
            "reward.missing_eos.mode: replace raises the reward of bad responses that were cut; subtract does not"
        )
    if config.reward.length.kind == "stop_properly" and config.reward.normalise != "off":
        found.append(
            "reward.length.kind: stop_properly multiplies the reward of a cut response, so one under 0 rises: "
            "it is for rewards of at least 0 with reward.normalise: off"
        )
    if config.evaluation.every > steps and config.evaluation.prompts:
        found.append(
            f"evaluation.every ({config.evaluation.every}) is over training.steps ({steps}): only both ends are probed"
        )
    if config.kl.always_zero:
        found.append("kl.beta is 0: nothing keeps the policy near where it started, and its KL is not measured")
    found += kl_loss_warnings(config.kl.estimator)
    if config.rollout.temperature < LOW_TEMPERATURE:
        found.append(f"rollout.temperature {config.rollout.temperature:g} is low: the policy explores little")
    if (
        config.guardian.kl_limit is not None
        and config.kl.target is not None
        and config.guardian.kl_limit <= config.kl.target
    ):
        found.append("guardian.kl_limit is not over kl.target: the guardian will act on a healthy run")
    return found


def kl_loss_warnings(estimator: str) -> list[str]:
    """What the gradient of a KL loss is; the exact table is the golden case ``kl_gradients_exact``."""
    if estimator == "k3":
        return ["kl.estimator: k3 as a loss has the gradient of KL(reference || policy), the other direction; see k2"]
    if estimator in ("k2", "ratio_k3"):
        return [
            f"kl.estimator: {estimator} as a loss sees the KL of each token, not what the token does to later ones; "
            "kl.placement: reward sees both"
        ]
    return []


def clip_warnings(section: str, clip_range: float) -> list[str]:
    if clip_range <= WIDE_CLIP:
        return []
    return [f"{section}.clip_range {clip_range:g} is wide (over {WIDE_CLIP}): updates may go far"]


def critic_warnings(config: PPOConfig) -> list[str]:
    found, rates = list[str](), config.optimizer
    if rates.critic_learning_rate is not None and rates.critic_learning_rate <= rates.learning_rate:
        found.append(
            "optimizer.critic_learning_rate is not over optimizer.learning_rate: the critic will lag behind the policy"
        )
    if config.ppo.value_warmup_steps >= config.training.steps:
        found.append("ppo.value_warmup_steps is not under training.steps: the policy is never trained")
    return found
