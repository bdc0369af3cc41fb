"""Metrics, journal, run folder: each step once, each event once, one writer."""

import json
import multiprocessing
import os
import signal
import sqlite3

import pytest

from tightrope.config.errors import TightropeError
from tightrope.records import StepRecord
from tightrope.storage.database import Database
from tightrope.storage.journal import Journal, read_events
from tightrope.storage.metrics import MetricStore
from tightrope.storage.run_folder import RunFolder, environment


def record(step, stage="ppo", **metrics):
    return StepRecord(stage, step, 0, metrics or {"kl_seq": float(step)})


@pytest.fixture
def metrics(tmp_path):
    store = MetricStore(tmp_path / "run.db")
    yield store
    store.close()


@pytest.fixture
def journal(tmp_path):
    log = Journal(tmp_path / "events.jsonl", clock=lambda: 5.0)
    yield log
    log.close()


def test_rows_come_back_equal_and_in_order(metrics):
    written = [record(0, value=0.1), record(0, "ppo/probe", held_out=-0.0), record(1, value=float("inf"))]
    for entry in written:
        metrics.write(entry)
    assert metrics.rows() == written
    assert metrics.rows("ppo") == [written[0], written[2]]
    assert metrics.rows("ppo", after=0) == [written[2]]
    assert metrics.latest() == written[2]
    assert metrics.latest("ppo/probe") == written[1]


def test_the_newest_record_of_each_stage(metrics):
    for step, stage in ((0, "ppo"), (0, "ppo/probe"), (1, "ppo")):
        metrics.write(record(step, stage))
    assert metrics.latest_of_each() == {"ppo": record(1), "ppo/probe": record(0, "ppo/probe")}


def test_empty_store_has_no_latest_row(metrics):
    assert metrics.latest() is None and metrics.rows() == []


def test_b79_a_step_is_never_overwritten_nor_out_of_order(metrics):
    metrics.write(record(4))
    for step in (4, 3):
        with pytest.raises(TightropeError, match="cannot be logged after step 4"):
            metrics.write(record(step, other=1.0))
    assert metrics.rows() == [record(4)]


def test_b79_each_step_is_logged_once_after_a_resume(metrics):
    for step in range(6):
        metrics.write(record(step, before=1.0))
    assert metrics.cut_after(3) == 2
    for step in (4, 5, 6):
        metrics.write(record(step, after=1.0))
    assert [(row.step, "before" in row.metrics) for row in metrics.rows()] == [
        (0, True), (1, True), (2, True), (3, True), (4, False), (5, False), (6, False),
    ]  # fmt: skip


def test_summaries_are_replaced_by_key(metrics):
    metrics.write_summary("selftest", {"ratio": 1.0})
    metrics.write_summary("selftest", {"ratio": 0.5, "names": ["a"]})
    assert metrics.summaries() == {"selftest": {"ratio": 0.5, "names": ["a"]}}


def test_a_reader_sees_rows_while_the_run_writes(tmp_path, metrics):
    metrics.write(record(0))
    reader = MetricStore(tmp_path / "run.db", read_only=True)
    metrics.write(record(1))
    assert [row.step for row in reader.rows()] == [0, 1]
    with pytest.raises(TightropeError, match="readonly"):
        reader.write(record(2))
    reader.close()


def test_another_schema_is_refused(tmp_path):
    Database(tmp_path / "run.db", "metrics", 99, "").close()
    with pytest.raises(TightropeError, match="another version"):
        MetricStore(tmp_path / "run.db")


def test_a_file_that_is_no_database_is_one_clear_error(tmp_path):
    (tmp_path / "run.db").write_bytes(b"not a database" * 100)
    with pytest.raises(TightropeError, match="run database"):
        MetricStore(tmp_path / "run.db")


def write_until_killed(path, acknowledged):
    store = MetricStore(path)
    for step in range(100_000):
        store.write(record(step))
        os.write(acknowledged, b".")


def test_kill_9_loses_no_acknowledged_row(tmp_path):
    context = multiprocessing.get_context("fork")
    for trial in range(3):
        path = tmp_path / f"{trial}.db"
        readable, writable = os.pipe()
        child = context.Process(target=write_until_killed, args=(path, writable))
        child.start()
        os.close(writable)
        count = len(os.read(readable, 1))
        os.set_blocking(readable, True)
        while count < 5 + 7 * trial:
            count += len(os.read(readable, 1))
        os.kill(child.pid, signal.SIGKILL)
        while data := os.read(readable, 4096):
            count += len(data)
        child.join()
        os.close(readable)
        store = MetricStore(path)
        steps = [row.step for row in store.rows()]
        store.close()
        assert steps == list(range(len(steps))) and len(steps) >= count
        assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_events_come_back_equal(journal):
    journal.append(3, "raise_beta", "KL over\nlimit", "guardian", 2.0)
    journal.append(3, "stop", "asked", "person")
    first, second = journal.events()
    assert (first.step, first.kind, first.reason, first.value, first.source, first.time) == (
        3, "raise_beta", "KL over\nlimit", 2.0, "guardian", 5.0,
    )  # fmt: skip
    assert second.value is None
    assert len(journal.path.read_bytes().splitlines()) == 2


