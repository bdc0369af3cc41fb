"""What became of every row of a data file? Rows used, dropped and trimmed with reasons, and how the model sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHOWN_ROWS = 2
NAMED_ROWS = 5
"""So many places are written out; the rest is counted."""
LONGEST_SHOWN = 600
"""Letters of a decoded row that are shown."""


@dataclass(frozen=True, slots=True)
class RowNote:
    """One row that was left out or shortened: where it stands (``file:line``) and why."""

    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class DecodedRow:
    """A row as the model gets it: runs of tokens, decoded, and whether they are trained on. ``name`` says which."""

    name: str
    runs: tuple[tuple[str, bool], ...]

    def line(self) -> str:
        """Trained-on text stands in ⟦ ⟧; line ends are shown as ⏎."""
        text = "".join(f"⟦{run}⟧" if is_action else run for run, is_action in self.runs)
        text = text.replace("\r", "").replace("\n", "⏎")
        return f"{self.name}  {text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + '…'}"


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """``train + held_out + len(dropped) == read``, where ``read`` counts the rows of both files if there are two."""

    unit: str
    read: int
    train: int
    held_out: int
    dropped: tuple[RowNote, ...]
    trimmed: tuple[RowNote, ...]
    longest: int
    limit: int
    warnings: tuple[str, ...]
    decoded: tuple[DecodedRow, ...]

    def lines(self) -> list[str]:
        """For a person, one fact a line."""
        found = [f"{self.read} {self.unit} read: {self.train} to train on, {self.held_out} held out"]
        found.append(f"longest: {self.longest} tokens of {self.limit} that fit")
        found += named("dropped", self.dropped) + named("trimmed", self.trimmed)
        found += [f"warning: {warning}" for warning in self.warnings]
        return found + [row.line() for row in self.decoded]


def named(what: str, notes: Sequence[RowNote]) -> list[str]:
    """Notes by reason, with the first places.

    >>> named("dropped", [RowNote("a.jsonl:3", "too long"), RowNote("a.jsonl:9", "too long")])
    ['dropped 2 (too long): a.jsonl:3, a.jsonl:9']
    """
    reasons: dict[str, list[str]] = {}
    for note in notes:
        reasons.setdefault(note.reason, []).append(note.where)
    return [
        f"{what} {len(places)} ({reason}): {', '.join(places[:NAMED_ROWS])}"
        + (f" and {len(places) - NAMED_ROWS} more" if len(places) > NAMED_ROWS else "")
        for reason, places in reasons.items()
    ]


def decoded_row(
    tokenizer: PreTrainedTokenizerBase, name: str, ids: Sequence[int], is_action: Sequence[bool]
) -> DecodedRow:
    """Special tokens are shown, so that a missing or doubled BOS or EOS can be seen."""
    borders = [i for i in range(len(ids)) if i == 0 or is_action[i] != is_action[i - 1]] + [len(ids)]
    runs = [
        (str(tokenizer.decode(list(ids[start:end]), skip_special_tokens=False)), is_action[start])
        for start, end in pairwise(borders)
    ]
    return DecodedRow(name, tuple(runs))
