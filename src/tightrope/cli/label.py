"""``tightrope label FILE``: a person compares two responses at a time, with single keys.

Sources are never shown and the sides are random. Every vote is on disk before the next pair appears.
"""

from __future__ import annotations

import getpass
import os
import select
import shlex
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tightrope.cli.arguments import INTERRUPTED
from tightrope.storage.labels import Choice, LabelSession, Pair, export_preferences, preferences_path
from tightrope.storage.samples import printable

CHOICES: dict[str, Choice] = {"a": "A", "b": "B", "t": "tie", "s": "skip"}
KEYS = "a / b better   t tie   s skip   u undo   q quit"
ESCAPE = b"\x1b"
ESCAPE_SECONDS = 0.05  # what a terminal sends for one special key arrives within this time

ReadKey = Callable[[], str]
"""The next key, '' at the end of the input."""


def label(
    file: Path,
    /,
    *,
    annotator: Annotated[str | None, Parameter(help="Name stored with each vote. Absent: the login name.")] = None,
    limit: Annotated[int | None, Parameter(help="Stop after so many votes.")] = None,
    seed: Annotated[int, Parameter(help="Keys the order of pairs and sides.")] = 0,
    export: Annotated[Path | None, Parameter(help="Where the preferences are written.")] = None,
) -> None:
    """Compare responses in the terminal and write preferences for the reward model.

    Parameters
    ----------
    file
        Label file written by ``tightrope generate``. Votes are saved beside it, so a later call goes on from there.
    """
    session, output = LabelSession(file, annotator or login_name(), seed), export or preferences_path(file)
    try:
        with keyboard() as read_key:
            # After every vote: a terminal may be closed at any time, and what it leaves must be ready to train on.
            ask(session, read_key, limit, lambda: export_preferences(file, output))
        code = 0
    except KeyboardInterrupt:
        print("\ninterrupted; every vote is saved")
        code = INTERRUPTED
    finally:
        session.close()
    finish(file, output)
    if code:
        raise SystemExit(code)


def ask(session: LabelSession, read_key: ReadKey, limit: int | None, changed: Callable[[], object]) -> None:
    """Pairs until none is left, the limit is reached, or the person quits. ``changed`` is called after each vote and
    each undo."""
    votes = 0
    while limit is None or votes < limit:
        pair = session.next_pair()
        if pair is None:
            print("\nevery pair has a vote")
            return
        show(pair, session)
        shown_at = time.monotonic()
        key = known_key(read_key)
        if key == "q":
            return
        if key == "u":
            undone = session.undo()
            votes -= undone is not None
            print("there is no vote to undo" if undone is None else f"undone: {undone.choice}")
            changed()
            continue
        session.vote(pair, CHOICES[key], time.monotonic() - shown_at)
        changed()
        votes += 1
        print(f"saved: {CHOICES[key]}")


def known_key(read_key: ReadKey) -> str:
    """The next key that means something; the end of the input means quit."""
    while True:
        key = read_key().lower()
        if not key or key == "\x04":
            return "q"
        if key in CHOICES or key in "uq":
            return key
        print(f"keys: {KEYS} > ", end="", flush=True)


def show(pair: Pair, session: LabelSession) -> None:
    responses = pair.item.responses
    print(f"\n── pair {session.done + 1} of {session.total} " + "─" * 40)
    print(f"{printable(pair.item.prompt)}\n")
    print(f"[A] {printable(responses[pair.first])}\n")
    print(f"[B] {printable(responses[pair.second])}\n")
    print(f"{KEYS} > ", end="", flush=True)


def finish(file: Path, output: Path) -> None:
    """Write the preferences of everybody's votes and say what to do with them."""
    found = export_preferences(file, output)
    left_out = f"left out: {found.ties} tied, {found.skips} skipped"
    print(f"\n{len(found.rows)} preferences written to {printable(str(output))} ({left_out})")
    if found.unknown:
        print(f"{found.unknown} votes are about responses that {printable(str(file))} does not hold")
    if found.rows:
        print(f"next: tightrope rm train CONFIG.yaml data.train={shlex.quote(str(output))}")


@contextmanager
def keyboard() -> Generator[ReadKey]:
    """Single keys on a terminal, whose settings are put back at the end; elsewhere one key a line."""
    if not sys.stdin.isatty():
        yield read_key_of_line
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield lambda: read_single_key(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_key_of_line() -> str:
    """The first letter of the next line that has one."""
    while line := sys.stdin.readline():
        if line.strip():
            return line.strip()[0]
    return ""


def read_single_key(descriptor: int) -> str:
    """One key. Arrow and function keys arrive as an escape and more letters: none of these is a vote."""
    key = os.read(descriptor, 1)
    if key == ESCAPE:
        while select.select([descriptor], [], [], ESCAPE_SECONDS)[0] and os.read(descriptor, 1):
            continue
    return key.decode("latin-1")


def login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"user-{os.getuid()}"
