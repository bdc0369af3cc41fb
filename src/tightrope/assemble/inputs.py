"""What a run reads, checked before any weight is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from tightrope.algorithms.options import SFTConfig
from tightrope.assemble.reward_sources import require_sources, try_sources
from tightrope.config.errors import TightropeError
from tightrope.config.schema import OnlineConfig, RunConfig
from tightrope.data.chat_format import ChatFormat
from tightrope.data.corpus import corpus_files, load_corpus, load_held_out
from tightrope.data.demonstrations import DemonstrationData, load_demonstrations
from tightrope.data.preferences import PreferenceData, load_preferences
from tightrope.data.prompts import PromptData, load_prompts
from tightrope.guardian.plugins import detectors_of
from tightrope.models.load import context_length, load_tokenizer, resolve_model_folder
from tightrope.models.manifest import require_kind, sha256_of
from tightrope.scoring.functions import load_function
from tightrope.trackers.open import require_known
from tightrope.types import Prompt, Sample

PROBE_PIECE = 256
"""Tokens of a piece of the plain text of the probe."""
TRIAL_RESPONSES = ("A response.", "")


@dataclass(frozen=True)
class Inputs:
    """``folder`` is the model's own folder, behind a run folder if one was named; ``fingerprints`` sha256 by file."""

    folder: Path
    reward_folder: Path | None
    tokenizer: PreTrainedTokenizerBase
    data: PromptData | DemonstrationData | PreferenceData
    fingerprints: Mapping[str, str]
    corpus: tuple[tuple[int, ...], ...] = ()
    """Pieces of ``ptx.corpus``, as tokens."""
    plain_text: tuple[tuple[int, ...], ...] = ()
    """Pieces of ``evaluation.forgetting``, as tokens."""


def read_inputs(config: RunConfig) -> Inputs:
    """Raises TightropeError for a folder of the wrong kind and for the first row that cannot be used."""
    require_known(config)
    detectors_of(config.guardian)
    folder = resolve_model_folder(config.model.name, config.model.revision)
    require_kind(folder, "policy")
    reward_folder = None
    if isinstance(config, OnlineConfig):
        for name in config.reward.models:
            reward_folder = resolve_model_folder(name)
            require_kind(reward_folder, "reward")
        for function in functions_of(config):
            load_function(function)
        require_sources(config.reward)
    context = context_length(folder)  # first: transformers reads the config for the tokenizer too, and says less
    tokenizer = load_tokenizer(folder)
    data = read_data(config, tokenizer, context)
    if isinstance(data, PromptData):
        try_functions(config, data.train)
        if isinstance(config, OnlineConfig):
            try_sources(config.reward, trial_samples(data.train))
        if reward_folder is not None:
            try_reward_model(reward_folder, data.train)
        if isinstance(config, OnlineConfig) and config.rollout.truncate is not None:
            stop_ids(tokenizer, config.rollout.truncate.token)
    files = [path for path in (config.data.train, config.data.evaluation) if path is not None]
    corpus: tuple[tuple[int, ...], ...] = ()
    if isinstance(config, OnlineConfig) and config.ptx is not None:
        corpus = load_corpus(config.ptx.corpus, tokenizer, config.ptx.sequence_length, context)
        files += corpus_files(config.ptx.corpus)
    plain: tuple[tuple[int, ...], ...] = ()
    if isinstance(config, OnlineConfig) and config.evaluation.forgetting is not None:
        text, trained = config.evaluation.forgetting, None if config.ptx is None else config.ptx.corpus
        length = min(PROBE_PIECE, context)
        plain = load_held_out(text, trained, tokenizer, length, config.evaluation.forgetting_tokens)
        files += corpus_files(text)
    prints = {str(path): sha256_of(path) for path in files}
    return Inputs(folder, reward_folder, tokenizer, data, prints, corpus, plain)


def functions_of(config: RunConfig) -> list[str]:
    """The user's functions that this run calls: the reward, and the held-out judge."""
    if not isinstance(config, OnlineConfig):
        return []
    return [spec for spec in (config.reward.function, config.evaluation.function) if spec is not None]


def try_functions(config: RunConfig, prompts: Sequence[Prompt]) -> None:
    """Ask each function about two made-up responses: one that raises, or answers with anything but a finite number
    each, is told in seconds and not after the model is loaded. An empty response is among them, because a policy
    that ends at once writes it."""
    for function in functions_of(config):
        load_function(function).score(trial_samples(prompts))


def trial_samples(prompts: Sequence[Prompt]) -> list[Sample]:
    """Made-up responses to prompts that are really there: a function may read any column of theirs."""
    return [
        Sample(prompts[i % len(prompts)], text, "stop", len(text.split()) + 1)  # with an end token
        for i, text in enumerate(TRIAL_RESPONSES)
    ]


def stop_ids(tokenizer: PreTrainedTokenizerBase, token: str) -> tuple[int, ...]:
    """The token at the start of a word and inside a text, where the tokenizer tells them apart."""
    written = [tokenizer.encode(text, add_special_tokens=False) for text in (token, f" {token}")]
    found = sorted({ids[0] for ids in written if len(ids) == 1 and ids[0] != tokenizer.unk_token_id})
    if not found:
        unknown = len(written[0]) == 1
        raise TightropeError(
            f"rollout.truncate.token {token!r} is not one token of the policy's tokenizer",
            found="a word it does not know" if unknown else f"{len(written[0])} tokens",
            fix="name a text that is a single token, such as a full stop or a line break",
        )
    return tuple(found)


def try_reward_model(folder: Path, prompts: Sequence[Prompt]) -> None:
    """The reward model has its own tokenizer and template. Each kind of prompt (text, conversation) is tried once."""
    form = ChatFormat(load_tokenizer(folder))
    kinds = {isinstance(prompt.row.get("prompt"), str): prompt for prompt in prompts}
    try:
        for prompt in kinds.values():
            form.prompt(prompt.row)
        form.answer_ids("", end=True)
    except TightropeError as error:
        raise TightropeError(
            f"the reward model cannot read these prompts: {error.what}", where=str(folder), fix=error.fix
        ) from error


def read_data(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, context: int
) -> PromptData | DemonstrationData | PreferenceData:
    if isinstance(config, OnlineConfig):
        return load_prompts(config.data, tokenizer, context=context, new_tokens=config.rollout.max_new_tokens)
    if isinstance(config, SFTConfig):
        return load_demonstrations(config.data, tokenizer, context=context)
    return load_preferences(config.data, tokenizer, context=context)
