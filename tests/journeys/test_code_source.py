"""Does a run train on what code does, say in its manifest how it was kept in, and start nowhere without a sandbox?"""

from __future__ import annotations

import json

import pytest

from tests.journeys.test_reward_sources import config_of
from tests.runs import run_quietly, tiny_files
from tightrope.assemble.reward_sources import code_reward_of
from tightrope.config.code_reward import CodeSection
from tightrope.config.errors import TightropeError
from tightrope.scoring.code.errors import SandboxUnavailable
from tightrope.storage.checkpoints import CheckpointStore

COMPLETED = "def f(x):\n    return x #"
"""Right whatever words a policy puts behind it."""


def rows_with_cases(path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for row in lines:
        row |= {"entry_point": "f", "prefix": COMPLETED, "cases": [{"args": [1], "expected": 1}]}
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))


@pytest.fixture
def files(tmp_path):
    found = tiny_files(tmp_path)
    rows_with_cases(found.prompts)
    return found


def test_a_run_with_a_sandbox_and_its_manifest(files, tmp_path):
    section = CodeSection(seconds=30.0)
    try:
        rung = code_reward_of(section).sandbox.facts.rung
    except SandboxUnavailable as error:
        pytest.skip(f"no rung holds here: {error}")
    config = config_of(files, tmp_path / "run", {"name": "tests", "code": {"seconds": 30.0}})
    finished = run_quietly("ppo", config)
    assert finished.latest["ppo"].metrics["reward/source/tests"] > 0
    store = CheckpointStore(finished.folder / "checkpoints", 9, {})
    step, _ = store.load_latest()
    facts = store.manifest(step).facts["sandbox"]["tests"]
    assert facts["rung"] == rung and "doors" in facts["probes"] and facts["seconds"] > 0


def test_without_a_sandbox_the_run_does_not_start(files, tmp_path, monkeypatch):
    monkeypatch.setattr("tightrope.scoring.code.rungs.NUMBERS", {})
    config = config_of(files, tmp_path / "none", {"name": "tests", "code": {"seconds": 31.0}})
    with pytest.raises(TightropeError, match="cannot be run safely on this machine"):
        run_quietly("ppo", config)
    assert not config.output.exists()


def test_a_source_of_code_has_no_deadline(files, tmp_path):
    with pytest.raises(ValueError, match=r"each case has its own code\.seconds"):
        config_of(files, tmp_path / "none", {"name": "tests", "code": {}, "deadline": 3.0})
