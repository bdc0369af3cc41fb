"""What do the real libraries hold after a run that was killed and resumed? Read back with their own readers.

TensorBoard comes with ``dev``; the others are skipped where they are missing: ``pip install -e '.[trackers]'``.
Offline: nothing here may ask the network. After the kill the last checkpoint is missing, so steps 2 and 3 run twice.
"""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.journeys.test_trackers import with_trackers
from tests.runs import run_quietly, tiny_config, tiny_files
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.stage import resume
from tightrope.storage.journal import read_events

TRAIN, PROBES = [0, 1, 2, 3], [0, 2, 4]
Steps = dict[str, list[int]]
"""Of a metric, every step that was written, as often as it was."""


def tensorboard(folder: Path) -> Steps:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    assert any(name.startswith("samples/train") for name in read.Tags()["tensors"])
    return {name: [event.step for event in read.Scalars(name)] for name in read.Tags()["scalars"]}


def wandb(folder: Path) -> Steps:
    """Two offline files, one for each part, of one run: ``wandb sync`` sends them as one."""
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2 and len({file.name for file in files}) == 1
    found: Steps = {}
    for file in files:
        for data in records_of(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            values = {"/".join([item.key, *item.nested_key]).lstrip("/"): item for item in record.history.item}
            for name in values:
                found.setdefault(name, []).append(record.history.step.num)
    assert any("samples/train" in name for name in found)
    return found


def records_of(data: bytes) -> Iterator[bytes]:
    """A LevelDB log after a header of 7 bytes: blocks of 32 KiB, records of (checksum, length, type), cut at blocks."""
    block, header, start, whole = 32768, 7, 7, b""
    while start + header <= len(data):
        left = block - start % block
        if left < header:
            start += left
            continue
        _, length, kind = struct.unpack("<IHB", data[start : start + header])
        whole += data[start + header : start + header + length]
        start += header + length
        if kind in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""


def trackio(folder: Path) -> Steps:
    (file,) = folder.glob("*.db")
    database = sqlite3.connect(file)
    rows = database.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
    assert database.execute("SELECT count(DISTINCT run_id) FROM metrics").fetchone() == (1,)
    assert database.execute("SELECT count(*) FROM system_metrics").fetchone() == (0,)
    database.close()
    found: Steps = {}
    for step, metrics in rows:
        for name in json.loads(metrics):
            found.setdefault(name, []).append(step)
    assert "samples/train" in found
    return found


def mlflow(folder: Path) -> Steps:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=folder.resolve().as_uri())
    experiment = client.get_experiment_by_name("tightrope")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    return {name: [m.step for m in client.get_metric_history(run.info.run_id, name)] for name in run.data.metrics}


READERS: dict[str, Callable[[Path], Steps]] = {
    reader.__name__: reader for reader in (tensorboard, wandb, trackio, mlflow)
}


SLOW = ("wandb", "trackio", "mlflow")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in READERS])
def test_a_killed_and_resumed_run_is_one_run_with_each_step_once(
    name: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    if importlib.util.find_spec(name) is None:  # not imported: Trackio reads its folder from the environment then
        pytest.skip(f"{name} is not installed")
    for variable in ("WANDB_MODE", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "TRACKIO_DIR"):
        monkeypatch.delenv(variable, raising=False)
    config = with_trackers(tiny_config("ppo", tiny_files(tmp_path), tmp_path / "run"), name, trl_names=True)
    folder = run_quietly("ppo", config).folder
    max(folder.glob("checkpoints/iter-*")).rename(folder / "gone")
    assert resume(folder, lambda stage, config: Nobody()).outcome == "finished"
    assert [event.reason for event in read_events(folder / "events.jsonl") if event.kind == "tracker_trouble"] == []
    steps = READERS[name](folder / "trackers" / name)
    assert sorted(steps["kl_seq"]) == sorted(steps["objective/kl"]) == sorted(steps["policy/clipfrac_avg"]) == TRAIN
    assert sorted(steps["probe/reward"]) == PROBES
    assert capsys.readouterr().out == ""
