"""Kills, full disks, broken disks and interrupts aimed at the stores: what was acknowledged is never lost."""

import errno
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import contextmanager

import pytest
import torch

from tightrope.config.errors import TightropeError
from tightrope.records import StepRecord
from tightrope.storage import files
from tightrope.storage.checkpoints import CheckpointMissed, CheckpointStore
from tightrope.storage.metrics import MetricStore

CALLS = ("open", "write", "fsync", "close", "mkdir", "rename", "unlink", "rmdir", "listdir", "scandir", "statvfs")


class Killed(BaseException):
    """The process is gone: nothing it would still do happens."""


def state_of(step, size=64):
    return {"policy": {"weight": torch.full((size,), float(step))}, "progress": {"step": step}}


def step_of(state):
    """The step a state was made at, after checking that its parts belong together."""
    step = state["progress"]["step"]
    assert torch.equal(state["policy"]["weight"], torch.full_like(state["policy"]["weight"], float(step)))
    return step


def quiet_store(folder, keep=2):
    return CheckpointStore(folder, keep=keep, report=lambda message: None)


class FailingCalls:
    """Makes the call number ``at`` to the file system fail in the way of ``mode``; counts all of them."""

    def __init__(self, at=None, mode="none"):
        self.at, self.mode = at, mode
        self.count = 0
        self.is_dead = False

    def wrap(self, name, real):
        def call(*arguments, **options):
            if self.is_dead:
                raise Killed
            number, self.count = self.count, self.count + 1
            if number != self.at:
                return real(*arguments, **options)
            if self.mode == "short":
                return (
                    real(arguments[0], arguments[1][: max(1, len(arguments[1]) // 2)])
                    if name == "write"
                    else real(*arguments, **options)
                )
            if name == "write":
                real(arguments[0], arguments[1][: len(arguments[1]) // 3])
            if name == "close":
                real(*arguments)
            raise self.error()

        return call

    def error(self):
        if self.mode == "kill":
            self.is_dead = True
            return Killed()
        if self.mode == "interrupt":
            return KeyboardInterrupt()
        return OSError(getattr(errno, self.mode), self.mode)

    @contextmanager
    def installed(self, monkeypatch):
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self.wrap(name, getattr(os, name)))
            patch.setattr(files, "open", self.wrap("open", open), raising=False)
            yield


def calls_of_a_save(folder, step, monkeypatch):
    counting = FailingCalls()
    with counting.installed(monkeypatch):
        quiet_store(folder).save(step, state_of(step + 0))
    return counting.count


def prepared_folder(folder):
    """Checkpoints 1 and 2."""
    shutil.rmtree(folder, ignore_errors=True)
    for step in (1, 2):
        quiet_store(folder).save(step, state_of(step))
    return folder


@pytest.mark.parametrize("mode", ["kill", "interrupt", "ENOSPC", "EIO", "EACCES", "short"])
@pytest.mark.parametrize("saved_as", [3, 2])
def test_b66_a_fault_at_every_call_of_a_save_keeps_the_previous_checkpoint(tmp_path, monkeypatch, mode, saved_as):
    total = calls_of_a_save(prepared_folder(tmp_path / "count"), saved_as, monkeypatch)
    assert total > 25
    for at in range(total):
        folder = prepared_folder(tmp_path / "run")
        store = quiet_store(folder)
        failing = FailingCalls(at, mode)
        acknowledged = True
        with failing.installed(monkeypatch):
            try:
                store.save(saved_as, state_of(9 if saved_as == 2 else 3))
            except (Killed, KeyboardInterrupt, CheckpointMissed):
                acknowledged = False
        new, old = ((2, 9), (2, 2)) if saved_as == 2 else ((3, 3), (2, 2))
        fresh = quiet_store(folder)
        step, state = fresh.load_latest()
        assert (step, step_of(state)) in ({new} if acknowledged else {new, old}), f"call {at} of {total}"
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
        assert not list(folder.glob("*invalid*"))
        assert acknowledged or mode != "short"
        fresh.save(4, state_of(4))
        assert fresh.load_latest()[0] == 4


def test_everything_is_fsynced_before_the_name_appears_and_the_name_after(tmp_path, monkeypatch):
    calls = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor):
        number = os.fstat(descriptor).st_ino
        calls.append(("fsync", next(path.name for path in tmp_path.rglob("*") if path.stat().st_ino == number)))
        real_fsync(descriptor)

    def rename(source, target):
        calls.append(("rename", os.path.basename(target)))
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    quiet_store(tmp_path / "checkpoints").save(1, state_of(1))
    assert calls == [
        ("fsync", "policy.safetensors"),
        ("fsync", "state.json"),
        ("fsync", "manifest.json"),
        ("fsync", f".tmp-000001-{os.getpid()}"),
        ("rename", "iter-000001"),
        ("fsync", "checkpoints"),
    ]


@pytest.mark.parametrize("mode", ["ENOSPC", "EIO"])
def test_b65_after_a_failed_save_the_same_store_goes_on(tmp_path, monkeypatch, mode):
    store = quiet_store(prepared_folder(tmp_path / "run"))
    for at in range(4, 20, 3):
        with FailingCalls(at, mode).installed(monkeypatch), pytest.raises(CheckpointMissed):
            store.save(3, state_of(3))
        assert store.valid_steps() == [2, 1]
        store.misses = 0
    store.save(3, state_of(3))
    assert store.valid_steps() == [3, 2]


@contextmanager
def small_disk(folder, megabytes):
    """A file system of its own where the kernel lets us mount one; yields None where it does not."""
    folder.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = shutil.which("mount") is not None and subprocess.run(options, capture_output=True).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def limited_writes(monkeypatch, budget):
    """The disk takes ``budget`` more bytes."""
    real, left = os.write, [budget]

    def write(descriptor, data):
        taken = min(len(data), left[0])
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= taken
        return real(descriptor, data[:taken])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        yield


@pytest.mark.parametrize("budget", [0, 1, 100, 4000, 8000, 8300])
def test_b65_a_full_disk_while_saving_keeps_the_previous_checkpoint(tmp_path, monkeypatch, budget):
    store = quiet_store(tmp_path)
    store.save(1, state_of(1, 2000))
    with limited_writes(monkeypatch, budget), pytest.raises(CheckpointMissed, match="No space left"):
        store.save(2, state_of(2, 2000))
    assert [path.name for path in tmp_path.iterdir()] == ["iter-000001"]
    assert step_of(store.load_latest()[1]) == 1


def save_until_full(folder, sizes):
    """Saves of growing size; returns the last step that was acknowledged and the number of misses."""
    store, last, missed = quiet_store(folder / "checkpoints"), 0, 0
    for step, size in enumerate(sizes, start=1):
        try:
            store.save(step, state_of(step, size))
            last = step
        except CheckpointMissed:
            missed += 1
            store.misses = 0
    return last, missed


def test_b65_a_real_full_disk_keeps_checkpoint_and_database(tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk", 5) as disk:
        folder = disk or tmp_path / "plain"
        folder.mkdir(exist_ok=True)
        if disk is None:  # no mount allowed here: the same run with a budget of free space
            monkeypatch.setattr(files, "free_bytes", lambda path: 5_000_000 - sum(map(size_of, folder.rglob("*"))))
        metrics = MetricStore(folder / "run.db")
        metrics.write(StepRecord("ppo", 0, 0, {"kl_seq": 1.0}))
        last, missed = save_until_full(folder, [50_000, 100_000, 200_000, 400_000, 800_000, 1_000_000])
        assert missed >= 2 and last >= 2
        step, state = quiet_store(folder / "checkpoints").load_latest()
        assert step == step_of(state) == last
        if disk is not None:
            fill_to_the_last_byte(folder / "filler")
            refused = write_until_refused(metrics)
            assert "full" in str(refused)
            (folder / "filler").unlink()
            metrics.write(StepRecord("ppo", 10_000, 0, {"kl_seq": 1.0}))
        rows = metrics.rows()
        metrics.close()
        assert rows[0].metrics == {"kl_seq": 1.0}
        database = sqlite3.connect(folder / "run.db")
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()


def size_of(path):
    return path.stat().st_size if path.is_file() else 0


def fill_to_the_last_byte(path):
    with open(path, "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                continue
        except OSError as error:
            assert error.errno == errno.ENOSPC


def write_until_refused(metrics):
    for step in range(1, 10_000):
        try:
            metrics.write(StepRecord("ppo", step, 0, {"kl_seq": 1.0}, notes={"text": "x" * 500}))
        except TightropeError as error:
            return error
    raise AssertionError("the disk never got full")


def damage(content, draw):
    """One flipped bit, a cut, or something added."""
    kind = draw.choice(["flip", "flip", "flip", "cut", "add"])
    if kind == "cut":
        return content[: draw.randrange(len(content))]
    if kind == "add":
        return content + bytes([draw.randrange(256)])
    position, bit = draw.randrange(len(content)), draw.randrange(8)
    return content[:position] + bytes([content[position] ^ (1 << bit)]) + content[position + 1 :]


def check_damage_is_detected(folder, trials, seed):
    reports = []
    store = CheckpointStore(folder, report=reports.append)
    store.save(1, state_of(1))
    place = store.save(2, state_of(2))
    names = sorted(path.name for path in place.iterdir())
    assert names == ["manifest.json", "policy.safetensors", "state.json"]
    draw = random.Random(seed)
    for trial in range(trials):
        name = draw.choice(names)
        good = (place / name).read_bytes()
        (place / name).write_bytes(damage(good, draw))
        step, state = store.load_latest()
        assert step == step_of(state) == 1, f"trial {trial}: damage in {name} was not seen"
        assert len(reports) == trial + 1 and name in reports[-1] and "iter-000002" in reports[-1]
        (kept,) = folder.glob("iter-000002.invalid-*")
        kept.rename(place)
        (place / name).write_bytes(good)
        assert store.valid_steps() == [2, 1]


def test_200_flipped_bits_and_cuts_are_all_detected(tmp_path):
    check_damage_is_detected(tmp_path, trials=200, seed=1)


@pytest.mark.slow
def test_1000_flipped_bits_and_cuts_are_all_detected(tmp_path):
    check_damage_is_detected(tmp_path, trials=1000, seed=2)


def save_forever(folder, acknowledged):
    store, step = quiet_store(folder), 0
    while True:
        step += 1
        store.save(step, state_of(step, 4096))
        os.write(acknowledged, step.to_bytes(4, "little"))


def run_and_kill(folder, seconds):
    """The last step a child acknowledged before it was killed."""
    readable, writable = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=save_forever, args=(folder, writable))
    child.start()
    os.close(writable)
    acknowledged = os.read(readable, 4)
    time.sleep(seconds)
    os.kill(child.pid, signal.SIGKILL)
    while data := os.read(readable, 4096):
        acknowledged += data
    child.join()
    os.close(readable)
    return int.from_bytes(acknowledged[len(acknowledged) // 4 * 4 - 4 :][:4], "little")


def check_kills(folder, trials, seed):
    draw = random.Random(seed)
    for trial in range(trials):
        run = folder / str(trial)
        acknowledged = run_and_kill(run, draw.uniform(0.0, 0.03))
        reports = []
        step, state = CheckpointStore(run, report=reports.append).load_latest()
        assert step == step_of(state) >= acknowledged, f"trial {trial}"
        assert reports == [] and all(path.name.startswith("iter-") for path in run.iterdir())


def test_kill_9_at_30_instants_never_loses_an_acknowledged_checkpoint(tmp_path):
    check_kills(tmp_path, trials=30, seed=3)


@pytest.mark.slow
def test_kill_9_at_300_instants_never_loses_an_acknowledged_checkpoint(tmp_path):
    check_kills(tmp_path, trials=300, seed=4)
