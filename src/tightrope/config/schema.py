"""The sections shared by all stages. What belongs to one algorithm lives beside that algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from typing_extensions import Self

from tightrope.config.base import FunctionSpec, ModelName, Section, refused
from tightrope.config.reward_sources import SourceSection
from tightrope.config.schedule import Coefficient, extremes

TextSource = ModelName
"""Where plain text is."""
Preset = Literal["rlhf", "verifiable"]
"""The files in ``presets/``."""
HALF = ("float16", "fp16", "half", "f16")
LEAST_TEMPERATURE = 1e-3
"""Logits divided by less leave what float32 can hold; at this one almost every token is the likeliest already."""
MomentDecay = Annotated[float, Field(ge=0.0, lt=1.0)]


class LoraSection(Section):
    rank: PositiveInt = 16
    """Rank of every adapter; roles that start from each other share it."""
    alpha: PositiveFloat = 32.0
    """Adapter output is scaled by alpha / rank."""
    from_layer: int = Field(default=0, ge=0)
    """Adapters from this layer (counted from 0) up. The layers below stay those of the starting model for every role,
    so their states are computed once a rollout and used by all roles and epochs: the same numbers in less time. What
    fewer adapters cost in quality is another question: compare at equal samples."""
    dropout: float = Field(default=0.0, ge=0.0, le=0.0)
    """Always 0: dropout makes the first ratio differ from 1."""


class ModelSection(Section):
    name: ModelName
    """Folder of a Hugging Face model or of a run (its ``export`` is used), peft adapter folder, .gguf file, or name on
    the Hugging Face hub (``org/model``)."""
    lora: LoraSection | None = None
    """Train adapters on one frozen backbone. Absent: full fine-tuning with separate copies."""
    revision: str | None = None
    """Branch, tag or commit of a hub name. Absent: what the local hub cache has of ``main``, else the newest."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Weights' type. ``auto``: float32 on a CPU and wherever all weights are trained, because bfloat16's three digits
    swallow small updates; on a GPU that has it bfloat16 for what stays frozen (the backbone under LoRA adapters, which
    are float32 themselves) and for scoring and generating."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where the model runs. ``auto``: a CUDA GPU, else the CPU. ``mps``: an Apple GPU, in float32; untested."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass instead of keeping its inner results: the same gradients, less
    memory, about a third more arithmetic."""

    @model_validator(mode="before")
    @classmethod
    def wide_enough(cls, given: Any) -> Any:
        """Half precision is refused with its reason, not as one more unknown value."""
        if isinstance(given, dict) and str(given.get("dtype")).removeprefix("torch.") in HALF:  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
            raise refused(
                "dtype",
                "pure float16 is refused: its range ends at 65504, so gradients and small updates overflow or vanish",
                "set model.dtype to auto or bfloat16; a float16 checkpoint is read as float32 or bfloat16",
            )
        return given  # pyright: ignore[reportUnknownVariableType]

    @model_validator(mode="after")
    def device_has_the_type(self) -> Self:
        if self.device == "mps" and self.dtype == "bfloat16":
            raise refused("dtype", "bfloat16 on an Apple GPU is not supported", "set model.dtype to auto or float32")
        return self


class DataSection(Section):
    train: Path
    """JSONL, CSV or parquet file."""
    evaluation: Path | None = None
    """Held-out file. Absent: ``held_out`` rows are split off by prompt."""
    held_out: int = Field(default=64, ge=0)
    """Rows split off by prompt for evaluation when no evaluation file is given."""
    max_prompt_tokens: PositiveInt | None = None
    """Longest prompt. Absent: the model's context minus the new tokens."""
    overlong: Literal["error", "drop", "trim"] = "error"
    """What happens to a row over the limit: stop with its row number, leave it out, or cut the prompt's beginning."""
    limit: PositiveInt | None = None
    """Use only the first rows."""


class TruncateSection(Section):
    token: str = Field(min_length=1)
    """Text of the token that ends a response; it must be one token of the policy's tokenizer."""
    after: int = Field(default=0, ge=0)
    """Response token number (from 0) before which it does not."""


