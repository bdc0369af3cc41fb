"""What do several judges say about a model's answers, alone or against another model? One network in memory at a time.

Both models get the same prompts and the same random numbers, so that a difference is the models' and not the dice's.
Text is the interface: base and tokenizer of the models and the judges may all differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tightrope.assemble.inputs import trial_samples, try_reward_model
from tightrope.config.errors import TightropeError
from tightrope.config.schema import DataSection
from tightrope.data.prompts import load_prompts
from tightrope.maths.diagnostics import Interval, clustered_mean, distinct_n, win_rate
from tightrope.maths.kl import k1
from tightrope.maths.ragged import segment_sum
from tightrope.models.load import context_length, eos_ids, load_tokenizer, resolve_model_folder
from tightrope.models.manifest import require_kind, tokenizer_hash
from tightrope.models.packed_forward import token_logprobs
from tightrope.models.roles import Role, load_policy, load_reward
from tightrope.rollout.local_engine import LocalEngine
from tightrope.scoring.functions import load_function
from tightrope.scoring.reward_model import RewardModel
from tightrope.types import TOKENS_AT_ONCE, Prompt, Rollout, SampleKey, Sampling, microbatch_indices

RM = "rm:"
MEASURES = ("words", "tokens", "stopped", "entropy", "kl")
"""What is told without a judge; no judge may have one of these names."""


@dataclass(frozen=True, slots=True)
class Asking:
    """What all models are asked: ``samples`` answers to each prompt, of ``new_tokens`` at most."""

    prompts: Path
    new_tokens: int
    samples: int = 1
    temperature: float = 1.0
    limit: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Answers:
    """One model's answers; ``numbers`` has one value an answer by judge and measure, ``clusters`` its prompt."""

    rollout: Rollout
    numbers: Mapping[str, Sequence[float]]
    distinct_3: float | None

    @property
    def clusters(self) -> list[int]:
        return self.rollout.prompt_index.tolist()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours minus theirs, and how often ours is higher."""

    difference: Interval
    wins: Interval


@dataclass(frozen=True, slots=True)
class JudgeSpec:
    """A reward-model folder, or a function."""

    name: str
    folder: Path | None


def read_judge(spec: str) -> JudgeSpec:
    """``rm:FOLDER``, a folder, ``module:function`` or ``file.py:function``. Raises TightropeError for anything else."""
    named = spec.removeprefix(RM)
    if spec.startswith(RM) or Path(spec).is_dir():
        folder = resolve_model_folder(named)
        require_kind(folder, "reward")
        if named in MEASURES:
            raise TightropeError("a measure has this name too", where="--judge", found=named, fix=f"write ./{named}")
        return JudgeSpec(named, folder)
    if ":" not in spec:
        raise TightropeError(
            "not a judge",
            where="--judge",
            expected="a reward-model folder, rm:FOLDER, module:function or file.py:function",
            found=repr(spec),
        )
    load_function(spec)
    return JudgeSpec(spec, None)


def evaluate(
    models: Sequence[Path], asking: Asking, judges: Sequence[JudgeSpec], reference: Path | None
) -> list[Answers]:
    """One ``Answers`` a model, in their order. Raises TightropeError before weights load."""
    for folder in models:
        require_kind(folder, "policy")
        if reference is not None and tokenizer_hash(folder) != tokenizer_hash(reference):
            raise TightropeError(
                "KL needs one tokenizer", where="--reference", found=f"{folder} and {reference} have different ones"
            )
    section = DataSection(train=asking.prompts, held_out=0, limit=asking.limit)
    tokenizers = [load_tokenizer(folder) for folder in models]
    prompts = [
        load_prompts(section, tokenizer, context=context_length(folder), new_tokens=asking.new_tokens).train
        for folder, tokenizer in zip(models, tokenizers, strict=True)
    ]
    for judge in judges:
        try_judge(judge, prompts[0])
    rollouts: list[Rollout] = []
    for folder, tokenizer, asked in zip(models, tokenizers, prompts, strict=True):
        engine = LocalEngine(load_policy(folder), tokenizer, lambda: 0, TOKENS_AT_ONCE)
        sampling = Sampling(asking.temperature, asking.new_tokens, eos_ids(folder, tokenizer))
        rollouts.append(engine.generate(asked, asking.samples, sampling, SampleKey(asking.seed, 0, 0)))
        del engine  # before the next network is loaded
    numbers = [measures(rollout) for rollout in rollouts]
    if reference is not None:
        role = load_policy(reference)
        for measured, rollout in zip(numbers, rollouts, strict=True):
            measured["kl"] = kl_of(rollout, role)
        del role
    for judge in judges:
        for measured, scores in zip(numbers, scored(judge, rollouts), strict=True):
            measured[judge.name] = scores
    return [
        Answers(rollout, measured, distinct_n(rollout.responses, 3))
        for rollout, measured in zip(rollouts, numbers, strict=True)
    ]


def try_judge(judge: JudgeSpec, prompts: Sequence[Prompt]) -> None:
    """A judge that cannot read these prompts is told before the answers are written, not after."""
    if judge.folder is None:
        load_function(judge.name).score(trial_samples(prompts))
    else:
        try_reward_model(judge.folder, prompts)


def measures(rollout: Rollout) -> dict[str, Sequence[float]]:
    """What needs no judge. ``entropy`` is -log p of the answer, whose mean over answers is the entropy in nats."""
    return {
        "words": [float(len(text.split())) for text in rollout.responses],
        "tokens": [float(count) for count in rollout.rows.action_counts.tolist()],
        "stopped": [float(reason == "stop") for reason in rollout.finish_reason],
        "entropy": (-segment_sum(rollout.behaviour_logprobs, rollout.rows.action_offsets)).tolist(),
    }


@torch.no_grad()
def kl_of(rollout: Rollout, reference: Role) -> list[float]:
    """log π − log π_ref of each answer; its mean is the KL in nats per answer (k1)."""
    rows = rollout.rows
    parts = [rows.select(group) for group in microbatch_indices(rows.lengths, TOKENS_AT_ONCE)]
    theirs = torch.cat([token_logprobs(reference, part, rollout.temperature).logprobs.cpu() for part in parts])
    return segment_sum(k1(rollout.behaviour_logprobs, theirs), rows.action_offsets).tolist()


def scored(judge: JudgeSpec, rollouts: Sequence[Rollout]) -> list[Sequence[float]]:
    """The judge is loaded once, for all models."""
    if judge.folder is None:
        source = load_function(judge.name)
    else:
        source = RewardModel(load_reward(judge.folder), load_tokenizer(judge.folder), TOKENS_AT_ONCE)
    return [source.score(rollout.samples()) for rollout in rollouts]


def mean(answers: Answers, name: str) -> Interval:
    return clustered_mean(answers.numbers[name], answers.clusters)


def compared(ours: Answers, theirs: Answers, name: str) -> Comparison:
    mine, other = ours.numbers[name], theirs.numbers[name]
    differences = [a - b for a, b in zip(mine, other, strict=True)]
    return Comparison(clustered_mean(differences, ours.clusters), win_rate(mine, other, ours.clusters))


def verdict(found: Comparison) -> str:
    """
    >>> verdict(Comparison(Interval(0.5, 0.1, 0.9), Interval(0.7, 0.6, 0.8)))
    'higher: the interval of the difference lies above 0'
    """
    if found.difference.low > 0:
        return "higher: the interval of the difference lies above 0"
    if found.difference.high < 0:
        return "lower: the interval of the difference lies below 0"
    return "undecided: the interval of the difference holds 0"
