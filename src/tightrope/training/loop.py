"""Steps until the end, a signal, or the guardian's stop; checkpoints at step boundaries."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar

from tightrope.config.errors import CheckpointMissed, NonFiniteNumbers
from tightrope.records import Action, Finding, StepRecord
from tightrope.rollout.sampling import NonFiniteLogits
from tightrope.scoring.judge import NonFiniteReward
from tightrope.scoring.sources import RewardSourceFailed
from tightrope.training.run import OfflineRun, OnlineRun, RunCore

Outcome = Literal["finished", "interrupted", "stopped", "paused"]
Steps = Generator[StepRecord, None, Outcome]
DRAWN = ("prompts",)
"""What a step has changed before its rewards are asked for: put back, it is the boundary before the step."""
RunT = TypeVar("RunT", OnlineRun, OfflineRun)


class StopSignals:
    """SIGINT, SIGTERM and SIGUSR1 ask for a stop at the next step boundary; a second SIGINT leaves at once."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        watched = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        before = {number: signal.signal(number, self._ask) for number in watched}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: object) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


def steps(run: RunT, step: Callable[[RunT], StepRecord], signals: StopSignals) -> Steps:
    """From where ``core.progress`` stands, one finished step at a time; the record is written and its checkpoint saved
    when it is given. A finished step is never lost: after a kill the run goes on from the newest checkpoint and repeats
    what followed it, bit for bit.

    A policy that no longer gives numbers ends the run at once and without a checkpoint: those on the disk are better.
    A reward source that fails ends it with a checkpoint of the last finished step.
    """
    try:
        return (yield from walk(run, step, signals))
    except RewardSourceFailed as error:
        pause(run.core, error)
        return "paused"
    except NonFiniteLogits as error:
        record = run.apply(*refused_step(run.core, error))
        run.core.progress.stop_reason = str(error)
        yield record
        return "stopped"


def walk(run: RunT, step: Callable[[RunT], StepRecord], signals: StopSignals) -> Steps:
    core = run.core
    progress = core.progress
    while progress.step < core.total_steps:
        if progress.step % core.evaluate_every == 0:
            evaluate(core)
        position = {name: core.state[name].state_dict() for name in DRAWN if name in core.state}
        try:
            record = step(run)
        except RewardSourceFailed:
            for name, before in position.items():
                core.state[name].load_state_dict(before)
            raise
        except NonFiniteReward as error:
            record = run.apply(*refused_step(core, error))
        progress.advance()
        leaving = signals.asked or progress.stop_reason is not None
        last = progress.step == core.total_steps
        if last or leaving or progress.checkpoint_asked or progress.step % core.checkpoint_every == 0:
            save(core, must=last or leaving)
        yield record
        if signals.asked and not leaving and not last:  # asked by who was given the record
            save(core, must=True)
            leaving = True
        if leaving and not last:
            return "interrupted" if progress.stop_reason is None else "stopped"
    evaluate(core)
    return "finished" if progress.stop_reason is None else "stopped"


def pause(core: RunCore, error: RewardSourceFailed) -> None:
    """At the boundary before the step that could not be scored: resumed, it draws and scores the same samples."""
    save(core, must=True)
    core.journal.append(core.progress.step - 1, "paused", str(error), "run")
    core.progress.stop_reason = str(error)


def save(core: RunCore, must: bool) -> None:
    """A checkpoint that the disk did not take is missed with a loud line, unless the run is about to end."""
    try:
        core.save()
    except CheckpointMissed as missed:
        if must:
            raise
        print(f"warning: {missed}", file=sys.stderr)
        core.journal.append(core.progress.step - 1, "checkpoint_missed", str(missed), "run")


def evaluate(core: RunCore) -> None:
    """A judge that gives no number costs the probe, not the run."""
    try:
        record = core.evaluate(core.progress.step)
    except NonFiniteReward as error:
        print(f"warning: no probe at step {core.progress.step}: {error}", file=sys.stderr)
        core.journal.append(core.progress.step - 1, "probe_missed", str(error), "run")
        return
    if record is not None:
        core.tracker.write(record)


def refused_step(core: RunCore, error: NonFiniteNumbers) -> tuple[StepRecord, Sequence[Finding], Sequence[Action]]:
    """A step without numbers to learn from: it is recorded, and the guardian counts it."""
    record = StepRecord(
        stage=core.stage,
        step=core.progress.step,
        attempt=core.progress.attempt,
        metrics={"nonfinite": 1.0, "skipped_updates": 1.0},
        notes={"nonfinite": str(error)},
        seconds=core.clock.take(),
    )
    core.tracker.write(record)
    findings, actions = core.guardian.review(record)
    return record, findings, actions
