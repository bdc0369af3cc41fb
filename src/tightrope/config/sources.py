"""What did the person write, and where? A YAML file and ``key.path=value`` overrides as one tree with places.

YAML is 1.2: ``1e-5`` is a number, ``yes`` and ``off`` are texts. A place is ``file:line`` or ``override key.path``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, cast

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from tightrope.config.errors import TightropeError

KeyPath = tuple[str, ...]
Tree = dict[str, Any]
LARGEST = 10_000
"""Values in one file. Aliases can make a short file mean a huge tree; a config has a few dozen."""


@dataclass(frozen=True)
class Source:
    """``tree`` holds plain JSON values; ``places`` where each key was written last."""

    name: str
    tree: Tree
    places: dict[KeyPath, str]

    def place(self, path: Sequence[str | int]) -> str:
        """The place of a key, or of the section it should stand in, or the file."""
        keys = tuple(str(key) for key in path)
        while keys and keys not in self.places:
            keys = keys[:-1]
        return self.places.get(keys, self.name)


def read_source(path: Path, overrides: Sequence[str] = ()) -> Source:
    """The file with the overrides laid over it, later ones winning. Raises TightropeError."""
    source = read_yaml(path)
    for override in overrides:
        apply_override(source, override)
    return source


def read_yaml(path: Path) -> Source:
    text = read_text(path)
    try:
        document: Any = YAML().load(text)  # pyright: ignore[reportUnknownMemberType]
    except MarkedYAMLError as error:
        raise broken_yaml(path, text, error) from error
    except ReaderError as error:
        found: Any = error  # ruamel has no types
        line = text[: found.position].count("\n") + 1
        where = f"{path}:{line}"
        raise TightropeError("a letter YAML does not allow", where=where, found=repr(found.character)) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise TightropeError("YAML that cannot be read", where=str(path), found=str(error)) from error
    if document is None:
        raise TightropeError("the file is empty", where=f"{path}:1", expected="a config, as in examples/")
    if not isinstance(document, CommentedMap):
        raise TightropeError("not a config", where=f"{path}:1", expected="`key: value` lines", found=kind_of(document))
    source = Source(str(path), {}, {})
    source.tree.update(Plain(source).mapping(document, ()))
    return source


def read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise TightropeError("there is no such config file", where=str(path)) from error
    except (OSError, ValueError) as error:
        raise TightropeError("the config file cannot be read", where=str(path), found=str(error)) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        found = f"byte 0x{content[error.start]:02x}"
        raise TightropeError("not UTF-8", where=f"{path}:{line}", found=found, fix="save it as UTF-8") from error


def broken_yaml(path: Path, text: str, error: Any) -> TightropeError:
    mark = error.problem_mark or error.context_mark
    number = 1 if mark is None else int(mark.line) + 1
    lines = text.split("\n")
    # The scanner often notices one line late: an open bracket or quote is complained about where it is missed.
    shown = lines[number - 1].strip() if number <= len(lines) else "the end of the file"
    problem = str(error.problem or "not YAML")
    fix = None
    if number <= len(lines) and "\t" in lines[number - 1]:
        fix = "indent with spaces, not with tabs"
    elif "duplicate key" in problem:
        problem, fix = problem.split(" with ")[0].removeprefix("found "), "remove one of the two"
    return TightropeError(f"broken YAML: {problem}", where=f"{path}:{number}", found=shown or "an empty line", fix=fix)


class Plain:
    """Turns ruamel's values, which remember their lines, into JSON values and notes the lines in ``source``."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._left = LARGEST

    def mapping(self, mapping: CommentedMap, path: KeyPath) -> Tree:
        found: Tree = {}
        for key, value in cast("dict[Any, Any]", mapping).items():
            line = self.line_of(mapping, key)
            place = self._source.place(path) if line is None else f"{self._source.name}:{line}"
            if not isinstance(key, str):
                raise TightropeError("a key that is not text", where=place, found=repr(key))
            self._source.places[(*path, key)] = place
            found[str(key)] = self.value(value, (*path, str(key)))
        return found

    @staticmethod
    def line_of(mapping: CommentedMap, key: Any) -> int | None:
        """From 1; None for a key that came in by a merge (``<<``)."""
        try:
            return int(cast(Any, mapping).lc.key(key)[0]) + 1
        except KeyError:
            return None

    def value(self, value: Any, path: KeyPath) -> Any:
        self._left -= 1
        if self._left < 0:
            place = self._source.place(path)
            raise TightropeError("too many values for a config", where=place, fix="remove the aliases")
        if isinstance(value, CommentedMap):
            return self.mapping(value, path)
        if isinstance(value, list):
            return [self.item(item, path, number) for number, item in enumerate(cast(list[Any], value))]
        return scalar(value, self._source.place(path))

    def item(self, item: Any, path: KeyPath, number: int) -> Any:
        """Of a list; one that is a mapping remembers where its keys stand, under its number."""
        here = (*path, str(number))
        if isinstance(item, CommentedMap):
            self._source.places[here] = f"{self._source.name}:{int(cast(Any, item).lc.line) + 1}"
        return self.value(item, here)


def scalar(value: Any, place: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):  # ruamel's own subclasses remember how a number was written
            plain = kind(value)
            if isinstance(plain, float) and not math.isfinite(plain):
                raise TightropeError("not a finite number", where=place, found=str(plain))
            return plain
    if isinstance(value, date):
        return value.isoformat()
    raise TightropeError("a value no option can take", where=place, found=kind_of(value), fix="write a plain value")


def apply_override(source: Source, override: str) -> None:
    """Lays ``key.path=value`` over the tree; sections on the way are made where there are none."""
    name, equals, text = override.partition("=")
    keys = tuple(key.strip() for key in name.split("."))
    if not equals or not all(keys):
        expected = "key.path=value, as in kl.beta=0.1"
        raise TightropeError("not an override", where=f"override {override}", expected=expected)
    place = f"override {'.'.join(keys)}"
    section = source.tree
    for key in keys[:-1]:
        inner = section.setdefault(key, {})
        if inner is None:
            section[key] = inner = {}
        if not isinstance(inner, dict):
            raise TightropeError(f"`{key}` is no section", where=place, found=repr(inner))
        section = cast(Tree, inner)
    section[keys[-1]] = override_value(text, place)
    for length in range(1, len(keys)):
        source.places.setdefault(keys[:length], place)
    for path in [path for path in source.places if path[: len(keys)] == keys]:
        del source.places[path]
    source.places[keys] = place


def override_value(text: str, place: str) -> Any:
    try:
        value: Any = YAML().load(text)  # pyright: ignore[reportUnknownMemberType]
    except (YAMLError, ValueError, RecursionError) as error:
        raise TightropeError("a value that is not YAML", where=place, found=text, fix="put it in quotes") from error
    try:
        return Plain(Source(place, {}, {})).value(value, ())
    except TightropeError as error:  # an override has no lines
        raise TightropeError(error.what, where=place, found=error.found, fix=error.fix) from error


def kind_of(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    return f"{value!r}" if isinstance(value, str | int | float) else type(value).__name__
