"""What the policy wrote at each step, with its rewards, for people to read.

Model text is hostile: it may hold terminal commands and direction marks. It is stored as it is and goes through
``printable`` before it reaches a terminal.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from tightrope.storage.database import Database

SCHEMA = 1
TABLES = """
CREATE TABLE IF NOT EXISTS samples (
    step INTEGER NOT NULL, split TEXT NOT NULL, position INTEGER NOT NULL, attempt INTEGER NOT NULL,
    prompt_index INTEGER NOT NULL, sample_index INTEGER NOT NULL, prompt TEXT NOT NULL, response TEXT NOT NULL,
    finish_reason TEXT NOT NULL, n_tokens INTEGER NOT NULL, reward REAL, parts TEXT NOT NULL, kl REAL,
    PRIMARY KEY (step, split, position));
CREATE TABLE IF NOT EXISTS reference_responses (
    split TEXT NOT NULL, prompt_index INTEGER NOT NULL, response TEXT NOT NULL, PRIMARY KEY (split, prompt_index));
"""
QUERY = """
SELECT s.step, s.split, s.position, s.attempt, s.prompt_index, s.sample_index, s.prompt, s.response,
       s.finish_reason, s.n_tokens, s.reward, s.parts, s.kl, coalesce(r.response, (
           SELECT f.response FROM samples f
           WHERE f.split = 'probe' AND s.split = 'probe' AND f.step < s.step AND f.prompt_index = s.prompt_index
           ORDER BY f.step, f.position LIMIT 1))
