"""The life of a run: started or resumed, walked to its end or to a signal, exported.

A new run writes nothing before its inputs are proven. A resumed run takes the newest checkpoint that verifies, forgets
the rows written after it, and repeats those steps bit for bit.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tightrope.algorithms.options import DPOConfig, RewardModelConfig, SFTConfig
from tightrope.algorithms.plugins import STAGES
from tightrope.assemble.export import export_result
from tightrope.assemble.fanout import FanOut, Watchers
from tightrope.assemble.inputs import Inputs, read_inputs
from tightrope.assemble.memory import require_room
from tightrope.assemble.offline import build_offline
from tightrope.assemble.online import build_online
from tightrope.assemble.parts import Assembled, Outputs
from tightrope.assemble.profile import StepsMeasured
from tightrope.assemble.reward_sources import sandbox_facts
from tightrope.assemble.threads import choose_threads, recorded_threads
from tightrope.config.errors import TightropeError
from tightrope.config.load import load_resolved, save_resolved
from tightrope.config.schema import OnlineConfig, RunConfig
from tightrope.models.load import device_of
from tightrope.protocols import Display
from tightrope.records import StepRecord
from tightrope.storage.checkpoints import CheckpointStore
from tightrope.storage.files import replace_file
from tightrope.storage.journal import Journal
from tightrope.storage.metrics import MetricStore
from tightrope.storage.run_folder import RunFolder, environment
from tightrope.storage.samples import SampleStore
from tightrope.trackers.open import trackers_of
from tightrope.training.loop import Outcome, StopSignals
from tightrope.training.selftest import checkpoint_check, require

DisplayFor = Callable[[str, RunConfig], Display]


@dataclass(frozen=True, slots=True)
class Finished:
    """How a stage ended. ``latest`` is its newest record by stage name (``ppo``, ``ppo/probe``)."""

    stage: str
    folder: Path
    outcome: Outcome
    steps: int
    stop_reason: str | None
    latest: dict[str, StepRecord]
    export: Path | None
    seconds: float


def start(stage: str, config: RunConfig, display_for: DisplayFor, *, profile: bool = False) -> Finished:
    """``profile``: its steps are measured, told at the end and kept in the run's folder.

    Raises TightropeError for wrong input, before anything is written or loaded.
    """
    with started(stage, config, display_for) as opened:
        measured = StepsMeasured(opened.built) if profile else None
        finished = opened.finish()
        if measured is not None:
            found = measured.profile()
            replace_file(opened.folder.profile, found.to_json().encode())
            print(found.table(), file=sys.stderr)
        return finished


def resume(path: Path, display_for: DisplayFor) -> Finished:
    """Goes on where the newest valid checkpoint stands. Raises TightropeError when the data changed meanwhile."""
    with resumed(path, display_for) as opened:
        return opened.finish()


@contextmanager
def started(stage: str, config: RunConfig, display_for: DisplayFor) -> Iterator[Opened]:
    choose_threads()
    inputs = read_inputs(config)
    require_room(config, inputs)
    with RunFolder.create(config.output) as folder:
        try:
            save_resolved(stage, config, folder.resolved)
            folder.write_environment(device_facts(config))
            with opened(stage, config, inputs, folder, display_for) as run:
                yield run
        except TightropeError:
            folder.discard_unstarted()  # weights or rewards that only their use shows to be broken
            raise


@contextmanager
def resumed(path: Path, display_for: DisplayFor) -> Iterator[Opened]:
    with RunFolder.resume(path) as folder:
        choose_threads(recorded=recorded_threads(folder.environment))
        stage, config = load_resolved(folder.resolved, STAGES)
        with opened(stage, config, read_inputs(config), folder, display_for) as run:
            yield run


@dataclass
class Opened:
    """A run with its weights loaded and its outputs open. ``steps`` may be left early; the run can then be resumed."""

    stage: str
    config: RunConfig
    inputs: Inputs
    folder: RunFolder
    built: Assembled
    signals: StopSignals
    metrics: MetricStore
    began: float
    outcome: Outcome | None = None
    between_steps: bool = True
    closed: bool = False

    def steps(self) -> Iterator[StepRecord]:
        """Nothing more once the run has ended. Raises TightropeError when its outputs are closed."""
        self.require_open()
        if self.outcome is not None:
            return
        walking = self.built.steps(self.signals)
        while True:
            self.between_steps = False  # what an exception leaves half done is not saved
            try:
                record = next(walking)
            except StopIteration as end:
                self.outcome = end.value
                return
            self.between_steps = True
            yield record
            self.require_open()  # the loop may have outlived the run

    def require_open(self) -> None:
        if self.closed:
            raise TightropeError("this run is closed", where=str(self.folder.path), fix="go on with api.resume")

    def close(self) -> None:
        self.closed = True

    def leave(self) -> None:
        """A run that was left between two steps is saved as after Ctrl-C."""
        core = self.built.run.core
        if self.outcome is None and self.between_steps and core.progress.step > 0:
            core.save()
            self.outcome = "interrupted"

    def export(self) -> Path | None:
        """The finished run's model; None where there is more to train."""
        if self.outcome != "finished":
            return None
        return export_result(self.stage, self.built, self.config, self.inputs, self.folder.export, self.metrics)

    def finish(self) -> Finished:
        """The steps that are left, and the export."""
        for _ in self.steps():
            pass
        assert self.outcome is not None
        progress = self.built.run.core.progress
        return Finished(
            stage=self.stage,
            folder=self.folder.path,
            outcome=self.outcome,
            steps=progress.step,
            stop_reason=progress.stop_reason,
            export=self.export(),
            latest=self.metrics.latest_of_each(),
            seconds=time.monotonic() - self.began,
        )