class RolloutSection(Section):
    prompts_per_step: PositiveInt = 64
    """Prompts of one step."""
    samples_per_prompt: PositiveInt = 1
    """Responses to each prompt; a group for RLOO."""
    max_new_tokens: PositiveInt = 64
    """Responses longer than this are cut (finish reason ``length``)."""
    temperature: float = Field(default=1.0, ge=LEAST_TEMPERATURE)
    """Divides the logits in rollout, reference and update alike."""
    top_k: int | None = None
    """Refused in RL: the sampled distribution must be the scored one."""
    top_p: float | None = None
    """Refused in RL: the sampled distribution must be the scored one."""
    truncate: TruncateSection | None = None
    """End a response at a token (finish reason ``stop``); one in which neither it nor an end token came was cut and
    pays ``reward.missing_eos``."""
    fixed_prompts: bool = False
    """The same prompts every step, to measure progress."""

    @property
    def sequences(self) -> int:
        """Responses of one step."""
        return self.prompts_per_step * self.samples_per_prompt

    @model_validator(mode="after")
    def samples_what_it_scores(self) -> Self:
        for key, value in (("top_k", self.top_k), ("top_p", self.top_p)):
            if value is not None:
                raise refused(
                    key,
                    f"rollout.{key} is refused in RL, because the sampled distribution must be the scored one",
                    f"remove {key}; use rollout.temperature to sharpen the samples",
                )
        if self.truncate is not None and self.truncate.after >= self.max_new_tokens:
            raise refused(
                "truncate.after",
                f"rollout.truncate.token never ends a response: the last one is number {self.max_new_tokens - 1}",
                f"set rollout.truncate.after under {self.max_new_tokens}",
            )
        return self


class MissingEosSection(Section):
    mode: Literal["subtract", "replace", "off"] = "subtract"
    """``subtract`` value from the reward of a cut response, ``replace`` its reward by -value, or do nothing."""
    value: Coefficient = 1.0
    """The penalty, in units of the normalised reward. A number or a schedule."""


class LengthSection(Section):
    kind: Literal["off", "over_budget", "soft_overlong", "stop_properly"] = "off"
    """``over_budget``: cost per token beyond ``budget``; ``soft_overlong`` (DAPO): rises over the last ``buffer``
    tokens of the budget to ``cost``; ``stop_properly`` (ProRL): a cut response's reward is multiplied by ``cost``."""
    cost: Coefficient = 0.01
    """What it costs, see ``kind``. A number or a schedule."""
    budget: PositiveInt | None = None
    """Response tokens that are free."""
    buffer: PositiveInt | None = None
    """Last tokens of the budget over which ``soft_overlong`` rises."""

    @model_validator(mode="after")
    def has_what_its_kind_needs(self) -> Self:
        needed = {"over_budget": ("budget",), "soft_overlong": ("budget", "buffer")}.get(self.kind, ())
        for key, value in (("budget", self.budget), ("buffer", self.buffer)):
            if key in needed and value is None:
                raise refused(key, f"reward.length.kind: {self.kind} has no {key}", f"set reward.length.{key}")
            if key not in needed and value is not None:
                raise refused(
                    key, f"reward.length.{key} does nothing with reward.length.kind: {self.kind}", f"remove {key}"
                )
        if self.budget is not None and self.buffer is not None and self.buffer > self.budget:
            raise refused("buffer", "reward.length.buffer is longer than reward.length.budget", "make it shorter")
        return self


