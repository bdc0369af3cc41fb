"""From folders and files to an audit: which pairs a reward model learned from, which not, and who else judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from tightrope.algorithms.options import RewardModelConfig
from tightrope.algorithms.plugins import STAGES
from tightrope.assemble.evaluation import JudgeSpec, read_judge
from tightrope.audit.pairs import Scorer, TextPair
from tightrope.audit.policy import PolicySamples
from tightrope.audit.report import Audit
from tightrope.audit.run import Material, Size, audit
from tightrope.config.errors import TightropeError
from tightrope.config.load import load_resolved
from tightrope.config.schema import DataSection, OnlineConfig
from tightrope.data.chat_format import ChatFormat
from tightrope.data.loading import Overlong, load_sides
from tightrope.data.preferences import fitted, pair_of
from tightrope.data.prompts import load_prompts
from tightrope.data.readers import Row, placed, read_rows
from tightrope.models.load import context_length, load_tokenizer, resolve_model_folder
from tightrope.models.manifest import require_kind
from tightrope.models.roles import load_reward
from tightrope.scoring.functions import load_function
from tightrope.scoring.reward_model import RewardModel
from tightrope.storage.labels import preference_rows
from tightrope.storage.run_folder import RunFolder, holds_run
from tightrope.storage.samples import SampleStore, StoredSample
from tightrope.types import TOKENS_AT_ONCE, Prompt, Sample

GRADES = ("chosen_score", "rejected_score")
SAMPLES = 512
"""Answers of a run that are looked at, the newest ones."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What ``tightrope rm audit`` was given. ``pairs`` are held out; absent, the run's own split is used."""

    model: Path
    pairs: Path | None = None
    train: Path | None = None
    samples: Path | None = None
    votes: Path | None = None
    judge: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class TextSides:
    train: list[TextPair]
    held_out: list[TextPair]


def audit_reward_model(asked: Asked, size: Size) -> Audit:
    """Raises TightropeError before weights load for a folder, file or judge that cannot be used."""
    folder = resolve_model_folder(asked.model)
    require_kind(folder, "reward")
    tokenizer = load_tokenizer(folder)
    form = ChatFormat(tokenizer)
    sides = sides_of(asked, folder, form)
    judge = None if asked.judge is None else judge_of(read_judge(asked.judge))
    votes = [] if asked.votes is None else voted(asked.votes, form)
    policy = None if asked.samples is None else policy_samples(asked.samples, form)
    source = RewardModel(load_reward(folder), tokenizer, TOKENS_AT_ONCE)
    material = Material(
        model=str(asked.model),
        train=sides.train,
        held_out=sides.held_out,
        score=source.score,
        can_write=writer(tokenizer),
        judge=judge,
        judge_name=asked.judge,
        votes=votes,
        policy=policy,
    )
    return audit(material, size, asked.seed)


def sides_of(asked: Asked, folder: Path, form: ChatFormat) -> TextSides:
    """Pairs the model learned from and others. Raises TightropeError where no pair is named."""
    own = None if asked.train is not None and asked.pairs is not None else run_sides(asked.model, folder, form)
    if own is None and asked.pairs is None:
        raise TightropeError(
            "which pairs? This model folder does not say what it was trained on",
            where=str(asked.model),
            fix="name a file of held-out pairs, or give the run folder of `rm train`",
        )
    train = file_pairs(asked.train, form) if asked.train is not None else [] if own is None else own.train
    held_out = file_pairs(asked.pairs, form) if asked.pairs is not None else own.held_out if own is not None else []
    return TextSides(train, held_out)


def run_sides(model: Path, folder: Path, form: ChatFormat) -> TextSides | None:
    """The split of the run that made this model; None for a folder that is no such run."""
    if not holds_run(model):
        return None
    _, config = load_resolved(RunFolder.read(model).resolved, STAGES)
    if not isinstance(config, RewardModelConfig):
        return None
    return text_sides(config.data, form, context_length(folder))


def text_sides(section: DataSection, form: ChatFormat, context: int) -> TextSides:
    """The rows that ``load_preferences`` uses, on the side where it uses them, as texts."""
    overlong = Overlong(section.overlong)

    def encode(row: Row, index: int) -> TextPair | None:
        ids = pair_of(form, row)
        if ids.chosen == ids.rejected:
            return None
        kept = fitted(row, ids, form, section.max_prompt_tokens, context, overlong)
        return None if kept is None else text_pair(row, index, form)

    sides = load_sides(section, encode, lambda pair: pair.prompt.text, overlong)
    return TextSides(sides.train, sides.held_out)


def file_pairs(path: Path, form: ChatFormat) -> list[TextPair]:
    found = list[TextPair]()
    for index, row in enumerate(read_rows(path)):
        with placed(row.where):
            found.append(text_pair(row, index, form))
    return found


