"""Which of two answers is better? Pairs of whole sequences, the same prompt before both, each ending with EOS.

Columns: ``prompt``, ``chosen``, ``rejected``, as texts or conversations; the prompt may stand in both answers instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tightrope.config.errors import TightropeError
from tightrope.config.schema import DataSection
from tightrope.data.chat_format import ChatFormat, marks
from tightrope.data.loading import Overlong, load_sides, make_report
from tightrope.data.preflight import SHOWN_ROWS, DecodedRow, PreflightReport, decoded_row
from tightrope.data.readers import Row
from tightrope.types import Preferences, TokenRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ids = tuple[int, ...]


@dataclass(frozen=True)
class PreferenceData:
    train: Preferences
    held_out: Preferences
    report: PreflightReport


@dataclass(frozen=True, slots=True)
class PairIds:
    """Token ids of one pair; both answers end with EOS. ``text`` is the prompt's."""

    text: str
    prompt: Ids
    chosen: Ids
    rejected: Ids

    @property
    def longest(self) -> int:
        return len(self.prompt) + max(len(self.chosen), len(self.rejected))


def load_preferences(section: DataSection, tokenizer: PreTrainedTokenizerBase, *, context: int) -> PreferenceData:
    """Answers are never cut: an answer's end says how good it is, and its EOS is where the reward is read."""
    chat = ChatFormat(tokenizer)
    overlong = Overlong(section.overlong)

    def encode(row: Row, index: int) -> PairIds | None:
        pair = pair_of(chat, row)
        if pair.chosen == pair.rejected:
            overlong.drop(row, "both answers are the same tokens")
            return None
        return fitted(row, pair, chat, section.max_prompt_tokens, context, overlong)

    sides = load_sides(section, encode, lambda pair: pair.text, overlong)
    report = make_report(
        "pairs",
        sides,
        overlong,
        longest=max(pair.longest for pair in (*sides.train, *sides.held_out)),
        limit=context,
        decoded=[line for pair in sides.train[:SHOWN_ROWS] for line in shown(tokenizer, pair)],
    )
    return PreferenceData(batch_of(sides.train), batch_of(sides.held_out), report)


def pair_of(chat: ChatFormat, row: Row) -> PairIds:
    text, prompt, chosen, rejected = chat.preference(row.values)
    if chosen == rejected:
        raise TightropeError("`chosen` and `rejected` are the same text", fix="remove the row")
    return PairIds(text, prompt, chat.answer_ids(chosen, end=True), chat.answer_ids(rejected, end=True))


def fitted(
    row: Row, pair: PairIds, chat: ChatFormat, max_prompt: int | None, context: int, overlong: Overlong
) -> PairIds | None:
    """The pair within both limits, at the cost of the prompt's beginning."""
    answer = pair.longest - len(pair.prompt)
    limit = context - answer if max_prompt is None else min(max_prompt, context - answer)
    if len(pair.prompt) <= limit:
        return pair
    if not overlong.trims(row, "the prompt with its longer answer", pair.longest, limit + answer):
        return None
    if limit < len(chat.prefix) + 1:
        overlong.drop(row, f"an answer alone fills the context of {context} tokens")
        return None
    overlong.trim(row, "the prompt's beginning")
    return PairIds(pair.text, chat.shortened(pair.prompt, limit), pair.chosen, pair.rejected)


def shown(tokenizer: PreTrainedTokenizerBase, pair: PairIds) -> list[DecodedRow]:
    return [
        decoded_row(tokenizer, f"{name} ▸", (*pair.prompt, *answer), marks(pair.prompt, answer))
        for name, answer in (("chosen", pair.chosen), ("rejected", pair.rejected))
    ]


def batch_of(pairs: Sequence[PairIds]) -> Preferences:
    """Sequence 2i is the chosen and 2i + 1 the rejected answer of pair i."""
    return Preferences(
        TokenRows.of([(pair.prompt, answer) for pair in pairs for answer in (pair.chosen, pair.rejected)])
    )
