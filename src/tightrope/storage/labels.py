"""Label files: prompts with several responses, and the votes of people about pairs of them.

    FILE.jsonl               one item a line, written by ``tightrope generate``; never changed afterwards:
                             {"id", "prompt", "responses": [...], "messages"?, "row"?, "sources"?}
    FILE.jsonl.votes.jsonl   append-only: each vote and each undo is one fsynced line

A vote names the pair (indices into ``responses``), the order in which it was shown, and the choice in that order
(A was shown first). Sources are never shown. An undo is an event of its own, so nothing is ever lost.
"""

from __future__ import annotations

import json
import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations, zip_longest
from pathlib import Path
from typing import Any, Literal, cast, get_args

from tightrope.config.errors import TightropeError
from tightrope.storage.files import replace_file
from tightrope.storage.line_log import LineLog, read_lines

Choice = Literal["A", "B", "tie", "skip"]


@dataclass(frozen=True, slots=True)
class LabelItem:
    """A prompt and its responses; ``messages`` when the prompt is a conversation."""

    id: str
    prompt: str
    responses: tuple[str, ...]
    messages: tuple[dict[str, str], ...] = ()
    row: dict[str, Any] = field(default_factory=dict[str, Any])
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pair:
    """What a person is asked: ``first`` and ``second`` index the item's responses in the order shown."""

    item: LabelItem
    first: int
    second: int

    @property
    def key(self) -> tuple[str, int, int]:
        return self.item.id, min(self.first, self.second), max(self.first, self.second)


@dataclass(frozen=True, slots=True)
class Vote:
    """One line of the votes file. ``pair`` ascending, ``order`` as shown, ``time`` in seconds since 1970."""

    vote: str
    item: str
    pair: tuple[int, int]
    order: tuple[int, int]
    choice: Choice
    seconds: float
    annotator: str
    time: float

    @property
    def key(self) -> tuple[str, int, int]:
        return self.item, *self.pair


@dataclass(frozen=True, slots=True)
class Preferences:
    """``rows`` for the reward model, and what did not become one."""

    rows: list[dict[str, Any]]
    ties: int
    skips: int
    unknown: int


def votes_path(labels: Path) -> Path:
    return labels.with_name(labels.name + ".votes.jsonl")


def preferences_path(labels: Path) -> Path:
    """Where the preferences are written unless a path is given: ``answers.jsonl`` -> ``answers.preferences.jsonl``."""
    return labels.with_name(labels.name.removesuffix(".jsonl") + ".preferences.jsonl")


def write_items(path: Path, items: Sequence[LabelItem]) -> None:
    """Write a label file, whole or not at all."""
    always = ("id", "prompt", "responses")
    entries = [{name: value for name, value in asdict(item).items() if value or name in always} for item in items]
    replace_file(path, "".join(json.dumps(entry) + "\n" for entry in entries).encode())