class RewardSection(Section):
    model: ModelName | None = None
    """A reward model, named as in ``model.name``; scores text, so base and tokenizer may differ from the policy's."""
    function: FunctionSpec | None = None
    """``module:function``, ``file.py:function`` or an entry point of ``tightrope.rewards``, called with the samples
    (original row and response text)."""
    sources: tuple[SourceSection, ...] = ()
    """Several sources in place of ``model`` or ``function``, each with a weight, a scale, a clip and a gate of its own
    (docs/rewards.md)."""
    order: Literal["sum_then_normalise", "normalise_then_sum"] = "sum_then_normalise"
    """With ``sources``: the weighted sum is normalised, or each source is before it is scaled, clipped and weighted."""
    normalise: Literal["samples", "manifest", "off"] = "samples"
    """Gain and bias to mean 0, std 1: from the starting policy's samples, the reward model's manifest, or none."""
    normalise_samples: PositiveInt = 256
    """Responses drawn for ``normalise: samples``."""
    missing_eos: MissingEosSection = MissingEosSection()
    """What a cut response costs."""
    scale: Literal["off", "running_std"] = "off"
    """Divide rewards by the running standard deviation of all training rewards so far, keeping their mean."""
    clip: PositiveFloat | None = None
    """Rewards are held within -clip .. clip, after normalising and scaling, before the costs below."""
    length_cost: Coefficient = 0.0
    """The reward loses this much per response token (reward - cost x length). A number or a schedule."""
    length: LengthSection = LengthSection()
    """Other penalties on length."""

    @property
    def models(self) -> list[str]:
        """The reward models among the sources."""
        return [name for name in (self.model, *(source.model for source in self.sources)) if name is not None]

    @model_validator(mode="after")
    def has_one_source(self) -> Self:
        given = {"model": self.model, "function": self.function, "sources": self.sources or None}
        chosen = [f"reward.{name}" for name, value in given.items() if value is not None]
        if not chosen:
            raise refused("", "nothing gives rewards", "set reward.model or reward.function")
        if len(chosen) > 1:
            key = chosen[1].removeprefix("reward.")
            if chosen == ["reward.model", "reward.function"]:
                raise refused(key, "both reward.model and reward.function are set", "remove one of them")
            raise refused(
                key, f"both {' and '.join(chosen)} are set", "put all of them into reward.sources, or leave it out"
            )
        if self.model is None and self.normalise == "manifest":
            raise refused(
                "normalise",
                "reward.normalise: manifest reads a reward model's manifest, and "
                + ("reward.sources are of several kinds" if self.sources else "reward.function has none"),
                "set reward.normalise to samples or off",
            )
        return self

    @model_validator(mode="after")
    def sources_go_together(self) -> Self:
        names = [source.name for source in self.sources]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise refused("sources", f"two reward sources are called `{twice}`", "give each a name of its own")
        if len(self.models) > 1:
            raise refused(
                "sources", "more than one reward source is a model", "keep one; serve the others and use http"
            )
        if self.sources and not any(source.weight for source in self.sources):
            raise refused("sources", "every reward source has weight 0, so nothing is learned", "give one a weight")
        if not self.sources and self.order != type(self).model_fields["order"].default:
            raise refused("order", "reward.order is about reward.sources, and there are none", "remove reward.order")
        return self


class KLSection(Section):
    beta: Coefficient = 0.05
    """KL coefficient: the start of a controller, or with ``mode: fixed`` a number or a schedule."""
    placement: Literal["reward", "loss"] = "reward"
    """``reward``: each action's reward loses beta x KL, so its effect on later KL counts. ``loss``: a loss term."""
    estimator: Literal["k1", "k2", "k3", "ratio_k3"] = "k1"
    """What stands for the KL of an action. In the reward k1 alone is right; as a loss k1 teaches nothing, k2 and
    ratio_k3 have the gradient of the true KL of the token, and k3 has that of the other direction."""
    mode: Literal["adaptive", "fixed", "ziegler"] = "adaptive"
    """Who moves beta: the log-space controller, nobody but its schedule, or Ziegler's controller."""
    target: PositiveFloat | None = None
    """Nats per response. Absent: max(4, 0.1 x mean response length of the starting policy)."""
    gain: PositiveFloat = 0.1
    """log beta moves by gain x (expected KL / target - 1) a step."""
    lookahead: float = Field(default=20.0, ge=0.0)
    """Steps ahead for which the adaptive controller expects the KL, going on as it lately did. 0: the KL just measured,
    which overshoots."""
    max_step: PositiveFloat = 0.2
    """Largest move of log beta a step."""
    beta_min: PositiveFloat = 1e-4
    """Lower bound of a moving beta."""
    beta_max: PositiveFloat = 10.0
    """Upper bound of a moving beta."""
    horizon: PositiveInt = 10_000
    """Ziegler's controller: episodes over which beta may double."""
    allow_zero: bool = False
    """Permit beta 0 with a learned reward model."""

    @property
    def always_zero(self) -> bool:
        """No step of the run has a KL penalty. (A schedule may start from 0 or end there.)"""
        return extremes(self.beta)[1] == 0

    @model_validator(mode="after")
    def moves_within_bounds(self) -> Self:
        if self.beta_min > self.beta_max:
            raise refused("beta_min", "kl.beta_min is above kl.beta_max", "swap them")
        if self.mode != "fixed" and not isinstance(self.beta, float):
            raise refused("beta", f"a schedule and kl.mode: {self.mode} both move kl.beta", "set kl.mode: fixed")
        if self.placement == "reward" and self.estimator != "k1":
            raise refused(
                "estimator",
                f"{self.estimator} in the reward does not lead to the KL-regularised optimum; k1 does",
                "set kl.estimator: k1, or kl.placement: loss",
            )
        if self.placement == "loss" and self.estimator == "k1":
            raise refused(
                "estimator",
                "k1 as a loss has no gradient in expectation, so it holds nothing",
                "set kl.estimator: k2 or ratio_k3, or kl.placement: reward",
            )
        beta = extremes(self.beta)[0]
        moving = self.mode in ("adaptive", "ziegler") and beta > 0
        if moving and not self.beta_min <= beta <= self.beta_max:
            raise refused(
                "beta",
                "kl.beta starts outside kl.beta_min and kl.beta_max",
                f"take one from {self.beta_min:g} to {self.beta_max:g}, or move the bounds",
            )
        return self


