"""Is this list a conversation? Turns with known roles in a possible order; the last turn of an answer.

A conversation is a list of turns, ``{"role": "user", "content": "..."}``; a turn's other keys are the template's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tightrope.config.errors import TightropeError
from tightrope.data.readers import checked_text, short, text_of

Message = Mapping[str, Any]
ROLES = ("system", "user", "assistant", "tool")


def answer_text(row: Mapping[str, Any], column: str) -> str:
    """An answer given as text, or as a conversation of one assistant turn."""
    value = row.get(column)
    if not isinstance(value, list):
        return text_of(row, column)
    before, text = last_turn(cast(list[Any], value), column)
    if before:
        raise TightropeError(f"`{column}` has {len(before) + 1} turns", expected="one turn of assistant")
    return text


def last_turn(value: list[Any], column: str) -> tuple[list[Message], str]:
    """The turns before the last, and the text of the last, which is the assistant's."""
    messages = checked_messages(value, column, answer_alone=len(value) == 1)
    if messages[-1]["role"] != "assistant":
        found = f"a last turn of {messages[-1]['role']}"
        raise TightropeError(f"`{column}` ends without an answer", expected="a last turn of assistant", found=found)
    return messages[:-1], messages[-1]["content"]


def prompt_turns(row: Mapping[str, Any], before: Sequence[Message]) -> list[Message]:
    """The conversation both answers go on from: written in the answers themselves, or in ``prompt``."""
    prompt = row.get("prompt")
    if before:
        return checked_prompt(list(before), "chosen")
    if isinstance(prompt, list):
        return checked_prompt(cast(list[Any], prompt), "prompt")
    return [{"role": "user", "content": text_of(row, "prompt")}]


def checked_prompt(value: Any, column: str) -> list[Message]:
    messages = checked_messages(value, column)
    if messages[-1]["role"] in ("assistant", "system"):
        raise TightropeError(
            f"`{column}` asks nothing",
            expected="a last turn of user",
            found=f"a last turn of {messages[-1]['role']}",
            fix="remove the answer from the prompt" if messages[-1]["role"] == "assistant" else None,
        )
    return messages


def checked_messages(value: Any, column: str, *, answer_alone: bool = False) -> list[Message]:
    """Turns with known roles in a possible order. Raises TightropeError naming the turn, from 1.

    ``answer_alone``: the only turn is an answer, and its question stands in another column.
    """
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else type(value).__name__
        raise TightropeError(f"`{column}` is no conversation", expected="a list of turns", found=found)
    turns = cast(list[Any], value)
    messages = [checked_turn(turn, f"turn {number} of `{column}`") for number, turn in enumerate(turns, start=1)]
    for number, (before, message) in enumerate(zip([None, *messages], messages, strict=False), start=1):
        role, role_before = message["role"], before["role"] if before else None
        unasked = role_before in (None, "system") and not answer_alone
        wrong = (role == "system" and before is not None) or (role == "assistant" and unasked)
        if wrong or (role == role_before and role != "tool"):
            found = f"{role} after {role_before}" if role_before else f"{role} first"
            raise TightropeError(
                f"turn {number} of `{column}` is out of order",
                expected="system first, then user and assistant in turn",
                found=found,
            )
    return messages


def checked_turn(turn: Any, name: str) -> Message:
    if not isinstance(turn, dict):
        raise TightropeError(f"{name} is no turn", expected='{"role": ..., "content": ...}', found=short(repr(turn)))
    message = cast(dict[str, Any], turn)
    for key in ("role", "content"):
        if key not in message:
            found = ", ".join(short(str(name)) for name in message) or "nothing"
            near = {"role": "from", "content": "value"}[key]
            fix = f"rename `{near}` to `{key}`" if near in message else None
            raise TightropeError(f"{name} has no `{key}`", found=found, fix=fix)
    if message["role"] not in ROLES:
        raise TightropeError(
            f"{name} has an unknown role", expected=", ".join(ROLES), found=short(repr(message["role"]))
        )
    if not isinstance(message["content"], str):
        raise TightropeError(
            f"the content of {name} is not text", expected="text", found=short(repr(message["content"]))
        )
    checked_text(message["content"], f"the content of {name}")
    return message
