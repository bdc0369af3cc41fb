"""``tightrope label`` and ``tightrope samples`` as a person uses them: through a terminal, killed, resumed, undone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from tests.commands import hear_interrupts
from tightrope.storage.labels import LabelItem, preference_rows, preferences_path, read_votes, votes_path, write_items

COMMAND = str(Path(sys.executable).with_name("tightrope"))
ASKS = "q quit > "


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "answers.jsonl"
    items = [
        LabelItem(f"item{i}", f"prompt {i}", (f"good {i}", f"bad {i}"), sources=("policy-x", "reference-y"))
        for i in range(40)
    ]
    write_items(path, items)
    return path


def start(labels, *options):
    arguments = ["label", str(labels), "--annotator", "ann", *options]
    return pexpect.spawn(
        COMMAND, arguments, encoding="utf-8", timeout=30, dimensions=(50, 200), preexec_fn=hear_interrupts
    )


def prefer_good(terminal):
    """Read the pair that is asked about and answer with the key of the good response."""
    terminal.expect_exact(ASKS)
    shown = terminal.before
    assert "policy-x" not in shown and "reference-y" not in shown
    key = "a" if shown.index("good") < shown.index("bad") else "b"
    terminal.send(key)
    return key


def test_thirty_votes_with_undo_a_kill_and_a_resume(labels):
    terminal = start(labels)
    keys = [prefer_good(terminal) for _ in range(12)]
    terminal.expect_exact(ASKS)
    terminal.send("u")
    terminal.expect_exact("undone")
    keys[-1] = prefer_good(terminal)
    terminal.expect_exact(ASKS)
    terminal.kill(signal.SIGKILL)
    terminal.wait()
    assert len(read_votes(labels)) == 12
    assert len(preferences_path(labels).read_text().splitlines()) == 12  # ready for `rm train`, whatever ended it

    terminal = start(labels)
    terminal.expect_exact("pair 13 of 40")
    terminal.expect_exact(ASKS)
    terminal.send("u")  # a vote of the killed program
    terminal.expect_exact("undone")
    keys.pop()
    terminal.expect_exact("pair 12 of 40")
    keys += [prefer_good(terminal) for _ in range(17)]
    for key, answer in (("t", "saved: tie"), ("s", "saved: skip")):
        terminal.expect_exact(ASKS)
        terminal.send(key)
        terminal.expect_exact(answer)
    terminal.expect_exact(ASKS)
    terminal.send("q")
    terminal.expect_exact("28 preferences written to")
    terminal.expect_exact("left out: 1 tied, 1 skipped")
    terminal.expect_exact(f"tightrope rm train CONFIG.yaml data.train={preferences_path(labels)}")
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0

    assert len(keys) == 28 and set(keys) == {"a", "b"}  # both sides occur
    rows = [json.loads(line) for line in preferences_path(labels).read_text().splitlines()]
    assert len(rows) == 28 and rows == preference_rows(labels)
    assert len({row["prompt"] for row in rows}) == 28
    for row in rows:
        number = row["prompt"].split()[1]
        assert row == {"prompt": f"prompt {number}", "chosen": f"good {number}", "rejected": f"bad {number}"}


def test_ctrl_c_leaves_every_vote_saved_and_the_terminal_as_it_was(labels):
    terminal = start(labels)
    for _ in range(3):
        prefer_good(terminal)
    terminal.expect_exact(ASKS)
    terminal.sendintr()
    terminal.expect_exact("every vote is saved")
    terminal.expect_exact("3 preferences written to")
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 130
    assert len(read_votes(labels)) == 3


def test_arrow_keys_and_unknown_keys_are_no_votes(labels):
    terminal = start(labels)
    terminal.expect_exact(ASKS)
    terminal.send("\x1b[A")  # arrow up, which ends in the letter A
    terminal.send("x")
    terminal.expect_exact("keys: ")
    terminal.send("q")
    terminal.expect_exact("0 preferences written")
    terminal.expect(pexpect.EOF)
    assert read_votes(labels) == []


def run_with(labels, keys, *options):
    arguments = [COMMAND, "label", str(labels), "--annotator", "ann", *options]
    return subprocess.run(arguments, input="\n".join(keys) + "\n", capture_output=True, text=True, timeout=60)


def test_keys_from_a_pipe_limit_and_export(labels, tmp_path):
    done = run_with(
        labels, ["a", "u", "b", "t", "a", "a"], "--limit", "3", "--export", str(tmp_path / "my prefs.jsonl")
    )
    assert done.returncode == 0, done.stderr
    assert "2 preferences" in done.stdout and "data.train='" in done.stdout
    assert [vote.choice for vote in read_votes(labels)] == ["B", "tie", "A"]
    assert len((tmp_path / "my prefs.jsonl").read_text().splitlines()) == 2


def test_hostile_responses_cannot_command_the_terminal(tmp_path):
    path = tmp_path / "hostile.jsonl"
    write_items(path, [LabelItem("1", "p\x1b]0;owned\x07", ("\x1b[2J\u202eabc", "plain"))])
    done = run_with(path, ["a"])
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "\u202e" not in done.stdout and "\\x1b[2J\\u202eabc" in done.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": 1, "prompt": "p", "responses": ["a", "b"]}\n{"id": 2}\n', "labels.jsonl:2: "),
        ("not json\n", "labels.jsonl:1: "),
        ("", "empty"),
        ('{"id": 1, "prompt": "p", "responses": "ab"}\n', "responses"),
    ],
)
def test_a_broken_label_file_is_one_clear_line(tmp_path, content, message):
    (tmp_path / "labels.jsonl").write_text(content)
    done = run_with(tmp_path / "labels.jsonl", ["a"])
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.splitlines()) == 1
    assert not os.path.exists(votes_path(tmp_path / "labels.jsonl"))
