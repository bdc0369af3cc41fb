"""README.md of an exported model: what it is, how it was made, what was measured. What is not known is not written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tightrope.config.schedule import Schedule
from tightrope.config.schema import KLSection, OnlineConfig, RewardSection, RunConfig
from tightrope.data.readers import read_rows
from tightrope.models.export import RewardFacts
from tightrope.models.manifest import StageManifest
from tightrope.records import StepRecord

TITLES = {
    "sft": "Fine-tuned on demonstrations",
    "rm": "Reward model",
    "dpo": "Trained on preferences with DPO",
    "ppo": "Trained with PPO",
    "rloo": "Trained with RLOO",
}
EXPORT_FOLDER = "export"
"""Of a run: its name alone would say nothing."""
SHOWN = {
    "reward_raw": "reward (raw)",
    "held_out": "held-out judge",
    "kl_seq": "KL to the start, nats per response",
    "response_tokens": "tokens per response",
    "distinct_3": "distinct-3",
    "accuracy": "pairs in the right order",
    "loss": "loss",
}
"""Metrics of held-out data, before and after."""


@dataclass(frozen=True)
class CardFacts:
    """``step``: whose weights these are. ``data``: sha256 by file. ``rows``: everything the run recorded.

    ``reward_pad``: the pad a reward model is read with. Where the base's own is its end token, another score is read.
    ``reward_model``: what the reward model that a policy was trained on says of itself.
    """

    stage: str
    config: RunConfig
    step: int
    data: Mapping[str, str]
    rows: Sequence[StepRecord]
    reward: RewardFacts | None = None
    reward_pad: int | None = None
    reward_model: StageManifest | None = None


def model_card(facts: CardFacts, *, adapter_only: bool = False) -> str:
    parts = [
        *metadata(facts, adapter_only),
        f"# {TITLES.get(facts.stage, f'Trained with {facts.stage}')}",
        "",
        *introduction(facts),
        "",
        "## Training",
        "",
        *training(facts),
        "",
        *measured(facts),
        "## Limits",
        "",
        *limits(facts),
        "",
        "## Load it",
        "",
        "```python",
        *loading(facts, adapter_only),
        "```",
    ]
    return "\n".join(parts) + "\n"


def metadata(facts: CardFacts, adapter_only: bool) -> Iterator[str]:
    """``base_model`` only where it is a name on the hub, as the hub asks."""
    yield "---"
    yield f"library_name: {'peft' if adapter_only else 'transformers'}"
    yield f"pipeline_tag: {'text-classification' if facts.stage == 'rm' else 'text-generation'}"
    name = facts.config.model.name
    if not Path(name).exists() and name.count("/") == 1:
        yield f"base_model: {json.dumps(name)}"
    yield "tags:"
    yield from (f"- {tag}" for tag in ("tightrope", facts.stage))
    yield "---"
    yield ""


def introduction(facts: CardFacts) -> Iterator[str]:
    yield f"Made with Tightrope from `{shown(facts.config.model.name)}`."
    total = facts.config.training.steps
    if facts.step < total:
        yield f"These are the weights of step {facts.step} of {total}: the training was not finished here."


def training(facts: CardFacts) -> Iterator[str]:
    config = facts.config
    yield f"- stage: {facts.stage}, {facts.step} of {config.training.steps} steps, seed {config.seed}"
    yield f"- learning rate: {config.optimizer.learning_rate:g}"
    if config.model.lora is not None:
        yield f"- LoRA: rank {config.model.lora.rank}, alpha {config.model.lora.alpha:g}"
    if isinstance(config, OnlineConfig):
        rollout = config.rollout
        yield f"- rollouts: {rollout.prompts_per_step} prompts a step, {rollout.samples_per_prompt} responses each,"
        yield f"  at most {rollout.max_new_tokens} tokens, temperature {rollout.temperature:g}"
        yield from reward_told(facts, config.reward)
        yield f"- KL to the start: {kl_told(config.kl)}"
    for path, digest in facts.data.items():
        yield f"- data: `{Path(path).name}`, sha256 `{digest}`"
    if facts.stage in ("rm", "dpo") and synthetic(config.data.train):
        yield "- the preferences are synthetic: the rows say that no person gave them"


def reward_told(facts: CardFacts, reward: RewardSection) -> Iterator[str]:
    if not reward.sources:
        kind, name = "model" if reward.model else "function", reward.model or reward.function
        yield f"- reward: {kind} `{shown(str(name))}`{known_accuracy(facts)}"
        return
    yield f"- reward: {len(reward.sources)} sources, {reward.order.replace('_', ' ')}"
    for source in reward.sources:
        gate = "" if source.gate is None else f", under {source.gate.below:g} the total is at most {source.gate.cap:g}"
        accuracy = known_accuracy(facts) if source.model else ""
        yield f"  - `{source.name}`: {source.kind}, weight {source.weight:g}{gate}{accuracy}"


def kl_told(kl: KLSection) -> str:
    """
    >>> kl_told(KLSection(beta=0.1, target=6.0))
    'beta 0.1 at first, adaptive, target 6 nats per response, in the reward (k1)'
    """
    if kl.always_zero:
        return "no penalty (beta 0)"
    place = f"in the {kl.placement} ({kl.estimator})"
    if isinstance(kl.beta, Schedule):
        return f"beta from {kl.beta.first:g} to {kl.beta.last:g}, {place}"
    if kl.mode == "fixed":
        return f"beta {kl.beta:g}, fixed, {place}"
    target = "target by response length" if kl.target is None else f"target {kl.target:g} nats per response"
    return f"beta {kl.beta:g} at first, {kl.mode}, {target}, {place}"


def shown(name: str | Path) -> str:
    """A hub's name as it is; of a path what a person called it, without where it lies here.

    >>> shown("org/model"), shown("/home/someone/runs/sft/export"), shown("/models/small")
    ('org/model', 'sft/export', 'small')
    """
    path = Path(name)
    if not path.is_absolute() and not path.exists():
        return str(name)
    return f"{path.parent.name}/{path.name}" if path.name == EXPORT_FOLDER else path.name


def known_accuracy(facts: CardFacts) -> str:
    manifest = facts.reward_model
    if manifest is None or manifest.accuracy is None or manifest.accuracy_interval is None:
        return ""
    low, high = manifest.accuracy_interval
    return (
        f", which has {manifest.accuracy:.1%} of {manifest.held_out_pairs} held-out pairs in the right order "
        f"(95 % interval {low:.1%} to {high:.1%})"
    )


def synthetic(file: Path) -> bool:
    """Known only from the rows themselves."""
    return file.is_file() and any(row.values.get("synthetic") is True for row in read_rows(file)[:1])


def measured(facts: CardFacts) -> Iterator[str]:
    """Held-out numbers of the first measurement and of the last one up to this step."""
    probes = [row for row in facts.rows if "/" in row.stage and row.step <= facts.step]
    if not probes and (facts.reward is None or facts.reward.accuracy is None):
        return
    yield from ("## Measured on held-out data", "")
    if probes:
        first, last = probes[0], probes[-1]
        yield from (f"| | step {first.step} | step {last.step} |", "|---|---|---|")
        for name, title in SHOWN.items():
            if name in first.metrics and name in last.metrics:
                yield f"| {title} | {first.metrics[name]:.4g} | {last.metrics[name]:.4g} |"
        yield ""
    if facts.reward is not None and facts.reward.accuracy is not None:
        share, low, high = facts.reward.accuracy
        pairs = facts.reward.held_out_pairs
        yield f"{share:.1%} of {pairs} held-out pairs in the right order (95 % interval {low:.1%} to {high:.1%})."
        yield ""


def limits(facts: CardFacts) -> Iterator[str]:
    if facts.stage == "rm":
        yield "Scores order answers to one prompt; they have no absolute meaning, and a policy trained hard against"
        yield "them finds what they overrate."
    elif isinstance(facts.config, OnlineConfig):
        yield "The reward above is what was trained on: it rises also where quality does not. Only a judge that was"
        yield "not trained on is evidence."
    yield "This training run measured neither safety nor facts."


def loading(facts: CardFacts, adapter_only: bool) -> Iterator[str]:
    kind = "AutoModelForSequenceClassification" if facts.stage == "rm" else "AutoModelForCausalLM"
    extra = ", num_labels=1" if facts.stage == "rm" and adapter_only else ""
    yield f"from transformers import {kind}, AutoTokenizer"
    if adapter_only:
        yield "from peft import PeftModel"
        yield ""
        yield f'base = {kind}.from_pretrained("BASE"{extra})'
        if facts.stage == "rm":
            yield f"base.config.pad_token_id = {facts.reward_pad}  # the score is read at the last token"
        yield 'model = PeftModel.from_pretrained(base, "FOLDER")'
    else:
        yield ""
        yield f'model = {kind}.from_pretrained("FOLDER")'
    yield 'tokenizer = AutoTokenizer.from_pretrained("FOLDER")'