class OptimizerSection(Section):
    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate of the policy (or of the only model)."""
    critic_learning_rate: PositiveFloat | None = None
    """Peak learning rate of the critic. Absent: 5 x the policy's."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Of policy and critic: ``linear`` and ``cosine`` fall to 0 over the run."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear rise from 0."""
    betas: tuple[MomentDecay, MomentDecay] = (0.9, 0.999)
    """Adam's moment decays."""
    eps: PositiveFloat = 1e-5
    """Adam's epsilon (1e-5 as in lm-human-preferences)."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients over this norm are scaled down, for policy and critic separately."""


class TrainingSection(Section):
    steps: PositiveInt = 100
    """Steps of the run."""
    token_budget: PositiveInt | None = 8192
    """Tokens of one forward and backward pass (micro-batch). Changes memory and speed, never the result."""


class CheckpointSection(Section):
    every: PositiveInt = 10
    """Steps between checkpoints; the last step is always saved."""
    keep: PositiveInt = 2
    """Newest checkpoints that stay on disk."""


class GuardianSection(Section):
    kl_limit: PositiveFloat | None = None
    """Nats per response at which the guardian acts. Absent: 4 x the KL target."""
    raise_factor: float = Field(default=2.0, gt=1.0)
    """Factor on beta at each alarm."""
    patience: PositiveInt = 5
    """Alarms in a row after which the run stops."""
    max_nonfinite: PositiveInt = 3
    """Consecutive steps with non-finite numbers after which the run stops."""
    detectors: tuple[FunctionSpec, ...] = ()
    """More detectors: ``module:function`` or entry points of ``tightrope.detectors``, each giving a Detector."""


class TrackerOptions(Section):
    project: str = Field(default="tightrope", min_length=1)
    """Project (MLflow: experiment) under which the run appears."""
    run_name: str | None = None
    """Name of the run in its trackers. Absent: the run folder's."""
    trl_names: bool = False
    """Log TRL's PPO metric names (``objective/kl``, ``policy/clipfrac_avg``, ...) beside our own."""


class EvaluationSection(Section):
    every: PositiveInt = 10
    """Steps between probes: the same held-out prompts with the same random numbers."""
    prompts: int = Field(default=32, ge=0)
    """Held-out prompts of a probe; 0 turns it off."""
    function: FunctionSpec | None = None
    """Held-out judge (``module:function``): reported, never trained on."""
    forgetting: TextSource | None = None
    """Plain text on which each probe takes the policy's perplexity: named as ``ptx.corpus``, and refused where they
    share a document. ``builtin``: the tenth of Python's documentation that no mix is trained on."""
    forgetting_tokens: PositiveInt = 2048
    """About so many of its tokens are read."""

    @model_validator(mode="after")
    def probes_what_it_measures(self) -> Self:
        if self.forgetting is not None and self.prompts == 0:
            raise refused("forgetting", "evaluation.prompts: 0 turns the probe off", "set evaluation.prompts above 0")
        return self


