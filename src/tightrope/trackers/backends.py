"""The trackers that are built in. Each imports its package when it starts, writes into the run folder, and asks nobody.

Weights & Biases is offline unless WANDB_MODE says otherwise; MLflow writes to a file store unless MLFLOW_TRACKING_URI
is set; Trackio keeps its database in the run folder unless TRACKIO_DIR is set.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tightrope.trackers.base import TrackedRun, TrackerFactory

ID_LETTERS = 8  # as long as those Weights & Biases makes
TEXT_ROWS = 8
"""Samples of a step shown where a tracker has no tables."""


def third_party(name: str) -> Any:
    """These packages have few types; what they take and give is tested with the real ones."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; pip install {error.name}", name=error.name) from error


class TensorBoard:
    """Rows at and beyond ``next_step`` of an earlier part of the run are purged by the event file itself."""

    def __init__(self, run: TrackedRun) -> None:
        writer = third_party("torch.utils.tensorboard").SummaryWriter
        self._writer = writer(str(run.folder), purge_step=run.next_step or None)
        self._writer.add_text("config", markdown_code(json.dumps(run.config, indent=2)), run.next_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        text = "\n\n".join(
            f"{row['prompt']}\n>>> {row['response']}\nreward {row['reward']}" for row in rows[:TEXT_ROWS]
        )
        self._writer.add_text(name, markdown_code(text), step)

    def close(self) -> None:
        self._writer.close()


def markdown_code(text: str) -> str:
    """Indented, so that no mark in it means anything.

    >>> markdown_code("a\\n# b")
    '    a\\n    # b'
    """
    return "\n".join(f"    {line}" for line in text.splitlines())


class WandB:
    """Never a login prompt: without a key a run that was to be online is offline."""

    def __init__(self, run: TrackedRun) -> None:
        self._wandb = third_party("wandb")
        run_id = run.known_id or uuid.uuid4().hex[:ID_LETTERS]
        run.remember_id(run_id)
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode == "online" and not self._wandb.login(prompt=False, verify=False):
            mode = "offline"
        settings = self._wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
        )
        self._run = self._wandb.init(
            project=run.project,
            name=run.name,
            id=run_id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            mode=mode,
            settings=settings,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = list(rows[0])
        table = self._wandb.Table(columns=columns, data=[[row[column] for column in columns] for row in rows])
        self._run.log({name: table}, step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(run.folder))
        self._trackio = third_party("trackio")
        for module in ("trackio", "trackio.run", "trackio.utils"):
            third_party(module).print = print_to_stderr  # what a command prints on stdout may be read by a program
        self._trackio.init(
            project=run.project,
            name=run.known_id or run.name,
            resume="allow",
            config=dict(run.config),
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        run.remember_id(run.known_id or run.name)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._trackio.log(dict(metrics), step=step)

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        dataframe = third_party("pandas").DataFrame(list(rows))
        self._trackio.log({name: self._trackio.Table(dataframe=dataframe)}, step=step)

    def close(self) -> None:
        self._trackio.finish()


class MLflow:
    """Through the client, which leaves MLflow's own current run alone."""

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._mlflow = third_party("mlflow")
        address = os.environ.get("MLFLOW_TRACKING_URI", run.folder.resolve().as_uri())
        self._client = self._mlflow.MlflowClient(tracking_uri=address)
        if run.known_id is None:
            found = self._client.get_experiment_by_name(run.project)
            experiment = self._client.create_experiment(run.project) if found is None else found.experiment_id
            self._id = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
            run.remember_id(self._id)
            self._client.log_dict(self._id, dict(run.config), "config.json")
        else:
            self._id = run.known_id
            self._client.update_run(self._id, status="RUNNING")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        entity, now = self._mlflow.entities.Metric, int(self._mlflow.utils.time.get_current_time_millis())
        values = [entity(name, value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=values)

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._client.log_dict(self._id, {"rows": [dict(row) for row in rows]}, f"{name}/step-{step:06}.json")

    def close(self) -> None:
        self._client.set_terminated(self._id)


def print_to_stderr(*words: object) -> None:
    print(*words, file=sys.stderr)


BUILT_IN: Mapping[str, TrackerFactory] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
    "mlflow": MLflow,
}


def folder_of(run_folder: Path, name: str) -> Path:
    """Where a tracker keeps its files: a spec's marks would be no file name everywhere.

    >>> str(folder_of(Path("run"), "my/file.py:function"))
    'run/trackers/my_file.py_function'
    """
    return run_folder / "trackers" / "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
