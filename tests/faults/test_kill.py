"""Does kill -9 at any instant lose a finished step?

Each child process goes on with the same run and is killed by a timer that starts when a phase begins, so that the
kills are spread over rollout, score, update and save. Children are forked from this warm process: importing torch
again would take most of the time.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.invariance.test_resume import differing, logged
from tests.runs import run_quietly, tiny_config, tiny_files
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.stage import resume
from tightrope.config.schema import RunConfig
from tightrope.storage.checkpoints import CheckpointStore
from tightrope.training.timing import Stopwatch

PHASES = ("rollout", "score", "update", "save")
LONGEST_DELAY = 0.02  # seconds; phases of the tiny run take 3-30 ms


def die_in(phase: str, occurrence: int, delay: float) -> None:
    """From now on this process kills itself ``delay`` seconds into the given occurrence of the phase."""
    seen: Counter[str] = Counter()

    def entered(name: str) -> None:
        seen[name] += 1
        if name == phase and seen[name] == occurrence:
            threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()

    original_phase, original_save = Stopwatch.phase, CheckpointStore.save

    @contextmanager
    def timed_phase(self: Stopwatch, name: str) -> Iterator[None]:
        entered(name)
        with original_phase(self, name):
            yield

    def save(self: CheckpointStore, step: int, state: object) -> Path:
        entered("save")
        return original_save(self, step, state)  # type: ignore[arg-type]

    Stopwatch.phase = timed_phase  # type: ignore[method-assign]
    CheckpointStore.save = save  # type: ignore[method-assign]


def killed_attempt(config: RunConfig, phase: str, occurrence: int, delay: float) -> bool:
    """True when the child was killed, False when it reached the end first. Any other end fails the test."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            die_in(phase, occurrence, delay)
            if (config.output / "resolved.yaml").exists():
                resume(config.output, lambda name, settings: Nobody())
            else:
                run_quietly("ppo", config)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def survive_kills(tmp_path: Path, kills: int) -> None:
    files = tiny_files(tmp_path)
    steps = kills // 2
    changes = {"checkpoint": {"every": 1}}
    whole = tiny_config("ppo", files, tmp_path / "whole", steps=steps, changes=changes)
    config = tiny_config("ppo", files, tmp_path / "killed", steps=steps, changes=changes)
    run_quietly("ppo", whole)
    draw = random.Random(0)
    done: Counter[str] = Counter()
    for trial in range(kills):
        phase = PHASES[trial % len(PHASES)]
        finished_before = len(logged(config.output)) if (config.output / "run.db").exists() else 0
        if killed_attempt(config, phase, 1 + (trial // len(PHASES)) % 2, draw.uniform(0.0, LONGEST_DELAY)):
            done[phase] += 1
        if finished_before:
            # At most the step that was not saved yet and the probe that it began with: both are repeated.
            assert len(logged(config.output)) >= finished_before - 2
    if (config.output / "resolved.yaml").exists():
        resume(config.output, lambda name, settings: Nobody())
    assert sum(done.values()) >= 0.8 * kills and len(done) == len(PHASES)
    assert logged(config.output) == logged(whole.output)
    assert differing(whole.output, config.output) == []


def test_kills_in_every_phase_lose_nothing(tmp_path: Path) -> None:
    survive_kills(tmp_path, kills=12)


@pytest.mark.slow
def test_fifty_kills_lose_nothing(tmp_path: Path) -> None:
    survive_kills(tmp_path, kills=50)
