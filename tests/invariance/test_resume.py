"""Are N + N steps the same as 2 N steps, bit for bit, in every logged number and in the weights?"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.runs import STAGES, run_quietly, tiny_config, tiny_files
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.stage import Finished, resume, start
from tightrope.records import StepRecord
from tightrope.storage.metrics import MetricStore

STEPS = 4


class InterruptAt(Nobody):
    """Asks for a stop while step ``step`` is being shown, as Ctrl-C would."""

    def __init__(self, step: int, number: int) -> None:
        self._step = step
        self._number = number

    def write(self, record: StepRecord) -> None:
        if record.step == self._step and "/" not in record.stage:
            os.kill(os.getpid(), self._number)


def logged(run: Path) -> list[str]:
    store = MetricStore(run / "run.db", read_only=True)
    try:
        return [record.reproducible() for record in store.rows()]
    finally:
        store.close()


def weights(run: Path) -> dict[str, torch.Tensor]:
    return {
        f"{file.relative_to(run)}:{name}": tensor
        for file in sorted((run / "export").rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def differing(one: Path, two: Path) -> list[str]:
    left, right = weights(one), weights(two)
    assert left.keys() == right.keys() and left
    return [name for name in left if not torch.equal(left[name], right[name])]


def interrupted_and_resumed(stage: str, config, number: int = signal.SIGTERM) -> Finished:
    first = start(stage, config, lambda name, settings: InterruptAt(STEPS // 2 - 1, number))
    assert (first.outcome, first.steps) == ("interrupted", STEPS // 2)
    return resume(config.output, lambda name, settings: Nobody())


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("stage", STAGES)
def test_resumed_run_equals_uninterrupted_run(tmp_path: Path, stage: str, lora: bool) -> None:
    files = tiny_files(tmp_path)
    whole = run_quietly(stage, tiny_config(stage, files, tmp_path / "whole", lora=lora, steps=STEPS))
    halves = interrupted_and_resumed(stage, tiny_config(stage, files, tmp_path / "halves", lora=lora, steps=STEPS))
    assert whole.outcome == halves.outcome == "finished"
    assert logged(whole.folder) == logged(halves.folder)
    assert len(logged(whole.folder)) > STEPS
    assert differing(whole.folder, halves.folder) == []


def test_resume_after_an_odd_checkpoint_repeats_the_steps_after_it(tmp_path: Path) -> None:
    """The newest checkpoint is older than the newest logged step: the step runs again and is logged once."""
    files = tiny_files(tmp_path)
    whole = run_quietly("ppo", tiny_config("ppo", files, tmp_path / "whole", steps=STEPS))
    halves = tiny_config("ppo", files, tmp_path / "halves", steps=STEPS)
    start("ppo", halves, lambda name, settings: InterruptAt(STEPS // 2, signal.SIGINT))
    newest = sorted((halves.output / "checkpoints").glob("iter-*"))[-1]
    newest.rename(newest.with_name("lost"))
    resumed = resume(halves.output, lambda name, settings: Nobody())
    assert logged(whole.folder) == logged(resumed.folder)
    assert differing(whole.folder, resumed.folder) == []


def test_two_runs_with_one_seed_are_equal_and_with_two_seeds_are_not(tmp_path: Path) -> None:
    files = tiny_files(tmp_path)
    runs = [
        run_quietly("ppo", tiny_config("ppo", files, tmp_path / name, steps=2).model_copy(update={"seed": seed}))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    one, again, other = (logged(run.folder) for run in runs)
    assert one == again != other


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    config = tiny_config("sft", tiny_files(tmp_path), tmp_path / "run", steps=STEPS)
    run_quietly("sft", config)
    before, numbers = weights(config.output), logged(config.output)
    again = resume(config.output, lambda name, settings: Nobody())
    assert again.outcome == "finished"
    assert logged(config.output) == numbers
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(config.output).items())
