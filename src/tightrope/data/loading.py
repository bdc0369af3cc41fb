"""From the files of a data section to two sides, training and held out: what the three kinds of data share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from tightrope.config.errors import TightropeError
from tightrope.config.schema import DataSection
from tightrope.data.preflight import NAMED_ROWS, DecodedRow, PreflightReport, RowNote, named
from tightrope.data.readers import Row, placed, read_rows
from tightrope.data.splits import prompt_key, shared_keys, split_by_prompt

ItemT = TypeVar("ItemT")


class Overlong:
    """Applies ``data.overlong`` to the rows that do not fit, and remembers what became of them."""

    def __init__(self, policy: Literal["error", "drop", "trim"]) -> None:
        self.policy = policy
        self.dropped: list[RowNote] = []
        self.trimmed: list[RowNote] = []

    def trims(self, row: Row, what: str, tokens: int, limit: int) -> bool:
        """True: shorten the row; False: leave it out. Raises TightropeError when the policy is ``error``."""
        if self.policy == "error":
            raise TightropeError(
                f"{what} is too long",
                where=row.where,
                expected=f"at most {limit} tokens",
                found=str(tokens),
                fix="set data.overlong to drop or trim",
            )
        if self.policy == "drop":
            self.drop(row, f"{what} over {limit} tokens")
        return self.policy == "trim"

    def drop(self, row: Row, reason: str) -> None:
        self.dropped.append(RowNote(row.where, reason))

    def trim(self, row: Row, reason: str) -> None:
        self.trimmed.append(RowNote(row.where, reason))


@dataclass(frozen=True)
class Sides(Generic[ItemT]):
    """Rows that are used, on the side where they are used."""

    read: int
    train: list[ItemT]
    held_out: list[ItemT]
    warnings: list[str] = field(default_factory=list[str])


def load_sides(
    section: DataSection,
    encode: Callable[[Row, int], ItemT | None],
    prompt_of: Callable[[ItemT], str],
    overlong: Overlong,
) -> Sides[ItemT]:
    """``encode`` turns a row and its index (over both files) into an item, or None where it left the row out."""
    train_rows = read_rows(section.train)[: section.limit]
    other_rows = [] if section.evaluation is None else read_rows(section.evaluation)
    train = encode_all(train_rows, 0, encode)
    other = encode_all(other_rows, len(train_rows), encode)
    read = len(train_rows) + len(other_rows)
    if not train or (other_rows and not other):
        empty = section.train if not train else section.evaluation
        reasons = "; ".join(named("dropped", overlong.dropped))
        raise TightropeError("no row of the file can be used", where=str(empty), found=reasons)
    if section.evaluation is not None:
        return Sides(read, train, other, shared_warnings(section, train, other, other_rows, prompt_of))
    split = split_by_prompt([prompt_key(prompt_of(item)) for item in train], section.held_out)
    notes = [] if split.note is None else [split.note]
    return Sides(read, [train[i] for i in split.train], [train[i] for i in split.held_out], notes)


def encode_all(rows: Sequence[Row], first: int, encode: Callable[[Row, int], ItemT | None]) -> list[ItemT]:
    items: list[ItemT] = []
    for index, row in enumerate(rows, start=first):
        with placed(row.where):
            item = encode(row, index)
        if item is not None:
            items.append(item)
    return items


def shared_warnings(
    section: DataSection,
    train: Sequence[ItemT],
    other: Sequence[ItemT],
    other_rows: Sequence[Row],
    prompt_of: Callable[[ItemT], str],
) -> list[str]:
    """Prompts of the evaluation file that the model is trained on: what is measured there is not held out."""
    keys = [[prompt_key(prompt_of(item)) for item in side] for side in (train, other)]
    shared = shared_keys(*keys)
    if not shared:
        return []
    # Dropped rows have no key, so that places can be named only when every row is used.
    places = [other_rows[i].where for i in shared[:NAMED_ROWS]] if len(other) == len(other_rows) else []
    where = f" (first: {', '.join(places)})" if places else ""
    return [f"{len(shared)} prompts of {section.evaluation} are in {section.train} too{where}: they are not held out"]


def make_report(
    unit: str,
    sides: Sides[ItemT],
    overlong: Overlong,
    *,
    longest: int,
    limit: int,
    decoded: Sequence[DecodedRow],
    warnings: Sequence[str] = (),
) -> PreflightReport:
    return PreflightReport(
        unit=unit,
        read=sides.read,
        train=len(sides.train),
        held_out=len(sides.held_out),
        dropped=tuple(overlong.dropped),
        trimmed=tuple(overlong.trimmed),
        longest=longest,
        limit=limit,
        warnings=(*sides.warnings, *warnings),
        decoded=tuple(decoded),
    )
