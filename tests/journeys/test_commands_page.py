"""Does docs/commands.md still work? Its commands, typed in order, on tiny runs."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path

from tests.commands import call
from tests.runs import run_quietly, tiny_config, tiny_files

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
COMMANDS = re.findall(r"^\$ tightrope (.*)$", PAGE, re.MULTILINE)


def test_every_command_of_the_page_works(tmp_path, monkeypatch, capsys):
    demo = tmp_path / "runs/demo"
    (demo / "data").mkdir(parents=True)
    files = tiny_files(demo)
    (demo / "prompts.jsonl").rename(demo / "data/held_out.jsonl")
    for stage, name in (("sft", "sft"), ("rm", "rm"), ("dpo", "ppo")):  # any policy will do
        run_quietly(stage, tiny_config(stage, files, demo / name, steps=1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n"))
    said = []
    for command in COMMANDS:
        code, out, err = call(capsys, *shlex.split(command))
        assert code == 0, err
        said.append(out)
    assert len(said) == 3
    assert "win rate" in said[0] and said[2] == "step 1 of 1: exported\n"