FROM samples s LEFT JOIN reference_responses r ON r.split = s.split AND r.prompt_index = s.prompt_index
WHERE s.step = ? AND s.split = ? ORDER BY s.position
"""
PRUNE = """
DELETE FROM samples WHERE split = :split
AND step NOT IN (SELECT DISTINCT step FROM samples WHERE split = :split ORDER BY step DESC LIMIT :keep)
AND (split != 'probe' OR step > (SELECT min(step) FROM samples WHERE split = 'probe'))
"""
"""The first probe stays: what later ones are compared with."""
LETTERS_THAT_ONLY_JOIN = "\u200c\u200d"  # needed inside emoji, Persian and Indic words
ESCAPED_CATEGORIES = frozenset(["Cc", "Cf", "Cs", "Zl", "Zp"])


class Numbers(Protocol):
    """A tensor, as far as this file needs it."""

    def tolist(self) -> Any: ...


class SampledPrompt(Protocol):
    @property
    def index(self) -> int: ...
    @property
    def text(self) -> str: ...


class SampledRows(Protocol):
    @property
    def action_offsets(self) -> Numbers: ...


class SampledRollout(Protocol):
    """``types.Rollout``, as far as this file needs it: the storage loads no torch."""

    @property
    def rows(self) -> SampledRows: ...
    @property
    def behaviour_logprobs(self) -> Numbers: ...
    @property
    def finish_reason(self) -> Sequence[str]: ...
    @property
    def responses(self) -> Sequence[str]: ...
    @property
    def prompts(self) -> Sequence[SampledPrompt]: ...
    @property
    def prompt_index(self) -> Numbers: ...
    @property
    def sample_index(self) -> Numbers: ...


class SampledScores(Protocol):
    """``types.Scores``, as far as this file needs it."""

    @property
    def reward(self) -> Numbers: ...
    @property
    def parts(self) -> Mapping[str, Numbers]: ...
    @property
    def ref_logprobs(self) -> Numbers | None: ...
    @property
    def policy_logprobs(self) -> Numbers | None: ...


@dataclass(frozen=True, slots=True)
class StoredSample:
    """One response. ``prompt_index`` is the prompt's row in the data set, ``kl`` the sum of logprob - ref_logprob
    over the response in nats (None without a reference), ``reference`` the reference's own response to the prompt:
    what was given to ``keep_references``, else the prompt's response in the first probe, before any training.
    """

    step: int
    split: str
    position: int
    attempt: int
    prompt_index: int
    sample_index: int
    prompt: str
    response: str
    finish_reason: str
    n_tokens: int
    reward: float | None
    parts: Mapping[str, float]
    kl: float | None
    reference: str | None = None


class SampleStore:
    """A ``SampleSink``. Keeps ``count`` sequences of every ``every``-th training step and of each probe, spread evenly
    over the batch; None keeps all. Of each split the newest ``keep_steps`` stored steps stay, and the first probe.
    """

    def __init__(
        self,
        path: Path,
        count: int | None = None,
        every: int = 1,
        keep_steps: int | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._database = Database(path, "samples", SCHEMA, TABLES, read_only=read_only)
        self._count = count
        self._every = every
        self._keep_steps = keep_steps

    def keep(self, step: int, attempt: int, rollout: SampledRollout, scores: SampledScores, split: str) -> None:
        """A step that is written again, after a resume, replaces what was there."""
        if split == "train" and step % self._every:
            return
        rows = [table_row(sample) for sample in samples_of(step, attempt, rollout, scores, split, self._count)]
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM samples WHERE step = ? AND split = ?", (step, split))
            connection.executemany(f"INSERT INTO samples VALUES ({', '.join('?' * 13)})", rows)
            if self._keep_steps is not None:
                connection.execute(PRUNE, {"split": split, "keep": self._keep_steps})

    def keep_references(self, rollout: SampledRollout, split: str) -> None:
        """The reference's own responses, to show beside the policy's to the same prompt."""
        prompt_of: list[int] = rollout.prompt_index.tolist()
        rows = [
            (split, rollout.prompts[prompt].index, storable(response))
            for prompt, response in zip(prompt_of, rollout.responses, strict=True)
        ]
        with self._database.transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO reference_responses VALUES (?, ?, ?)", rows)

    def read(self, step: int, split: str) -> list[StoredSample]:
        return [parse_row(row) for row in self._database.select(QUERY, step, split)]

    def steps(self, split: str) -> list[int]:
        found = self._database.select("SELECT DISTINCT step FROM samples WHERE split = ? ORDER BY step", split)
        return [int(str(row[0])) for row in found]

    def cut_after(self, step: int) -> int:
        """Forget the samples of every step beyond ``step``; returns how many there were."""
        with self._database.transaction() as connection:
            return connection.execute("DELETE FROM samples WHERE step > ?", (step,)).rowcount

    def close(self) -> None:
        self._database.close()


def samples_of(
    step: int, attempt: int, rollout: SampledRollout, scores: SampledScores, split: str, count: int | None
) -> list[StoredSample]:
    """``count`` responses of a step, spread evenly over the batch; None: all."""
    offsets: list[int] = rollout.rows.action_offsets.tolist()
    prompt_of: list[int] = rollout.prompt_index.tolist()
    sample_of: list[int] = rollout.sample_index.tolist()
    rewards: list[float] = scores.reward.tolist()
    parts: dict[str, list[float]] = {name: values.tolist() for name, values in scores.parts.items()}
    kl = kl_of_sequences(offsets, rollout, scores)
    found: list[StoredSample] = []
    for position in spread_evenly(len(rollout.responses), count):
        prompt = rollout.prompts[prompt_of[position]]
        found.append(
            StoredSample(
                step=step,
                split=split,
                position=position,
                attempt=attempt,
                prompt_index=prompt.index,
                sample_index=sample_of[position],
                prompt=storable(prompt.text),
                response=storable(rollout.responses[position]),
                finish_reason=rollout.finish_reason[position],
                n_tokens=offsets[position + 1] - offsets[position],
                reward=rewards[position],
                parts={name: values[position] for name, values in parts.items()},
                kl=None if kl is None else kl[position],
            )
        )
    return found


def kl_of_sequences(offsets: list[int], rollout: SampledRollout, scores: SampledScores) -> list[float] | None:
    """Sum of logprob - ref_logprob over each response."""
    if scores.ref_logprobs is None:
        return None
    source = rollout.behaviour_logprobs if scores.policy_logprobs is None else scores.policy_logprobs
    policy: list[float] = source.tolist()
    reference: list[float] = scores.ref_logprobs.tolist()
    differences = [ours - theirs for ours, theirs in zip(policy, reference, strict=True)]
    return [sum(differences[start:end]) for start, end in pairwise(offsets)]


def spread_evenly(total: int, count: int | None) -> list[int]:
    """Positions of ``count`` items among ``total``, all when there are fewer.

    >>> spread_evenly(10, 4), spread_evenly(2, 4), spread_evenly(3, None)
    ([0, 2, 5, 7], [0, 1], [0, 1, 2])
    """
    if count is None or count >= total:
        return list(range(total))
    return [item * total // count for item in range(count)]


def table_row(sample: StoredSample) -> tuple[object, ...]:
    """In the order of the table's columns; ``parse_row`` reads it back."""
    return (
        sample.step,
        sample.split,
        sample.position,
        sample.attempt,
        sample.prompt_index,
        sample.sample_index,
        sample.prompt,
        sample.response,
        sample.finish_reason,
        sample.n_tokens,
        sample.reward,
        json.dumps(dict(sample.parts)),
        sample.kl,
    )


def parse_row(row: tuple[Any, ...]) -> StoredSample:
    return StoredSample(*row[:11], parts=json.loads(row[11]), kl=row[12], reference=row[13])


def storable(text: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair is written as its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def printable(text: str) -> str:
    r"""Text that cannot command a terminal: control, direction and invisible characters become visible escapes.

    Newline and tab stay, and so do the two joiners that emoji and several scripts need.

    >>> printable("a\x1b[2Jb\u202ec\nd")
    'a\\x1b[2Jb\\u202ec\nd'
    """
    return "".join(escape(letter) if needs_escape(letter) else letter for letter in text)


def needs_escape(letter: str) -> bool:
    return letter not in "\n\t" + LETTERS_THAT_ONLY_JOIN and unicodedata.category(letter) in ESCAPED_CATEGORIES


def escape(letter: str) -> str:
    r"""The Python escape of one character.

    >>> escape("\r"), escape("\u2066"), escape("\U000e0041")
    ('\\x0d', '\\u2066', '\\U000e0041')
    """
    code = ord(letter)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
