"""How does a data file become rows, and how is a broken line named?

A row keeps the line it starts on (parquet: its row number, from 1), so that every complaint says ``file:line``.
JSONL, CSV and parquet; UTF-8 with or without a byte-order mark, any line ends, blank lines ignored.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tightrope.config.errors import TightropeError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
SHOWN = 80
"""Longest piece of a person's text repeated in an error."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its columns under their names, all of them, and where it stands."""

    file: str
    number: int
    values: Mapping[str, Any]

    @property
    def where(self) -> str:
        return f"{self.file}:{self.number}"


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Errors raised inside, which know what but not where, are told the place."""
    try:
        yield
    except TightropeError as error:
        if error.where is not None:
            raise
        raise TightropeError(
            error.what, where=where, found=error.found, expected=error.expected, fix=error.fix
        ) from error


def read_rows(path: Path) -> list[Row]:
    """All rows of a file, in order. Raises TightropeError, ``file:line: ...``, at the first one that is broken."""
    formats = {".jsonl": read_jsonl, ".json": read_jsonl, ".ndjson": read_jsonl, ".csv": read_csv}
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        rows = read_parquet(path)
    elif suffix in formats:
        rows = formats[suffix](path, read_bytes(path))
    else:
        raise TightropeError(
            "a data file of unknown kind",
            where=str(path),
            expected=".jsonl, .csv or .parquet",
            found=suffix or "no ending",
        )
    if not rows:
        raise TightropeError("the data file holds no rows", where=str(path))
    return rows


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise TightropeError("there is no such data file", where=str(path), fix=near_file(path)) from error
    except OSError as error:
        raise TightropeError("the data file cannot be read", where=str(path), found=error.strerror) from error


def near_file(path: Path) -> str:
    """The file that may have been meant, or where relative paths start."""
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / near[0]}?" if near else "paths are relative to the working directory"


def read_jsonl(path: Path, content: bytes) -> list[Row]:
    refuse_utf_16(path, content)
    rows: list[Row] = []
    for number, line in enumerate(content.removeprefix(BYTE_ORDER_MARK).split(b"\n"), start=1):
        if line.strip():
            with placed(f"{path}:{number}"):
                rows.append(Row(str(path), number, parse_object(decode(line))))
    return rows


def refuse_utf_16(path: Path, content: bytes) -> None:
    if content[:2] in UTF_16_MARKS:
        raise TightropeError("the file is UTF-16", where=f"{path}:1", expected="UTF-8", fix="save it as UTF-8")


def decode(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
        raise TightropeError("not UTF-8", found=found, fix="save the file as UTF-8") from error


def parse_object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line, parse_constant=refuse_constant, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        found = short(line.strip()) if error.pos < 1 else f"{short(line[error.pos :].strip()) or 'the end of the line'}"
        raise TightropeError(f"broken JSON at column {error.colno}: {error.msg}", found=found) from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 100,000 opening brackets
        raise TightropeError("JSON that cannot be read", found=str(error)) from error
    if isinstance(value, list):
        raise TightropeError("a list", expected="one JSON object a line", fix="put each element on its own line")
    if not isinstance(value, dict):
        raise TightropeError("not an object", expected="one JSON object a line", found=short(line.strip()))
    return value


def refuse_constant(name: str) -> NoReturn:
    raise TightropeError(f"{name} is not JSON", fix="write null, or remove the row")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise TightropeError(f"the key `{short(key)}` is there twice", fix="remove one of them")
        found[key] = value
    return found


def read_csv(path: Path, content: bytes) -> list[Row]:
    refuse_utf_16(path, content)
    content = content.removeprefix(BYTE_ORDER_MARK)
    for number, line in enumerate(content.split(b"\n"), start=1):
        with placed(f"{path}:{number}"):
            decode(line)
    csv.field_size_limit(sys.maxsize)  # the module's own limit of 131,072 letters is shorter than real answers
    reader = csv.reader(io.StringIO(content.decode("utf-8"), newline=""), strict=True)
    columns: list[str] | None = None
    rows: list[Row] = []
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise TightropeError(f"broken CSV: {error}", where=f"{path}:{start}", fix="check the quotes") from error
        if cells is None:
            return rows
        if not cells:  # a blank line
            continue
        with placed(f"{path}:{start}"):
            if columns is None:
                columns = checked_header(cells)
            else:
                rows.append(Row(str(path), start, csv_values(columns, cells)))


def checked_header(cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise TightropeError("a column is there twice", found=short(twice[0]), fix="rename one of them")
    return names


def csv_values(columns: list[str], cells: list[str]) -> dict[str, Any]:
    if len(cells) != len(columns):
        raise TightropeError(
            "a row of another width than the header",
            expected=f"{len(columns)} cells",
            found=str(len(cells)),
            fix="put text that holds commas or line ends in quotes",
        )
    return dict(zip(columns, cells, strict=True))


def read_parquet(path: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    content = read_bytes(path)
    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
        values = table.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise TightropeError("the parquet file cannot be read", where=str(path), found=short(str(error))) from error
    return [Row(str(path), number, row) for number, row in enumerate(values, start=1)]


def text_of(values: Mapping[str, Any], column: str) -> str:
    """A column's text. Raises TightropeError when it is absent, null, no text, empty, or half of a character."""
    if column not in values:
        raise missing_column(column, values)
    text = values[column]
    if text is None:
        raise TightropeError(f"`{column}` is null", expected="text", fix="write the text, or remove the row")
    if not isinstance(text, str):
        found = f"{type(text).__name__} {short(repr(text))}"
        raise TightropeError(f"`{column}` is not text", expected="text", found=found)
    return checked_text(text, f"`{column}`")


def checked_text(text: str, name: str) -> str:
    if not text.strip():
        raise TightropeError(f"{name} is empty", expected="text", fix="write the text, or remove the row")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"U+{ord(text[error.start]):04X} at letter {error.start + 1}"
        raise TightropeError(
            f"{name} holds half of a character (a lone surrogate)", found=found, fix="remove it from the text"
        ) from error
    return text


KNOWN_AS = {
    "prompt": ("query", "question", "instruction", "input", "context", "problem"),
    "completion": ("response", "answer", "output", "target", "summary", "label", "solution"),
    "messages": ("conversations", "conversation", "chat", "dialogue", "dialog"),
    "chosen": ("preferred", "winner", "accepted", "better", "response_chosen", "pos"),
    "rejected": ("dispreferred", "loser", "refused", "worse", "response_rejected", "neg"),
}
"""Names other tools and data sets use for our columns."""


def missing_column(column: str, values: Mapping[str, Any]) -> TightropeError:
    names = [str(name) for name in values]
    lower = {name.lower().strip(): name for name in names}
    known = [lower[name] for name in (column, *KNOWN_AS.get(column, ())) if name in lower]
    near = known or [lower[name] for name in difflib.get_close_matches(column, list(lower), n=1)]
    return TightropeError(
        "a column is missing",
        expected=f"`{column}`",
        found=", ".join(short(name) for name in names[:12]) or "no columns",
        fix=f"rename `{short(near[0])}` to `{column}`, if it holds that" if near else None,
    )


def short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