@contextmanager
def opened(
    stage: str, config: RunConfig, inputs: Inputs, folder: RunFolder, display_for: DisplayFor
) -> Iterator[Opened]:
    began = time.monotonic()
    with ExitStack() as stack:
        journal, metrics = Journal(folder.events), MetricStore(folder.database)
        samples = sample_store(config, folder)
        watchers = Watchers(display_for(stage, config), partial(trackers_of, config, folder.path))
        watched = FanOut(metrics, samples, watchers, journal, config)
        for part in (journal, metrics, samples, watched):
            stack.callback(part.close)
        facts = facts_of(config, inputs)
        store = CheckpointStore(folder.checkpoints, config.checkpoint.keep, facts)
        signals = StopSignals()
        if threading.current_thread() is threading.main_thread():  # no other may listen to signals
            stack.enter_context(signals.listening())
        built = build(config, inputs, Outputs(store, journal, watched, watched))
        restore_or_begin(built, store, journal, metrics, samples, facts)
        watched.begin(built.run.core.progress.step)
        run = Opened(stage, config, inputs, folder, built, signals, metrics, began)
        stack.callback(run.close)
        yield run
        run.leave()


def build(config: RunConfig, inputs: Inputs, outputs: Outputs) -> Assembled:
    """Loads the weights."""
    if isinstance(config, OnlineConfig):
        return build_online(config, inputs, outputs)
    assert isinstance(config, SFTConfig | RewardModelConfig | DPOConfig)
    return build_offline(config, inputs, outputs)


def restore_or_begin(
    built: Assembled,
    store: CheckpointStore,
    journal: Journal,
    metrics: MetricStore,
    samples: SampleStore,
    facts: Mapping[str, Any],
) -> None:
    """From the newest valid checkpoint; without one from the beginning: constants, self-test, checkpoint of step 0."""
    core = built.run.core
    loaded = store.load_latest()
    last_step = -1 if loaded is None else loaded[0] - 1
    metrics.cut_after(last_step)
    samples.cut_after(last_step)
    if loaded is not None:
        step, state = loaded
        before = store.manifest(step).facts
        require_same_inputs(before, facts)
        core.restore(state)
        journal.cut_after(last_step)
        for change in machine_changes(before, facts):
            print(f"warning: {change}: numbers may differ in the last digits", file=sys.stderr)
            journal.append(last_step, "environment_changed", change, "run")
        return
    if journal.events():
        journal.cut_after(last_step)
    built.prepare()
    measured = require(built.self_test())  # before anything is saved: a resume starts beyond the self-test
    metrics.write_summary("self_test", measured | require([checkpoint_check(core)]))
    core.clock.take()


def require_same_inputs(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises TightropeError when the data or the configuration is not what the checkpoint was made with."""
    for name, path in (("data", "data files"), ("config", "resolved.yaml")):
        if before.get(name) != now[name]:
            raise TightropeError(
                f"the {path} changed since this run was started",
                found=str(now[name]),
                expected=str(before.get(name)),
                fix="put the old content back, or start a new run",
            )


def machine_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs from the machine and build that wrote the checkpoint, bit-equality being promised on the same.

    >>> one = {"device": "cpu", "threads": 2, "packages": {}}
    >>> machine_changes(one, one | {"threads": 1})
    ['threads was 2, is 1']
    """
    pairs = {name: (before.get(name), now[name]) for name in ("device", "threads")}
    old: Mapping[str, str] = before.get("packages") or {}
    pairs |= {name: (old.get(name), version) for name, version in now["packages"].items()}
    return [f"{name} was {was}, is {now_is}" for name, (was, now_is) in pairs.items() if was != now_is]


def facts_of(config: RunConfig, inputs: Inputs) -> dict[str, Any]:
    """What the manifest of each checkpoint says about where it comes from."""
    text = config.model_dump_json()
    boxes = sandbox_facts(config.reward) if isinstance(config, OnlineConfig) else {}
    return {
        "config": hashlib.sha256(text.encode()).hexdigest(),
        "data": dict(inputs.fingerprints),
        "packages": environment()["packages"],
        **device_facts(config),
        **({"sandbox": boxes} if boxes else {}),
    }


def device_facts(config: RunConfig) -> dict[str, Any]:
    return {"device": device_of(config.model).type, "threads": torch.get_num_threads()}


def sample_store(config: RunConfig, folder: RunFolder) -> SampleStore:
    if isinstance(config, OnlineConfig):
        chosen = config.samples
        return SampleStore(folder.database, chosen.count, chosen.every, chosen.keep_steps)
    return SampleStore(folder.database)
