"""Which rows are held out? Whole prompts, by a hash of their text, so that no prompt stands on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

SMALL_SHARE = 5
"""A set too small for the rows asked for holds out every fifth prompt."""


@dataclass(frozen=True, slots=True)
class Split:
    """Row numbers of both sides, ascending; ``note`` says when fewer rows than asked for were held out."""

    train: tuple[int, ...]
    held_out: tuple[int, ...]
    note: str | None = None


def prompt_key(text: str) -> str:
    """Prompts that differ in white space alone are one prompt.

    >>> prompt_key("Tell  me\\n") == prompt_key("Tell me")
    True
    """
    return " ".join(text.split())


def split_by_prompt(keys: Sequence[str], held_out: int) -> Split:
    """About ``held_out`` rows, never more, unless the rarest prompt alone has more.

    The choice depends on the prompts' texts alone: it survives a shuffled file, and adding rows moves few prompts.

    >>> split = split_by_prompt(["a", "b", "a", "c", "d", "e", "f", "g"], 2)
    >>> len(split.held_out), set(split.train) & set(split.held_out)
    (2, set())
    """
    everything = tuple(range(len(keys)))
    groups: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    if held_out == 0:
        return Split(everything, ())
    if len(groups) < 2:
        return Split(everything, (), "nothing is held out: all rows have the same prompt")
    wanted = held_out
    too_many = held_out * 2 >= len(keys) or held_out * 2 >= len(groups)
    if too_many:
        wanted = max(1, len(groups) // SMALL_SHARE)
    chosen = choose_groups(groups, wanted, limit=max(1, (len(groups) - 1) // 2))
    note = f"{len(chosen)} rows are held out, not {held_out}: the file has {len(groups)} prompts" if too_many else None
    return Split(tuple(row for row in everything if row not in chosen), tuple(sorted(chosen)), note)


def choose_groups(groups: Mapping[str, Sequence[int]], wanted: int, limit: int) -> set[int]:
    """Rows of prompts in the order of their hashes while they fit; at least one prompt, at most ``limit``."""
    order = sorted(groups, key=hash_of)
    chosen: set[int] = set()
    taken = 0
    for key in order:
        if taken < limit and len(chosen) + len(groups[key]) <= wanted:
            chosen.update(groups[key])
            taken += 1
    return chosen or set(min((groups[key] for key in order), key=len))


def hash_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8")).digest()


def shared_keys(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[int]:
    """Row numbers of ``right`` whose key stands in ``left`` too."""
    known = set(left)
    return [row for row, key in enumerate(right) if key in known]