def text_pair(row: Row, index: int, form: ChatFormat) -> TextPair:
    """Raises TightropeError for two equal answers."""
    text, ids, chosen, rejected = form.preference(row.values)
    if chosen == rejected:
        raise TightropeError("`chosen` and `rejected` are the same text", fix="remove the row")
    shared = row.values if "prompt" in row.values else {"prompt": row.values["chosen"][:-1]}
    grades = [row.values.get(name) for name in GRADES]
    graded = (float(grades[0]), float(grades[1])) if all(is_number(grade) for grade in grades) else None  # pyright: ignore[reportArgumentType]
    return TextPair(Prompt(index, ids, text, shared), chosen, rejected, row.where, graded)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def writer(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], bool]:
    """Whether every piece of a text is a token that the tokenizer knows."""
    unknown = tokenizer.unk_token_id
    return lambda text: unknown is None or unknown not in tokenizer(text, add_special_tokens=False)["input_ids"]


def judge_of(spec: JudgeSpec) -> Scorer:
    if spec.folder is None:
        return load_function(spec.name).score
    return RewardModel(load_reward(spec.folder), load_tokenizer(spec.folder), TOKENS_AT_ONCE).score


def voted(labels: Path, form: ChatFormat) -> list[TextPair]:
    """The votes of a label file. Raises TightropeError when there is none for A or B."""
    rows = [Row(str(labels), number, row) for number, row in enumerate(preference_rows(labels), start=1)]
    if not rows:
        raise TightropeError("nobody has voted yet", where=str(labels), fix=f"vote first: tightrope label {labels}")
    return [text_pair(row, index, form) for index, row in enumerate(rows)]


def policy_samples(path: Path, form: ChatFormat) -> PolicySamples:
    """The newest samples of a run, or rows with ``prompt`` and ``completion`` or ``response`` (and ``kl``)."""
    return run_samples(path) if holds_run(path) else file_samples(path, form)


def run_samples(path: Path) -> PolicySamples:
    """Prompts come from the run's own data, as the policy was asked: their rows may be conversations."""
    run = RunFolder.read(path)
    _, config = load_resolved(run.resolved, STAGES)
    if not isinstance(config, OnlineConfig):
        raise TightropeError("this run sampled nothing", where=str(path), expected="a run of ppo or rloo")
    stored = newest_samples(run.database)
    if not stored:
        raise TightropeError("this run has stored no samples yet", where=str(path))
    folder = resolve_model_folder(config.model.name, config.model.revision)
    data = load_prompts(
        config.data, load_tokenizer(folder), context=context_length(folder), new_tokens=config.rollout.max_new_tokens
    )
    prompts = {prompt.index: prompt for prompt in (*data.train, *data.held_out)}
    kept = [sample for sample in stored if sample.prompt_index in prompts]
    kl = [sample.kl for sample in kept]
    return PolicySamples(
        samples=[
            Sample(prompts[s.prompt_index], s.response, "stop" if s.finish_reason == "stop" else "length", s.n_tokens)
            for s in kept
        ],
        clusters=[sample.prompt_index for sample in kept],
        kl=None if any(value is None for value in kl) else np.array(kl, np.float64),
    )


def newest_samples(database: Path) -> list[StoredSample]:
    store = SampleStore(database, read_only=True)
    try:
        places = sorted(((step, split) for split in ("train", "probe") for step in store.steps(split)), reverse=True)
        found = list[StoredSample]()
        for step, split in places:
            if len(found) < SAMPLES:
                found += store.read(step, split)
        return found
    finally:
        store.close()


def file_samples(path: Path, form: ChatFormat) -> PolicySamples:
    samples, kl, numbers = list[Sample](), list[Any](), dict[str, int]()
    for index, row in enumerate(read_rows(path)):
        with placed(row.where):
            column = next((name for name in ("completion", "response") if name in row.values), None)
            if column is None or not isinstance(row.values[column], str):
                raise TightropeError(
                    "no answer of the policy",
                    expected="texts in a column `completion` or `response`",
                    found=", ".join(row.values),
                )
            text, ids = form.prompt(row.values)
            response: str = row.values[column]
            samples.append(Sample(Prompt(index, ids, text, row.values), response, "stop", len(response.split()) + 1))
            kl.append(row.values.get("kl"))
    clusters = [numbers.setdefault(sample.prompt.text, len(numbers)) for sample in samples]
    known = all(is_number(value) for value in kl)
    return PolicySamples(samples, clusters, np.array(kl, np.float64) if known else None)


def limited(size: Size, pairs: int | None) -> Size:
    """No more pairs of each side than asked for."""
    return size if pairs is None else replace(size, train=min(size.train, pairs), held_out=min(size.held_out, pairs))
