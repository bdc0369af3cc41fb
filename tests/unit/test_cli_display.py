"""What a person sees of a run: lines in a log, tiles in a panel."""

import io

import pytest
from rich.console import Console

from tightrope.cli.display import Lines, LivePanel
from tightrope.records import StepRecord


def record(step, stage="sft", notes=None, **metrics):
    return StepRecord(stage, step, 0, metrics or {"nll_tok": 4.0}, notes=notes or {}, seconds={"update": 0.1})


def shown_steps(capsys, total, notes_at=()):
    lines = Lines(total)
    for step in range(total):
        lines.write(record(step, notes={"nonfinite": "skipped"} if step in notes_at else None))
    return [int(line.split()[1].split("/")[0]) for line in capsys.readouterr().out.splitlines()]


def test_a_short_run_has_a_line_for_every_step(capsys):
    assert shown_steps(capsys, 100) == list(range(100))


def test_a_long_run_has_about_fifty_lines_and_each_note_and_the_end(capsys):
    assert shown_steps(capsys, 1000, notes_at=(333,)) == sorted([*range(0, 1000, 20), 333, 999])


def test_held_out_numbers_are_always_shown(capsys):
    Lines(1000).write(record(333, "sft/held_out"))
    assert capsys.readouterr().out == "sft/held_out 333/1000  nll_tok 4.000  0.1s\n"


@pytest.mark.parametrize("width", [80, 120])
def test_every_label_of_the_panel_stands_over_its_value_beside_the_held_out_one(width):
    paper = io.StringIO()
    panel = LivePanel("rm", 100, Console(file=paper, width=width, force_terminal=True, color_system=None))
    panel.write(record(0, "rm/held_out", accuracy=0.5))
    panel.write(record(0, "rm", loss=0.7, accuracy=0.75))
    panel.close()
    lines = paper.getvalue().splitlines()
    labels = max(i for i, line in enumerate(lines) if "held-out accuracy" in line)
    assert lines[labels].strip("│ ").split("  ")[0] == "loss"
    assert lines[labels + 1].strip("│ ").split() == ["0.7000", "75.0%", "50.0%"]
    assert all(len(line) <= width for line in lines if line.startswith("│"))
