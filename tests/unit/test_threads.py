"""On how many threads does a run compute?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tightrope.assemble.threads import choose_threads, cores_allowed, recorded_threads
from tightrope.cli.main import without_threads
from tightrope.config.errors import TightropeError


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("text", "cores"), [("150000 100000\n", 2), ("10000 100000\n", 1), ("800000 100000\n", 8)])
def test_a_container_counts_what_it_was_given(tmp_path: Path, text: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cores_allowed(tmp_path / "cpu.max") == cores


def test_without_a_quota_every_core_counts(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores_allowed(tmp_path / "cpu.max") == cores_allowed(tmp_path / "missing") == os.cpu_count()


def test_a_resumed_run_has_the_threads_it_had_and_what_is_asked_for_wins() -> None:
    assert choose_threads({}, recorded=3) == 3
    assert choose_threads({"OMP_NUM_THREADS": "3"}, recorded=2) == 3
    torch.set_num_threads(1)
    assert choose_threads({}) == 1


@pytest.mark.parametrize(
    ("text", "found"), [('{"threads": 3}', 3), ('{"threads": "3"}', None), ("[]", None), ("", None)]
)
def test_the_threads_of_a_run_are_read_from_its_folder(tmp_path: Path, text: str, found: int | None) -> None:
    (tmp_path / "env.json").write_text(text)
    assert recorded_threads(tmp_path / "env.json") == found
    assert recorded_threads(tmp_path / "missing") is None


@pytest.mark.parametrize("words", [["env", "--json", "--threads", "1"], ["--threads=1", "env", "--json"]])
def test_the_flag_goes_with_any_command(words: list[str]) -> None:
    command = [sys.executable, "-m", "tightrope", *words]
    two = {**os.environ, "OMP_NUM_THREADS": "2"}
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=two)
    assert json.loads(told.stdout)["torch_threads"] == 1


@pytest.mark.parametrize(
    "words", [["ppo", "--threads"], ["--threads=", "ppo"], ["ppo", "--threads", "0"], ["--threads=1.5"]]
)
def test_a_number_that_is_none_is_told(words: list[str]) -> None:
    with pytest.raises(TightropeError, match="threads"):
        without_threads(words)
