"""Does a tracker that raises, hangs or is offline change nothing in the run? And do trackers get what the run says?"""

from __future__ import annotations

import json
import threading
import time

import pytest

from tests.runs import run_quietly, tiny_config, tiny_files
from tightrope.assemble import fanout
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.stage import resume
from tightrope.config.errors import TightropeError
from tightrope.records import StepRecord
from tightrope.storage.journal import read_events
from tightrope.storage.metrics import MetricStore
from tightrope.trackers import guarded
from tightrope.trackers.guarded import GuardedTracker, Item
from tightrope.trackers.memory import TrackerMemory
from tightrope.trackers.names import TRL_NAMES, tracked_metrics

FAULTS = {
    "raises_at_start": "RuntimeError: no login",
    "hangs_at_start": "did not end in time",
    "RaisesAtLog": "ConnectionError: the service is offline",
    "Leaves": "SystemExit: 3",
    "Hangs": "did not end in time",
    "HangsAtClose": "did not end in time",
    "RaisesAtClose": "OSError: cannot upload",
    "missing": "there is no 'missing'",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tiny_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def untracked(files, tmp_path_factory):
    return records(run_quietly("ppo", tiny_config("ppo", files, tmp_path_factory.mktemp("plain") / "run")).folder)


def records(folder):
    store = MetricStore(folder / "run.db", read_only=True)
    rows = store.rows()
    store.close()
    return [row.reproducible() for row in rows]


def with_trackers(config, *trackers, **options):
    chosen = config.tracker_options.model_copy(update=options)
    return config.model_copy(update={"trackers": trackers, "tracker_options": chosen})


def told(folder, name="tests.fake_trackers_Tracker"):
    path = folder / "trackers" / name / "told.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_tracker_changes_nothing_in_the_run(fault, files, untracked, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fanout, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(guarded, "OPEN_SECONDS", 0.2)
    config = with_trackers(tiny_config("ppo", files, tmp_path / "run"), f"tests.fake_trackers:{fault}")
    done = run_quietly("ppo", config)
    assert done.outcome == "finished"
    assert records(done.folder) == untracked
    events = [event for event in read_events(done.folder / "events.jsonl") if event.kind == "tracker_trouble"]
    assert len(events) == 1 and FAULTS[fault] in events[0].reason and fault in events[0].reason
    assert capsys.readouterr().err.count("warning: tracker") == 1


def test_trackers_that_hang_are_waited_for_together_and_not_for_long(tmp_path, monkeypatch):
    """Several of them cost the end of a run one bounded wait."""
    waits = []
    monkeypatch.setattr(GuardedTracker, "wait", lambda self, seconds: waits.append(seconds))
    trackers = [
        GuardedTracker(str(n), threading.Event().wait, TrackerMemory(tmp_path / str(n)), True) for n in range(3)
    ]
    journal = type("Quiet", (), {"append": lambda self, *event: None})()
    watched = fanout.FanOut(Nobody(), Nobody(), fanout.Watchers(Nobody(), lambda step: trackers), journal, None)
    watched.begin(0)
    monkeypatch.setattr(time, "monotonic", iter([0.0, 0.0, 4.0, 7.0]).__next__)
    watched.close()
    assert waits == [5.0, 1.0, 0.0]


def test_a_short_run_waits_for_a_tracker_that_starts_slowly_and_one_that_hangs_ends_when_it_comes_back(tmp_path):
    free, seen = threading.Event(), []

    class Slow:
        def log(self, step, metrics):
            seen.append(step)
            free.wait()

        def close(self):
            seen.append("closed")

    def open_slowly():
        time.sleep(0.3)
        return Slow()

    tracker = GuardedTracker("slow", open_slowly, TrackerMemory(tmp_path / "slow.json"), True)
    for step in range(3):
        tracker.send(Item("train", step, {}))
    tracker.ask_to_end()
    tracker.wait_open()
    tracker.wait(0.2)
    assert seen == [0] and tracker.troubles() == ["did not end in time; 2 rows were still waiting"]
    free.set()
    tracker.wait(60)
    assert seen == [0, "closed"]


def test_a_full_queue_drops_the_oldest_and_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr(guarded, "QUEUE_ITEMS", 3)
    opened, seen = threading.Event(), []

    class Slow:
        def log(self, step, metrics):
            seen.append(step)

        def close(self):
            seen.append("closed")

    def open_slowly():
        opened.wait()
        return Slow()

    tracker = GuardedTracker("slow", open_slowly, TrackerMemory(tmp_path / "slow.json"), True)
    for step in range(10):
        tracker.send(Item("train", step, {}))
    first = tracker.troubles()
    opened.set()
    tracker.ask_to_end()
    tracker.wait(60)
    assert seen == [7, 8, 9, "closed"]
    assert len(first) == 1 and "dropped" in first[0]
    assert tracker.troubles() == ["7 rows were dropped"]


def test_a_tracker_is_told_each_step_each_probe_and_samples(files, untracked, tmp_path):
    config = with_trackers(tiny_config("ppo", files, tmp_path / "run"), "tests.fake_trackers:Tracker", trl_names=True)
    done = run_quietly("ppo", config)
    lines = told(done.folder)
    train = [line for line in lines if "metrics" in line and "kl_seq" in line["metrics"]]
    probes = [line for line in lines if "metrics" in line and "probe/reward" in line["metrics"]]
    assert [line["step"] for line in train] == [0, 1, 2, 3]
    assert [line["step"] for line in probes] == [0, 2, 4]
    stored = [StepRecord(**json.loads(text)) for text in untracked]
    last = next(row for row in reversed(stored) if row.stage == "ppo")
    assert dict(last.metrics).items() <= train[-1]["metrics"].items()
    assert train[-1]["metrics"]["objective/kl"] == last.metrics["kl_seq"]
    assert set(TRL_NAMES) - {"val/num_eos_tokens"} <= set(train[-1]["metrics"])
    tables = [line for line in lines if "table" in line]
    assert {line["table"] for line in tables} == {"samples/train", "samples/probe"}
    assert all(row["response"] is not None and isinstance(row["reward"], float) for row in tables[0]["rows"])
    assert lines[-1] == {"closed": True}


def test_steps_that_are_repeated_after_a_kill_are_told_once(files, tmp_path):
    """The last checkpoint is gone, as if the run had been killed before it: steps 2 and 3 run again."""
    config = with_trackers(tiny_config("ppo", files, tmp_path / "run"), "tests.fake_trackers:Tracker")
    folder = run_quietly("ppo", config).folder
    newest = max(folder.glob("checkpoints/iter-*"))
    newest.rename(folder / "gone")
    done = resume(folder, lambda stage, config: Nobody())
    assert done.outcome == "finished"
    steps = [line["step"] for line in told(folder) if "metrics" in line and "kl_seq" in line["metrics"]]
    assert steps == [0, 1, 2, 3]
    memory = json.loads((folder / "trackers" / "tests.fake_trackers_Tracker.json").read_text())
    assert memory["id"] == "first" and memory["last"]["train"] == 3


def test_a_slip_in_a_tracker_s_name_is_told_before_anything_is_loaded(files, tmp_path):
    config = with_trackers(tiny_config("ppo", files, tmp_path / "run"), "tensorbord")
    with pytest.raises(TightropeError, match=r"no tracker 'tensorbord'.*tensorboard"):
        run_quietly("ppo", config)
    assert not (tmp_path / "run").exists()


def test_a_probe_and_a_step_never_share_a_name():
    step = tracked_metrics(StepRecord("ppo", 1, 0, {"reward": 1.0}), learning_rate=1.0, trl_names=False)
    probe = tracked_metrics(StepRecord("ppo/probe", 1, 0, {"reward": 2.0}), learning_rate=1.0, trl_names=False)
    assert step == {"reward": 1.0} and probe == {"probe/reward": 2.0}


def test_no_secret_of_the_environment_is_written(files, tmp_path, monkeypatch):
    canary = "c4nary" * 8
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, canary)
    config = with_trackers(
        tiny_config("ppo", files, tmp_path / "run", steps=1), "tests.fake_trackers:Tracker", "tensorboard", "wandb"
    )
    folder = run_quietly("ppo", config).folder
    files_written = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files_written) > 5
    assert not [path for path in files_written if canary.encode() in path.read_bytes()]
