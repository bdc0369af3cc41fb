"""``rm serve`` as people run it: a process that answers, keeps its token to itself, and stops at Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.commands import call, hear_interrupts
from tests.runs import run_quietly, tiny_config, tiny_files
from tightrope.models.load import load_tokenizer
from tightrope.models.roles import load_reward
from tightrope.scoring.http_calls import Breaker, Endpoint, Patience
from tightrope.scoring.remote import HttpReward
from tightrope.scoring.reward_model import RewardModel
from tightrope.types import Prompt, Sample

BUDGET = 64
SAMPLES = [
    Sample(Prompt(i, (), text, {"prompt": text}), answer, "stop", 3)
    for i, (text, answer) in enumerate([("the cat", "sat on the mat"), ("a film", ""), ("who ?", "the actor")])
]


@pytest.fixture(scope="module")
def reward_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reward")
    run_quietly("rm", tiny_config("rm", tiny_files(folder), folder / "rm", steps=2))
    return folder / "rm"


@contextmanager
def served(*words: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the address that it printed."""
    command = [sys.executable, "-m", "tightrope", "rm", "serve", *map(str, words), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, preexec_fn=hear_interrupts)
    try:
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().strip()
        assert url, process.stderr.read()
        yield process, url
    finally:
        process.kill()
        process.communicate()


def test_it_gives_the_models_own_numbers_and_stops_at_ctrl_c(reward_run, tmp_path):
    token_file = tmp_path / "token"
    with served(reward_run, "--token-file", token_file, "--token-budget", str(BUDGET)) as (process, url):
        token = token_file.read_text().strip()
        client = HttpReward(Endpoint(url, token), Patience(1), Breaker(9, 1.0))
        folder = reward_run / "export"
        here = RewardModel(load_reward(folder), load_tokenizer(folder), BUDGET).score(SAMPLES)
        assert [value.hex() for value in client.score(SAMPLES)] == [value.hex() for value in here]
        health = client.health()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out == ""
    assert err.endswith("stopped after 1 requests, 3 samples\n") and "Traceback" not in err
    assert f"serving rm, fingerprint {health.fingerprint}; stop with Ctrl-C" in err
    assert re.fullmatch(r"[0-9a-f]{16}", health.fingerprint or "")
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    assert len(token) >= 32 and token not in err and "the cat" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "70000"], "--port: not a number that can be; found 70000"),
        (["--token-budget", "0"], "--token-budget: not a number that can be; found 0"),
        (["--host", "192.0.2.1"], "192.0.2.1:8750: cannot listen here: "),
        (["--token-file", "/proc/none/token"], "/proc/none/token: No such file or directory"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(reward_run, words, message, capsys):
    code, out, err = call(capsys, "rm", "serve", reward_run, *words)
    assert (code, out) == (2, "") and err.startswith(f"error: {message}") and err.count("\n") == 1


def test_a_folder_that_is_no_reward_model_is_refused(tmp_path, capsys):
    files = tiny_files(tmp_path)
    code, _, err = call(capsys, "rm", "serve", files.model)
    assert code == 2 and "is not a reward model (score.weight is not in its weights)" in err


def test_a_token_from_the_environment_must_be_one(reward_run, monkeypatch, capsys):
    monkeypatch.setenv("TIGHTROPE_REWARD_TOKEN", "two words")
    code, _, err = call(capsys, "rm", "serve", reward_run)
    assert code == 2 and err.startswith("error: TIGHTROPE_REWARD_TOKEN: not a token") and "two words" not in err


def test_a_token_is_not_written_through_a_link(reward_run, tmp_path, capsys):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    code, _, err = call(capsys, "rm", "serve", reward_run, "--port", "0", "--token-file", tmp_path / "link")
    assert code == 2 and not os.path.exists(tmp_path / "target") and err.count("\n") == 1
