"""How do a row's prompt and an answer become token ids? The only place that knows chat templates and special tokens.

SFT, the reward model, DPO, PPO's prompts and the reward model's scoring all come through here, so that a text is the
same ids everywhere. Three rules:

1. A prompt begins with what the tokenizer puts before a text (a BOS, or nothing), exactly once, whether or not the
   chat template writes it too.
2. Prompt and answer are tokenised apart, because the policy continues the prompt's own tokens.
3. An answer that ends ends with EOS, which is one of its tokens like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tightrope.config.errors import TightropeError
from tightrope.data.messages import Message, answer_text, checked_messages, checked_prompt, last_turn, prompt_turns
from tightrope.data.readers import short, text_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class MarkedIds:
    """Token ids and, for each, whether it is trained on. ``prompt`` is the text before the first of these."""

    ids: tuple[int, ...]
    is_action: tuple[bool, ...]
    prompt: str

    @property
    def n_context(self) -> int:
        """Tokens before the first action."""
        return self.is_action.index(True)


class ChatFormat:
    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.prefix = ids_before_text(tokenizer)
        """What the tokenizer puts before every text: usually its BOS, or nothing."""
        self._bos: int | None = optional_id(tokenizer.bos_token_id)

    @property
    def eos_id(self) -> int:
        eos = optional_id(self.tokenizer.eos_token_id)
        if eos is None:
            raise TightropeError(
                "the tokenizer has no EOS token, so no answer can end",
                where=str(self.tokenizer.name_or_path),
                fix="set `eos_token` in tokenizer_config.json",
            )
        return eos

    def prompt(self, row: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
        """Text and ids of a row's prompt: a plain ``prompt``, or a conversation in ``prompt`` or ``messages``."""
        column = "messages" if "prompt" not in row and "messages" in row else "prompt"
        if not isinstance(row.get(column), Sequence) or isinstance(row[column], str):
            text = text_of(row, column)
            return text, self.with_prefix(self.plain_ids(text))
        return self.conversation_prompt(checked_prompt(row[column], column))

    def conversation_prompt(self, messages: Sequence[Message]) -> tuple[str, tuple[int, ...]]:
        text = self.render(messages, ask=True)
        return text, self.with_prefix(self.plain_ids(text))

    def answer_ids(self, text: str, *, end: bool) -> tuple[int, ...]:
        """Ids of an answer, apart from its prompt; ``end``: with EOS, because the answer ends here."""
        ids = self.plain_ids(text)
        return (*ids, self.eos_id) if end else ids

    def completion(self, row: Mapping[str, Any]) -> MarkedIds:
        """A row with ``prompt`` and ``completion``: the completion and its EOS are trained on."""
        prompt, context = self.prompt(row)
        answer = self.answer_ids(answer_text(row, "completion"), end=True)
        return MarkedIds((*context, *answer), marks(context, answer), prompt)

    def language(self, row: Mapping[str, Any]) -> MarkedIds:
        """A row of plain ``text``: everything after the first token is trained on, and the EOS."""
        text = text_of(row, "text")
        ids = (*self.with_prefix(self.plain_ids(text)), self.eos_id)
        return MarkedIds(ids, (False,) + (True,) * (len(ids) - 1), text)

    def conversation(self, row: Mapping[str, Any]) -> MarkedIds:
        """A row of ``messages``: each assistant turn is trained on, with the token that ends it."""
        messages = checked_messages(row["messages"], "messages")
        if messages[-1]["role"] != "assistant":
            found = f"a last turn of {messages[-1]['role']}"
            raise TightropeError("`messages` ends without an answer", expected="a last turn of assistant", found=found)
        asked_at = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
        whole = self.render(messages, ask=False)
        ids: tuple[int, ...] = ()
        is_action: tuple[bool, ...] = ()
        done = ""
        for turn in asked_at:
            before = self.render(messages[:turn], ask=True)
            after = whole if turn == asked_at[-1] else self.render(messages[: turn + 1], ask=False)
            context = self.plain_ids(piece(done, before, turn))
            context = context if ids else self.with_prefix(context)
            answer, rest = self.split_at_end(piece(before, after, turn), last=turn == asked_at[-1])
            ids = (*ids, *context, *answer, *rest)
            is_action = (*is_action, *marks(context, answer), *((False,) * len(rest)))
            done = after
        return MarkedIds(ids, is_action, self.render(messages[: asked_at[0]], ask=True))

    def split_at_end(self, span: str, *, last: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """An assistant turn as rendered: its ids with the EOS, and what the template writes after it.

        After the last turn nothing follows. A template that never writes the EOS gets one there, because the policy
        has to learn to stop.
        """
        ids = self.plain_ids(span)
        if self.eos_id in ids:
            end = ids.index(self.eos_id) + 1
            return ids[:end], () if last else ids[end:]
        return (self.answer_ids(span.rstrip(), end=True) if last else ids), ()

    def preference(self, row: Mapping[str, Any]) -> tuple[str, tuple[int, ...], str, str]:
        """Text and ids of the prompt, and the texts of the chosen and the rejected answer.

        Answers are texts, or conversations of which the last turn is the answer and the turns before it, if there
        are any, the prompt (the same in both).
        """
        chosen, rejected = row.get("chosen"), row.get("rejected")
        if isinstance(chosen, list) and isinstance(rejected, list):
            before, good = last_turn(cast(list[Any], chosen), "chosen")
            before_rejected, bad = last_turn(cast(list[Any], rejected), "rejected")
            if list(before) != list(before_rejected):
                raise TightropeError(
                    "`chosen` and `rejected` differ before their last turn",
                    expected="two answers to the same conversation",
                    fix="cut both after the first turn that differs",
                )
            text, ids = self.conversation_prompt(prompt_turns(row, before))
            return text, ids, good, bad
        good, bad = answer_text(row, "chosen"), answer_text(row, "rejected")
        text, ids = self.prompt(row)
        return text, ids, good, bad

    def render(self, messages: Sequence[Message], *, ask: bool) -> str:
        """The template's text; ``ask`` ends it where the assistant's turn begins."""
        if not self.tokenizer.chat_template:
            raise TightropeError(
                "a conversation, but the tokenizer has no chat template",
                fix="use plain `prompt` texts, or a model whose tokenizer has a template",
            )
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=ask
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise TightropeError("the chat template refuses this conversation", found=short(str(error))) from error
        return cast(str, text)

    def plain_ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def shortened(self, ids: tuple[int, ...], limit: int) -> tuple[int, ...]:
        """A prompt cut at its beginning; what stands before every text stays."""
        kept = self.prefix or ((self._bos,) if self._bos is not None and ids[:1] == (self._bos,) else ())
        if len(ids) <= limit:
            return ids
        return (*kept, *ids[len(ids) - limit + len(kept) :]) if limit > len(kept) else ids[len(ids) - limit :]

    def with_prefix(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Exactly one prefix, and one BOS where the template wrote it although the tokenizer does not."""
        prefix = self.prefix
        while prefix and ids[: len(prefix)] == prefix:
            ids = ids[len(prefix) :]
        while self._bos is not None and ids[:2] == (self._bos, self._bos):
            ids = ids[1:]
        ids = (*prefix, *ids)
        if len(ids) == len(prefix):
            raise TightropeError("the prompt has no tokens", expected="text the tokenizer knows")
        return ids


def ids_before_text(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """What the tokenizer writes before a text, found by looking: its settings name it in many ways."""
    probe = "a"
    bare = list(tokenizer(probe, add_special_tokens=False)["input_ids"])
    full = list(tokenizer(probe, add_special_tokens=True)["input_ids"])
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start])
    return ()


def optional_id(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def marks(context: Sequence[int], answer: Sequence[int]) -> tuple[bool, ...]:
    return (False,) * len(context) + (True,) * len(answer)


def piece(before: str, after: str, turn: int) -> str:
    """What was added to a rendered conversation. The template must write the same text however far it goes on."""
    if not after.startswith(before):
        raise TightropeError(
            f"the chat template rewrites earlier text at turn {turn + 1}, so the answer's tokens cannot be told apart",
            fix="use one `prompt` and `completion` a row, or a template that only appends",
        )
    return after[len(before) :]