class SamplesSection(Section):
    every: PositiveInt = 1
    """Steps between stored samples."""
    count: int = Field(default=8, ge=0)
    """Sequences stored each time."""
    keep_steps: PositiveInt | None = None
    """Newest stored steps whose samples stay, of training and of probes each; the first probe always stays, to compare
    with. Absent: all."""
    digest_every: int = Field(default=0, ge=0)
    """Print a few samples in the log every so many steps; 0: never."""


class PTXSection(Section):
    corpus: TextSource
    """Plain text to go on pretraining on: a text file (one document), a JSONL, CSV or parquet file (column ``text``, a
    row a document), a folder of such files, or ``builtin``: the documentation that comes with Python."""
    coefficient: Coefficient = 1.0
    """Weight of the mean next-token cross-entropy of the corpus in the loss. A number or a schedule."""
    ratio: PositiveFloat = 1.0
    """Corpus tokens per response token of each optimizer step, rounded up to whole sequences."""
    every: PositiveInt = 1
    """Mix in every so many steps only."""
    sequence_length: int = Field(default=256, ge=2)
    """Longest piece of a document in tokens."""
    measure_every: int = Field(default=1, ge=0)
    """Measure the mix's share of the gradient in every so many mixing steps, which takes a copy of the policy's
    gradient; 0: never. It changes no weight."""


class RunConfig(Section):
    """What every stage has."""

    stage: ClassVar[str]
    """The stage's name, as it stands in ``resolved.yaml``."""
    output: Path
    """Run folder."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Keys every random number of the run."""
    model: ModelSection
    """What is trained."""
    data: DataSection
    """What it is trained on."""
    optimizer: OptimizerSection = OptimizerSection()
    """How far a step goes."""
    training: TrainingSection = TrainingSection()
    """How long, and how much at once."""
    checkpoint: CheckpointSection = CheckpointSection()
    """What an interrupted run goes on from."""
    guardian: GuardianSection = GuardianSection()
    """When a run that goes wrong is held or stopped."""
    trackers: tuple[FunctionSpec, ...] = ()
    """Where else the numbers go: ``tensorboard``, ``wandb``, ``trackio``, ``mlflow``, ``module:function`` or an entry
    point of ``tightrope.trackers``. The run folder has everything without them."""
    tracker_options: TrackerOptions = TrackerOptions()
    """What trackers are told."""


class OnlineConfig(RunConfig):
    """What every algorithm with rollouts has."""

    preset: Preset | None = None
    """Values for one kind of reward, laid under this file: ``rlhf`` for a learned reward model, ``verifiable`` for a
    reward that is right by construction. What is written beside it wins."""
    rollout: RolloutSection = RolloutSection()
    """What is sampled in a step."""
    reward: RewardSection
    """What is good: a reward model, a function, or several sources."""
    kl: KLSection = KLSection()
    """How near the policy stays to where it started."""
    ptx: PTXSection | None = None
    """Pretraining-loss mixing: plain text beside the reward, against forgetting. Absent: none."""
    evaluation: EvaluationSection = EvaluationSection()
    """The probe on held-out prompts."""
    samples: SamplesSection = SamplesSection()
    """Which responses are stored to be read."""

    @model_validator(mode="after")
    def holds_the_policy(self) -> Self:
        """Without a KL penalty the policy drifts to whatever a learned reward model overrates."""
        kl = self.kl
        if kl.always_zero and self.reward.models and not kl.allow_zero:
            raise refused(
                "kl.beta",
                "zero KL with a learned reward model, so nothing keeps the policy from what the model overrates",
                "set kl.beta above 0, or kl.allow_zero: true if you mean it",
            )
        if kl.always_zero and kl.mode in ("adaptive", "ziegler"):
            raise refused(
                "kl.beta",
                f"kl.mode: {kl.mode} multiplies beta, so it can never leave 0",
                "set kl.mode: fixed, or kl.beta above 0",
            )
        return self