def test_an_unknown_source_is_refused(journal):
    with pytest.raises(ValueError, match="source"):
        journal.append(0, "stop", "", "nobody")


@pytest.mark.parametrize("cut", range(1, 40, 6))
def test_a_torn_last_line_is_left_out_and_repaired(journal, cut):
    journal.append(1, "a", "", "run")
    journal.append(2, "b", "", "run")
    content = journal.path.read_bytes()
    journal.path.write_bytes(content[:-cut])
    complete = 2 if cut == 1 else 1  # without its newline the last line is still complete
    assert [event.step for event in read_events(journal.path)] == [1, 2][:complete]
    reopened = Journal(journal.path)
    reopened.append(3, "c", "", "run")
    reopened.close()
    assert [event.step for event in read_events(journal.path)] == [*[1, 2][:complete], 3]
    assert all(json.loads(line) for line in journal.path.read_bytes().splitlines())


def test_a_broken_line_in_the_middle_is_named(journal):
    journal.append(1, "a", "", "run")
    with open(journal.path, "ab") as file:
        file.write(b"garbage\n")
    journal.append(2, "b", "", "run")
    with pytest.raises(TightropeError, match=r"events\.jsonl:2"):
        journal.events()


def test_a_resume_marks_later_events_as_undone_and_keeps_them_on_disk(journal):
    journal.append(4, "raise_beta", "", "guardian", 2.0)
    journal.append(7, "raise_beta", "", "guardian", 2.0)
    journal.cut_after(4)
    journal.append(7, "stop", "", "guardian")
    assert [(event.step, event.kind) for event in journal.events()] == [(4, "raise_beta"), (4, "resumed"), (7, "stop")]
    assert len(read_events(journal.path, undone=True)) == 4


def test_replay_tells_only_what_a_person_did_and_a_resume_undid(journal):
    journal.append(2, "set", "", "person", 0.1)
    journal.append(6, "set", "", "person", 0.2)
    journal.append(7, "raise_beta", "", "guardian", 2.0)
    assert journal.replay() == []
    journal.cut_after(4)
    assert [(event.step, event.value) for event in journal.replay()] == [(6, 0.2)]
    journal.cut_after(4)  # killed again before step 6
    assert [(event.step, event.value) for event in journal.replay()] == [(6, 0.2)]
    journal.append(6, "set", "", "person", 0.2)
    assert journal.replay() == []


def test_a_failed_append_leaves_no_half_line(journal, monkeypatch):
    journal.append(1, "a", "", "run")
    real_write = os.write

    def full_after_ten_bytes(descriptor, data):
        monkeypatch.setattr(os, "write", disk_full)
        return real_write(descriptor, data[:10])

    def disk_full(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full_after_ten_bytes)
    with pytest.raises(TightropeError, match="No space"):
        journal.append(2, "b", "", "run")
    monkeypatch.undo()
    journal.append(3, "c", "", "run")
    assert [event.step for event in journal.events()] == [1, 3]


def test_a_folder_with_a_run_is_refused_with_the_resume_command(tmp_path):
    with RunFolder.create(tmp_path / "run") as folder:
        folder.resolved.write_text("x")
    with pytest.raises(TightropeError, match=r"tightrope resume .*run"):
        RunFolder.create(tmp_path / "run")
    RunFolder.resume(tmp_path / "run").close()


def test_a_folder_with_other_files_may_hold_a_new_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with RunFolder.create(tmp_path) as folder:
        assert folder.checkpoints.is_dir()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_without_a_run_cannot_be_resumed_or_read(tmp_path):
    for opened in (RunFolder.resume, RunFolder.read):
        with pytest.raises(TightropeError, match="no run folder"):
            opened(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_an_output_that_is_a_file_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TightropeError, match="cannot be made"):
        RunFolder.create(tmp_path / "file")


def hold_the_lock(path, ready):
    RunFolder.resume(path)
    os.write(ready, b".")
    signal.pause()


def test_a_second_process_is_told_the_first_ones_pid_and_a_kill_frees_the_lock(tmp_path):
    with RunFolder.create(tmp_path) as folder:
        folder.resolved.write_text("x")
    readable, writable = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=hold_the_lock, args=(tmp_path, writable))
    child.start()
    os.read(readable, 1)
    with pytest.raises(TightropeError, match=f"process {child.pid}"):
        RunFolder.resume(tmp_path)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    RunFolder.resume(tmp_path).close()


def test_the_environment_file_holds_versions_and_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "canary-value")
    with RunFolder.create(tmp_path) as folder:
        folder.write_environment({"device": "cpu"})
        text = folder.environment.read_text()
    assert json.loads(text) == {**environment(), "device": "cpu"}
    assert "torch" in json.loads(text)["packages"] and "canary-value" not in text
