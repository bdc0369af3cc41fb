"""What does the policy imitate? Rows with the tokens that are trained on: answers and their EOS, never the prompt.

Columns: ``prompt`` and ``completion``; or ``messages`` (each assistant turn is trained on); or ``text`` (all of it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightrope.config.schema import DataSection
from tightrope.data.chat_format import ChatFormat, MarkedIds
from tightrope.data.loading import Overlong, load_sides, make_report
from tightrope.data.preflight import SHOWN_ROWS, PreflightReport, decoded_row
from tightrope.data.readers import Row, missing_column
from tightrope.types import Demonstrations, TokenRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class DemonstrationData:
    train: Demonstrations
    held_out: Demonstrations
    report: PreflightReport


def load_demonstrations(section: DataSection, tokenizer: PreTrainedTokenizerBase, *, context: int) -> DemonstrationData:
    """Every used row has at least one token to train on; its EOS is one of them unless the row's end was cut."""
    chat = ChatFormat(tokenizer)
    overlong = Overlong(section.overlong)

    def encode(row: Row, index: int) -> MarkedIds | None:
        return fitted(row, marked(chat, row.values), chat, section.max_prompt_tokens, context, overlong)

    sides = load_sides(section, encode, lambda item: item.prompt, overlong)
    shown = [decoded_row(tokenizer, "trained on ⟦ ⟧ ▸", item.ids, item.is_action) for item in sides.train[:SHOWN_ROWS]]
    longest = max(len(item.ids) for item in (*sides.train, *sides.held_out))
    report = make_report("demonstrations", sides, overlong, longest=longest, limit=context, decoded=shown)
    return DemonstrationData(batch_of(sides.train), batch_of(sides.held_out), report)


def marked(chat: ChatFormat, values: Mapping[str, Any]) -> MarkedIds:
    if "completion" in values:
        return chat.completion(values)
    if "messages" in values:
        return chat.conversation(values)
    if "text" in values and "prompt" not in values:
        return chat.language(values)
    raise missing_column("completion" if "prompt" in values else "messages", values)


def fitted(
    row: Row, item: MarkedIds, chat: ChatFormat, max_prompt: int | None, context: int, overlong: Overlong
) -> MarkedIds | None:
    """The row within both limits. A cut takes the prompt's beginning first, then the answer's end."""
    prompt, answer = item.ids[: item.n_context], item.ids[item.n_context :]
    prompt_limit = context - 1 if max_prompt is None else min(max_prompt, context - 1)
    if len(item.ids) <= context and len(prompt) <= prompt_limit:
        return item
    too_long = ("the prompt", len(prompt), prompt_limit) if len(prompt) > prompt_limit else None
    if not overlong.trims(row, *(too_long or ("the row", len(item.ids), context))):
        return None
    shortest = min(len(prompt), len(chat.prefix) + 1)
    prompt = chat.shortened(prompt, max(shortest, min(prompt_limit, context - len(answer))))
    kept = answer[: context - len(prompt)]
    overlong.trim(row, "the answer's end" if len(kept) < len(answer) else "the prompt's beginning")
    is_action = (False,) * len(prompt) + item.is_action[item.n_context : item.n_context + len(kept)]
    return MarkedIds((*prompt, *kept), is_action, item.prompt)


def batch_of(items: Sequence[MarkedIds]) -> Demonstrations:
    return Demonstrations(TokenRows.with_mask([item.ids for item in items], [item.is_action for item in items]))
