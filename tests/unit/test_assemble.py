"""Are the parts of a run connected as the step and its record expect?"""

from __future__ import annotations

from tests.runs import run_quietly, tiny_config, tiny_files
from tightrope.storage.metrics import MetricStore


def test_every_record_says_how_long_its_phases_took(tmp_path):
    done = run_quietly("ppo", tiny_config("ppo", tiny_files(tmp_path), tmp_path / "run", steps=2))
    store = MetricStore(done.folder / "run.db", read_only=True)
    seconds = {(record.stage, record.step): record.seconds for record in store.rows()}
    store.close()
    assert {name: set(phases) for name, phases in seconds.items()} == {
        ("ppo", 0): {"rollout", "score", "credit", "update"},
        ("ppo", 1): {"rollout", "score", "credit", "update"},
        ("ppo/probe", 0): {"probe"},
        ("ppo/probe", 2): {"probe"},
    }
    assert all(value > 0 for phases in seconds.values() for value in phases.values())
