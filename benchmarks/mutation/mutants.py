"""All mutants of a module as Cosmic Ray and our own operators make them, and which of them are left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast  # pyright: ignore[reportMissingImports]
from cosmic_ray.mutating import mutate_code  # pyright: ignore[reportMissingImports]
from cosmic_ray.plugins import get_operator, operator_names  # pyright: ignore[reportMissingImports]

from benchmarks.mutation.filters import Source

LEFT_OUT = re.compile(
    "|".join(
        [
            # Shifts and bits of floats are a TypeError that any test sees, and nobody writes % or ** for + or *: they
            # would only swell the score.
            r"core/ReplaceBinaryOperator_.*_(Mod|Pow)$",
            r"core/ReplaceBinaryOperator_(?!Bit).*_(RShift|LShift|BitOr|BitAnd|BitXor)$",
            r"core/ReplaceBinaryOperator_Bit.*_(?!Bit)\w+$",
            r"core/ReplaceBinaryOperator_(RShift|LShift)_",
            # Whether equal small numbers are one object is the interpreter's business.
            r"core/ReplaceComparisonOperator_(Eq|NotEq|Lt|LtE|Gt|GtE)_Is(Not)?$",
            # +x is x (deleting the sign is kept), ~x and not x of floats as above.
            r"core/ReplaceUnaryOperator_USub_",
        ]
    )
)
"""Operators of Cosmic Ray that are not used here."""


@dataclass(frozen=True, order=True)
class Mutant:
    """Keeps its name when lines move: the function, and the lines that went and came."""

    function: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.function}\n    - {self.before}\n    + {self.after}"


def mutants_of(path: Path, counts: Counter[str]) -> Iterator[tuple[Mutant, str, str, int | None]]:
    """Each mutant of a file, its operator, the whole text and the first line of its function.

    ``counts`` takes up how many were left out, and why.
    """
    text = path.read_text(encoding="utf-8")
    source = Source(path.stem, text)
    nodes = list(ast_nodes(get_ast(text)))
    for name in operator_names():
        if LEFT_OUT.match(name):
            continue
        operator = get_operator(name)
        if operator.arguments():
            continue
        positions = [place for node in nodes for place in operator().mutation_positions(node)]
        for occurrence, (start, end) in enumerate(positions):
            reason = source.reason_to_skip(start, end)
            mutated = None if reason else mutate_code(text, operator(), occurrence)
            if mutated is not None:
                reason = source.reason_to_drop(mutated)
            if mutated is None or reason is not None:
                counts[reason or "not applied"] += 1
            else:
                function, line = source.function_at(start[0])
                yield Mutant(function, *source.changed_lines(mutated)), name, mutated, line
