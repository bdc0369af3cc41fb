"""How is a text a bag of words and of word sequences? Lower-case words; marks are left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

import numpy as np
from scipy.sparse import csr_matrix

WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def words(text: str) -> list[str]:
    """
    >>> words("If you ask ME, it isn't (really) *good*.")
    ['if', 'you', 'ask', 'me', 'it', "isn't", 'really', 'good']
    """
    return WORD.findall(text.lower())


def grams(text: str, longest: int) -> set[str]:
    """All sequences of 1 to ``longest`` words.

    >>> sorted(grams("a b a b", 2))
    ['a', 'a b', 'b', 'b a']
    """
    found = words(text)
    return {" ".join(found[i : i + n]) for n in range(1, longest + 1) for i in range(len(found) - n + 1)}


def presence(sets: Sequence[tuple[set[str], set[str]]], vocabulary: Sequence[str]) -> csr_matrix:
    """[pairs, vocabulary]: 1 where only the first text has it, -1 where only the second has it."""
    column = {gram: index for index, gram in enumerate(vocabulary)}
    entries = [
        (row, column[gram], sign)
        for row, (first, second) in enumerate(sets)
        for sign, only in ((1.0, first - second), (-1.0, second - first))
        for gram in only
        if gram in column
    ]
    rows, columns, values = zip(*entries, strict=True) if entries else ((), (), ())
    return csr_matrix((values, (rows, columns)), shape=(len(sets), len(vocabulary)), dtype=np.float64)


def differing(sets: Sequence[tuple[set[str], set[str]]], least: int) -> list[str]:
    """What stands in one text of a pair and not in the other, at least ``least`` times; in alphabetical order."""
    counts = Counter(gram for first, second in sets for gram in first ^ second)
    return sorted(gram for gram, count in counts.items() if count >= least)


def tfidf(texts: Sequence[str], idf_of: Sequence[str] | None = None) -> csr_matrix:
    """Rows of length 1 over words and word pairs hashed into columns; ``idf_of``: the texts that say what is rare.

    Two texts' product is their cosine; a text without words is a row of zeros.
    """
    columns = 1 << 18
    bags = [Counter(crc32(g.encode()) % columns for g in gram_list(text)) for text in texts]
    known = bags if idf_of is None else [Counter(crc32(g.encode()) % columns for g in gram_list(t)) for t in idf_of]
    frequency = Counter(column for bag in known for column in bag)
    total = len(known)
    rows, places, values = list[int](), list[int](), list[float]()
    for row, bag in enumerate(bags):
        weights = {
            column: (1 + np.log(count)) * np.log((1 + total) / (1 + frequency[column])) + 1e-9
            for column, count in bag.items()
        }
        norm = float(np.sqrt(sum(weight * weight for weight in weights.values())))
        rows += [row] * len(weights)
        places += list(weights)
        values += [weight / norm for weight in weights.values()]
    return csr_matrix((values, (rows, places)), shape=(len(texts), columns), dtype=np.float64)


def gram_list(text: str) -> list[str]:
    found = words(text)
    return found + [f"{a} {b}" for a, b in pairwise(found)]
