"""What does the policy answer in training and in the probe? Prompts that leave room for the new tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tightrope.config.errors import TightropeError
from tightrope.config.schema import DataSection
from tightrope.data.chat_format import ChatFormat
from tightrope.data.loading import Overlong, load_sides, make_report
from tightrope.data.preflight import SHOWN_ROWS, PreflightReport, decoded_row
from tightrope.data.readers import Row
from tightrope.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MEASURED_ANSWERS = 200
"""Answers in the prompt file whose length is compared with the cap."""


@dataclass(frozen=True)
class PromptData:
    train: list[Prompt]
    held_out: list[Prompt]
    report: PreflightReport


def load_prompts(
    section: DataSection, tokenizer: PreTrainedTokenizerBase, *, context: int, new_tokens: int
) -> PromptData:
    """Every prompt is proven to fit the context together with its response, or treated by ``data.overlong``."""
    limit = prompt_limit(section, context, new_tokens)
    chat = ChatFormat(tokenizer)
    overlong = Overlong(section.overlong)

    def encode(row: Row, index: int) -> Prompt | None:
        text, ids = chat.prompt(row.values)
        if len(ids) > limit:
            if not overlong.trims(row, "the prompt", len(ids), limit):
                return None
            ids = chat.shortened(ids, limit)
            overlong.trim(row, f"the prompt's beginning, to {limit} tokens")
        return Prompt(index, ids, text, row.values)

    sides = load_sides(section, encode, lambda prompt: prompt.text, overlong)
    shown = [
        decoded_row(tokenizer, "prompt ▸", prompt.token_ids, [False] * len(prompt.token_ids))
        for prompt in sides.train[:SHOWN_ROWS]
    ]
    report = make_report(
        "prompts",
        sides,
        overlong,
        longest=max(len(prompt.token_ids) for prompt in (*sides.train, *sides.held_out)),
        limit=limit,
        decoded=shown,
        warnings=cap_warnings(chat, sides.train, new_tokens),
    )
    return PromptData(sides.train, sides.held_out, report)


def prompt_limit(section: DataSection, context: int, new_tokens: int) -> int:
    room = context - new_tokens
    if room < 1:
        raise TightropeError(
            "rollout.max_new_tokens leaves no room for a prompt",
            expected=f"less than the model's context of {context} tokens",
            found=str(new_tokens),
        )
    if section.max_prompt_tokens is not None and section.max_prompt_tokens > room:
        raise TightropeError(
            "data.max_prompt_tokens and rollout.max_new_tokens together exceed the model's context",
            expected=f"at most {context} tokens",
            found=f"{section.max_prompt_tokens} + {new_tokens}",
            fix=f"set data.max_prompt_tokens to at most {room}",
        )
    return section.max_prompt_tokens or room


def cap_warnings(chat: ChatFormat, prompts: Sequence[Prompt], new_tokens: int) -> list[str]:
    """Where the file shows how long answers are: would most of them be cut?"""
    texts = [prompt.row["completion"] for prompt in prompts[:MEASURED_ANSWERS] if "completion" in prompt.row]
    lengths = [len(chat.answer_ids(text, end=False)) for text in texts if isinstance(text, str)]
    cut = sum(length >= new_tokens for length in lengths)
    if cut * 2 <= len(lengths):
        return []
    share = f"{cut / len(lengths):.0%}"
    return [f"{share} of the completions in this file are longer than rollout.max_new_tokens ({new_tokens})"]
