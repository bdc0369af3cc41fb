"""The command line inside the test process: what a person types, and what they see."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tightrope.cli.main import main


def call(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    capsys.readouterr()  # what the preparation of the test printed
    code = 0
    try:
        main([str(word) for word in words])
    except SystemExit as left:
        assert isinstance(left.code, int)
        code = left.code
    out, err = capsys.readouterr()
    return code, out, err


def hear_interrupts() -> None:
    """For a child: a shell starts background jobs, perhaps these tests, deaf to Ctrl-C, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
