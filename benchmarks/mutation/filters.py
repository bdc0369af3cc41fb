"""Which mutants say nothing about a test, and why: found before anything runs, and counted in the report.

A position is left out when no program depends on it (annotations) or only the words of an error do; a mutant, when it
is no Python, no change, or the same program as another one.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

Position = tuple[int, int]

ANNOTATION = "annotation: not evaluated at run time, held by pyright and tests/maths/test_axes.py"
WORDS = "words of an error message or a docstring"
IMPORT = "import"
INVALID = "not valid Python"
SAME = "same program as the original"
TWIN = "same program as another mutant"

NAMED_CHECKS = ("require_same_shape", "require_per_sequence")
"""Their strings are the names in the error they raise."""


def is_import(node: ast.stmt) -> bool:
    """Or any other import: a name that is missing fails everywhere."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.Import | ast.ImportFrom)


@dataclass(frozen=True)
class Span:
    start: Position
    end: Position
    reason: str

    def holds(self, start: Position, end: Position) -> bool:
        return self.start <= start and end <= self.end


class Source:
    """One module: the spans that are left out, the function around a line, the mutants seen so far."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._lines = text.splitlines()
        self._tree = ast.parse(text)
        self._spans = list(self._left_out())
        self._original = ast.dump(self._tree)
        self._seen: set[str] = set()

    def reason_to_skip(self, start: Position, end: Position) -> str | None:
        return next((span.reason for span in self._spans if span.holds(start, end)), None)

    def reason_to_drop(self, mutated: str) -> str | None:
        try:
            program = ast.dump(ast.parse(mutated))
            compile(mutated, "mutant", "exec")
        except SyntaxError:
            return INVALID
        if program == self._original:
            return SAME
        if program in self._seen:
            return TWIN
        self._seen.add(program)
        return None

    def function_at(self, line: int) -> tuple[str, int | None]:
        """The innermost function around a line, ``statistics.Moments.std``, and its first line; None outside of any."""
        found, first_line = self._name, None
        scopes: list[tuple[str, ast.AST]] = [(self._name + ".", self._tree)]
        while scopes:
            prefix, scope = scopes.pop()
            for node in ast.iter_child_nodes(scope):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                    if first <= line <= (node.end_lineno or first):
                        found = prefix + node.name
                        first_line = first if isinstance(node, ast.FunctionDef) else None
                        scopes.append((found + ".", node))
        return found, first_line

    def changed_lines(self, mutated: str) -> tuple[str, str]:
        """The lines that went and that came, each side on one line, without indentation."""
        diff = list(difflib.unified_diff(self._lines, mutated.splitlines(), lineterm="", n=0))[2:]
        went, came = (" ".join(" ".join(line[1:] for line in diff if line[0] == sign).split()) for sign in "-+")
        return went, came

    def _left_out(self) -> Iterator[Span]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                yield self._span(node.returns, ANNOTATION)
            elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
                yield self._span(node.annotation, ANNOTATION)
            elif isinstance(node, ast.Raise) and node.exc is not None:
                yield self._span(node.exc, WORDS)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield self._span(node, WORDS)
            elif isinstance(node, ast.stmt) and is_import(node):
                yield self._span(node, IMPORT)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in NAMED_CHECKS:
                    yield from self._names_in(node)
                elif node.func.id == "cast":
                    yield self._span(node.args[0], ANNOTATION)

    def _names_in(self, call: ast.Call) -> Iterator[Span]:
        for node in ast.walk(call):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield self._span(node, WORDS)

    def _span(self, node: ast.expr | ast.stmt, reason: str) -> Span:
        end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        return Span(self._in_characters(node.lineno, node.col_offset), self._in_characters(*end), reason)

    def _in_characters(self, line: int, column: int) -> Position:
        """ast counts bytes of UTF-8, parso counts characters."""
        return line, len(self._lines[line - 1].encode()[:column].decode())
