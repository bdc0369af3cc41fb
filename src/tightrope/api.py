"""Tightrope from Python: what the command line does, one step at a time; and runs to look at.

    from tightrope import api

    config = api.load_config("ppo.yaml", ["kl.beta=0.1"])
    with api.start(config) as run:
        for record in run.steps():
            if record.metrics["reward"] > 2.0:
                run.stop()
    api.read("runs/ppo")                     # shows itself in a notebook

Torch is imported when a run starts, not before: reading runs and configs needs none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightrope.algorithms.plugins import STAGES, config_class_of
from tightrope.config.errors import TightropeError
from tightrope.config.load import load_config as load_config_file
from tightrope.config.load import load_resolved, named_stage
from tightrope.config.schema import RunConfig
from tightrope.records import StepRecord
from tightrope.storage.journal import Event, read_events
from tightrope.storage.metrics import MetricStore
from tightrope.storage.report import run_html
from tightrope.storage.run_folder import RunFolder
from tightrope.storage.samples import SampleStore, StoredSample

if TYPE_CHECKING:
    from tightrope.assemble.stage import Opened
    from tightrope.protocols import Display
    from tightrope.training.run import OnlineRun

__all__ = [
    "Run",
    "RunView",
    "TightropeError",
    "config_from",
    "load_config",
    "parts",
    "read",
    "resume",
    "start",
    "train",
]


def load_config(path: str | Path, overrides: Sequence[str] = (), stage: str | None = None) -> RunConfig:
    """A YAML file with overrides as on the command line. ``stage`` (``ppo``) where the file does not tell: it does by
    ``stage:``, or by a section that only one stage has."""
    from tightrope.config.sources import read_source

    named = stage or named_stage(read_source(Path(path), overrides))
    return load_config_file(Path(path), overrides, config_class_of(named, str(path)))


def config_from(stage: str, content: Mapping[str, Any]) -> RunConfig:
    """The same from a dict; paths may be texts."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(json.dumps(content, default=str))  # JSON is YAML; one validation, one kind of error
        return load_config_file(path, [], config_class_of(stage, "the config"))


class RunView:
    """A finished or running run, read from its folder. Changes nothing there."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = RunFolder.read(Path(folder))

    @property
    def folder(self) -> Path:
        return self._folder.path

    @property
    def config(self) -> RunConfig:
        return load_resolved(self._folder.resolved, STAGES)[1]

    @property
    def export(self) -> Path | None:
        """The finished model's folder; None while there is none."""
        return self._folder.export if self._folder.export.is_dir() else None

    def records(self, stage: str | None = None) -> list[StepRecord]:
        """Of one stage (``ppo``, ``ppo/probe``) or of all, in the order of the run."""
        if self._is_unwritten():
            return []
        store = MetricStore(self._folder.database, read_only=True)
        try:
            return store.rows(stage)
        finally:
            store.close()

    def samples(self, step: int | None = None, split: str = "train") -> list[StoredSample]:
        """Of a step, or of the newest one that has any. ``split`` is train or probe."""
        if self._is_unwritten():
            return []
        store = SampleStore(self._folder.database, read_only=True)
        try:
            steps = store.steps(split)
            chosen = steps[-1] if step is None and steps else step
            return [] if chosen is None else store.read(chosen, split)
        finally:
            store.close()

    def _is_unwritten(self) -> bool:
        """The run was started, or killed, before its first number."""
        database = self._folder.database
        return not database.is_file() or database.stat().st_size == 0

    def events(self) -> list[Event]:
        return read_events(self._folder.events)

    def __repr__(self) -> str:
        records = self.records()
        stage = records[-1].stage.partition("/")[0] if records else "no step yet"
        return f"<Tightrope run {self.folder}: {stage}, {len({r.step for r in records if '/' not in r.stage})} steps>"

    def _repr_html_(self) -> str:
        return run_html(str(self.folder), self.records(), self.samples())


class Run:
    """A run in progress; made by ``start`` and ``resume``."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def steps(self) -> Iterator[StepRecord]:
        """Each step when it is finished and written. Leaving the loop early leaves a run that can be resumed."""
        return self._opened.steps()

    def stop(self) -> None:
        """Save after this step, and end ``steps``."""
        self._opened.signals.asked = True

    def save(self) -> None:
        """A checkpoint now, between two steps."""
        self._opened.require_open()
        self._opened.built.run.core.save()

    @property
    def outcome(self) -> str | None:
        """finished, interrupted or stopped; None while it goes on."""
        return self._opened.outcome

    @property
    def view(self) -> RunView:
        return RunView(self._opened.folder.path)

    def samples(self, step: int | None = None, split: str = "train") -> list[StoredSample]:
        return self.view.samples(step, split)

    def __repr__(self) -> str:
        return repr(self.view)

    def _repr_html_(self) -> str:
        return self.view._repr_html_()


@contextmanager
def start(config: RunConfig) -> Iterator[Run]:
    """A new run. At the end of the ``with`` it is saved, exported if it is finished, and closed."""
    from tightrope.assemble.stage import started

    with started(config.stage, config, silent) as opened:
        yield from finished(opened)


@contextmanager
def resume(folder: str | Path) -> Iterator[Run]:
    """A run that was left, from its newest checkpoint."""
    from tightrope.assemble.stage import resumed

    with resumed(Path(folder), silent) as opened:
        yield from finished(opened)


def train(config: RunConfig) -> RunView:
    """A whole run."""
    with start(config) as run:
        for _ in run.steps():
            pass
    return RunView(config.output)


def parts(config: RunConfig) -> OnlineRun:
    """What a step is made of, for a loop of one's own: ``prompts, engine, judge, algorithm, learner, dial`` and
    ``core.progress``. Writes nothing. See ``examples/own_loop.py``."""
    from tightrope.assemble.own_loop import parts_of

    return parts_of(config)


def read(folder: str | Path) -> RunView:
    """A run's folder. Raises TightropeError when it holds none."""
    return RunView(folder)


def finished(opened: Opened) -> Iterator[Run]:
    yield Run(opened)
    opened.export()


def silent(stage: str, config: RunConfig) -> Display:
    from tightrope.assemble.fanout import Nobody

    return Nobody()
