"""``tightrope samples``: the newest step by default, beside the reference, on a terminal and in a pipe."""

import subprocess
import sys
from pathlib import Path

import pexpect
import pytest
import torch

from tightrope.storage.run_folder import RunFolder
from tightrope.storage.samples import SampleStore
from tightrope.types import Prompt, Rollout, Scores, TokenRows

COMMAND = str(Path(sys.executable).with_name("tightrope"))


def keep(store, step, split, texts, rewards):
    n = len(texts)
    prompts = tuple(Prompt(i, (1,), f"question {i}", {}) for i in range(n))
    rollout = Rollout(
        TokenRows.of([([1], [2, 3])] * n),
        torch.zeros(2 * n),
        ("stop",) * n,
        tuple(texts),
        prompts,
        torch.arange(n),
        torch.zeros(n, dtype=torch.int64),
        0,
        1.0,
    )
    store.keep(step, 0, rollout, Scores(torch.tensor(rewards), {}, torch.full((2 * n,), -0.25)), split)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Training samples of steps 0 to 3, probes at steps 0 and 2."""
    path = tmp_path_factory.mktemp("samples") / "run"
    with RunFolder.create(path) as folder:
        store = SampleStore(folder.database)
        for step in range(4):
            keep(store, step, "train", [f"train{step} {i}" for i in range(6)], [0.0, 5.0, 1.0, 4.0, 2.0, 3.0])
        keep(store, 0, "probe", ["start\x1b[2J one", "start two"], [0.0, 0.0])
        keep(store, 2, "probe", ["[bold]later[/bold] one", "later two"], [1.0, 2.0])
        store.close()
    return path


def samples(*arguments):
    done = subprocess.run([COMMAND, "samples", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_the_newest_step_is_shown_by_default(run):
    code, out, error = samples(run)
    assert code == 0, error
    assert "step 3, train prompts" in out
    assert out.count("policy ") == 5 and "train3" in out and "train2" not in out


def test_a_probe_shows_the_response_from_before_training(run):
    code, out, _ = samples(run, "--step", "2", "--split", "probe")
    assert code == 0
    assert "reference  start\\x1b[2J one" in out and "policy     [bold]later[/bold] one" in out
    assert "\x1b" not in out and "KL 0.50 nats" in out and "2 tokens" in out


def test_sorted_by_reward_the_best_come_first(run):
    _, out, _ = samples(run, "--step", "1", "--split", "train", "--sort", "reward", "--count", "3")
    shown = [line.split()[1] for line in out.splitlines() if line.startswith("reward")]
    assert shown == ["+5.000", "+4.000", "+3.000"]


def test_on_a_terminal_it_is_a_table_without_markup(run):
    arguments = ["samples", str(run), "--step", "2", "--split", "probe"]
    terminal = pexpect.spawn(COMMAND, arguments, encoding="utf-8", timeout=30, dimensions=(50, 160))
    terminal.expect(pexpect.EOF)
    assert "[bold]later[/bold] one" in terminal.before and "─" in terminal.before
    assert "\x1b[2J" not in terminal.before


def test_a_step_without_samples_names_the_nearest_ones(run):
    code, _, error = samples(run, "--step", "9", "--split", "probe")
    assert code == 2 and "no samples of step 9" in error and "0, 2" in error


def test_a_folder_that_is_no_run_is_one_clear_line(tmp_path):
    code, _, error = samples(tmp_path)
    assert code == 2 and error.startswith("error: ") and "no run folder" in error
    assert len(error.splitlines()) == 1
