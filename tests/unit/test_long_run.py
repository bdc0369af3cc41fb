"""Does a run of many steps keep what it holds bounded: objects in memory, open files, checkpoints, samples?"""

from __future__ import annotations

import gc
from pathlib import Path

import psutil
import torch

from benchmarks.curves import svg_of
from benchmarks.memory_in_use import python_blocks
from tests.runs import tiny_config, tiny_files
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.stage import start
from tightrope.records import StepRecord
from tightrope.storage.samples import SampleStore

STEPS, SETTLED = 110, 70
"""The guardian keeps 64 records; from then on nothing may be added."""
BLOCKS_A_STEP = 10
"""Small Python objects: 2 to 4 a step are caches that still fill; one record kept a step is 50. Counting what the
garbage collector tracks would not tell the two apart: a record of numbers is one such object."""


class Count(Nobody):
    """Small objects and tensors alive, and open files, after a step."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, int, int]] = {}

    def write(self, record: StepRecord) -> None:
        if "/" not in record.stage and record.step in (SETTLED, STEPS - 1):
            gc.collect()
            tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
            self.seen[record.step] = (python_blocks(), tensors, psutil.Process().num_fds())


def test_many_steps_hold_no_more_than_a_few(tmp_path: Path) -> None:
    changes = {
        "samples": {"count": 2, "keep_steps": 5},
        "rollout": {"prompts_per_step": 2, "samples_per_prompt": 1, "max_new_tokens": 3},
        "evaluation": {"every": 10, "prompts": 2},
        "ppo": {"epochs": 1, "minibatches": 1},
        "checkpoint": {"every": 20, "keep": 2},
    }
    config = tiny_config("ppo", tiny_files(tmp_path), tmp_path / "run", steps=STEPS, changes=changes)
    count = Count()
    assert start("ppo", config, lambda stage, settings: count).outcome == "finished"
    before, after = count.seen[SETTLED], count.seen[STEPS - 1]
    assert after[0] - before[0] < BLOCKS_A_STEP * (STEPS - 1 - SETTLED)
    assert after[1:] == before[1:]
    assert len(list((tmp_path / "run/checkpoints").glob("iter-*"))) == 2
    samples = SampleStore(tmp_path / "run/run.db", read_only=True)
    assert samples.steps("train") == list(range(STEPS - 5, STEPS))
    assert samples.steps("probe") == [0, *range(STEPS - 40, STEPS + 1, 10)]
    samples.close()


def test_a_curve_lies_between_its_lowest_and_its_highest_value() -> None:
    picture = svg_of("title", {"a < b": [(0.0, 1.0), (10.0, 3.0)]})
    assert '<polyline points="90.0,144.0 744.0,50.0"' in picture
    assert "a &lt; b" in picture and ">3</text>" in picture and ">1</text>" in picture