def read_items(path: Path) -> list[LabelItem]:
    """Raises TightropeError with ``file:line`` for the first line that is not an item."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TightropeError("the label file cannot be read", where=str(path), found=error.strerror) from error
    items: dict[str, LabelItem] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        item = parse_item(line.removeprefix(b"\xef\xbb\xbf"), f"{path}:{number}")
        if item.id in items:
            raise TightropeError("an id is used twice", where=f"{path}:{number}", found=item.id)
        items[item.id] = item
    if not items:
        raise TightropeError("the label file is empty", where=str(path), fix="write one with `tightrope generate`")
    return list(items.values())


def parse_item(line: bytes, where: str) -> LabelItem:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise TightropeError("not JSON", where=where, found=str(error)) from error
    fields = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    if not isinstance(fields.get("prompt"), str) or type(fields.get("id")) not in (str, int):
        raise TightropeError(
            "not a label item", where=where, expected='{"id", "prompt": text, "responses": [text, ...]}'
        )
    texts: Any = fields.get("responses")
    responses = cast(list[Any], texts if isinstance(texts, list) else [None])
    if not all(isinstance(text, str) for text in responses):
        raise TightropeError("`responses` is not a list of texts", where=where)
    for name, kind in (("messages", list), ("row", dict), ("sources", list)):
        if name in fields and not isinstance(fields[name], kind):
            raise TightropeError(f"`{name}` is not a {kind.__name__}", where=where, found=type(fields[name]).__name__)
    return LabelItem(
        id=str(fields["id"]),
        prompt=fields["prompt"],
        responses=tuple(responses),
        messages=tuple(cast(list[dict[str, str]], fields.get("messages", []))),
        row=cast(dict[str, Any], fields.get("row", {})),
        sources=tuple(cast(list[str], fields.get("sources", []))),
    )


def read_votes(labels: Path) -> list[Vote]:
    """The votes that hold, in the order they were given: undone ones are left out, and of two votes of the same
    person on the same pair the later counts.
    """
    path = votes_path(labels)
    votes: dict[str, Vote] = {}
    newest: dict[tuple[str, tuple[str, int, int]], str] = {}
    for number, entry in read_lines(path):
        if entry.get("event") == "undo":
            votes.pop(str(entry.get("vote")), None)
            continue
        vote = parse_vote(entry, f"{path}:{number}")
        votes.pop(newest.get((vote.annotator, vote.key), ""), None)
        newest[vote.annotator, vote.key] = vote.vote
        votes[vote.vote] = vote
    return list(votes.values())


def parse_vote(entry: dict[str, Any], where: str) -> Vote:
    if entry.get("event") != "vote" or entry.get("choice") not in get_args(Choice):
        raise TightropeError("neither a vote nor an undo", where=where)
    try:
        (low, high), (first, second) = entry["pair"], entry["order"]
        values: dict[str, Any] = {name: entry[name] for name in Vote.__dataclass_fields__}
        values |= {"pair": (int(low), int(high)), "order": (int(first), int(second))}
        return Vote(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise TightropeError(f"a vote that cannot be read: {error}", where=where) from error


def preference_rows(labels: Path) -> list[dict[str, Any]]:
    """The votes of a label file as rows of preference data: prompt, chosen, rejected."""
    return preferences_of(read_items(labels), read_votes(labels)).rows


def preferences_of(items: Sequence[LabelItem], votes: Sequence[Vote]) -> Preferences:
    """Each vote for A or B is one row. Conversations give message lists, other prompts plain texts."""
    by_id = {item.id: item for item in items}
    rows: list[dict[str, Any]] = []
    unknown = 0
    for vote in votes:
        item = by_id.get(vote.item)
        if item is None or max(vote.pair) >= len(item.responses):
            unknown += 1
        elif vote.choice in ("A", "B"):
            chosen, rejected = vote.order if vote.choice == "A" else vote.order[::-1]
            rows.append(preference_row(item, item.responses[chosen], item.responses[rejected]))
    choices = [vote.choice for vote in votes]
    return Preferences(rows, ties=choices.count("tie"), skips=choices.count("skip"), unknown=unknown)


def preference_row(item: LabelItem, chosen: str, rejected: str) -> dict[str, Any]:
    if not item.messages:
        return {"prompt": item.prompt, "chosen": chosen, "rejected": rejected}
    answers = [[{"role": "assistant", "content": text}] for text in (chosen, rejected)]
    return {"prompt": list(item.messages), "chosen": answers[0], "rejected": answers[1]}


def export_preferences(labels: Path, output: Path) -> Preferences:
    """Write the preference rows as JSONL, whole or not at all."""
    found = preferences_of(read_items(labels), read_votes(labels))
    replace_file(output, "".join(json.dumps(row) + "\n" for row in found.rows).encode())
    return found


def pairs_of(item: LabelItem, seed: int, annotator: str) -> list[Pair]:
    """Every pair of different responses, in random order and with random sides, fixed by (seed, annotator, item)."""
    draw = random.Random(f"{seed}/{annotator}/{item.id}")
    different = [p for p in combinations(range(len(item.responses)), 2) if item.responses[p[0]] != item.responses[p[1]]]
    draw.shuffle(different)
    return [Pair(item, *(pair if draw.random() < 0.5 else pair[::-1])) for pair in different]


class LabelSession:
    """One person at one label file. Every vote is on disk when ``vote`` returns; a new session goes on from there.

    All prompts are asked about once before any is asked about again.
    """

    def __init__(self, labels: Path, annotator: str, seed: int = 0) -> None:
        self.labels = labels
        self.annotator = annotator
        rounds = zip_longest(*(pairs_of(item, seed, annotator) for item in read_items(labels)))
        self._queue = [pair for round_ in rounds for pair in round_ if pair is not None]
        self._log = LineLog(votes_path(labels))
        self._votes = [vote for vote in read_votes(labels) if vote.annotator == annotator]

    @property
    def total(self) -> int:
        return len(self._queue)

    @property
    def done(self) -> int:
        keys = {vote.key for vote in self._votes}
        return sum(pair.key in keys for pair in self._queue)

    @property
    def votes(self) -> Sequence[Vote]:
        """This person's votes that hold, oldest first."""
        return self._votes

    def next_pair(self) -> Pair | None:
        keys = {vote.key for vote in self._votes}
        return next((pair for pair in self._queue if pair.key not in keys), None)

    def vote(self, pair: Pair, choice: Choice, seconds: float) -> Vote:
        vote = Vote(
            vote=secrets.token_hex(8),
            item=pair.item.id,
            pair=(min(pair.first, pair.second), max(pair.first, pair.second)),
            order=(pair.first, pair.second),
            choice=choice,
            seconds=round(seconds, 3),
            annotator=self.annotator,
            time=time.time(),
        )
        self._log.append({"event": "vote", **asdict(vote)})
        self._votes.append(vote)
        return vote

    def undo(self) -> Vote | None:
        """Take back the last vote that holds, also one of an earlier session; its pair is asked again."""
        if not self._votes:
            return None
        undone = self._votes[-1]
        self._log.append({"event": "undo", "vote": undone.vote, "annotator": self.annotator, "time": time.time()})
        return self._votes.pop()

    def close(self) -> None:
        self._log.close()
