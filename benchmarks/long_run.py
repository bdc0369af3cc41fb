"""Does a long run stay as small as it began? Thousands of PPO steps of the small demo's model, with its memory watched.

python -m benchmarks.long_run [--steps 2000] [--output docs]

Memory, open files and the size of ``run.db`` are read after every step; memory that malloc and Python have given out
judges growth, because pages freed earlier hide it from resident memory. The model has the demo's shape; it is
trained briefly on the demo's reviews, and the reward is the demo's word-list judge. Writes ``images/long-run.svg`` and
``long-run.json`` below the output folder; prints the JSON. Exit code 1 when memory grew or something was not pruned.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.curves import svg_of
from benchmarks.memory_in_use import bytes_in_use, python_blocks
from tightrope.algorithms.options import CONFIGS
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.stage import start
from tightrope.config.schema import RunConfig
from tightrope.demo.corpus import load_corpus
from tightrope.demo.files import DemoFiles, write_texts
from tightrope.demo.model import write_base_model
from tightrope.demo.tokenizer import vocabulary_of
from tightrope.records import StepRecord
from tightrope.storage.metrics import MetricStore
from tightrope.storage.samples import SampleStore

SFT_STEPS = 200
WARMUP_SHARE, WARMUP_STEPS = 0.2, 70
"""A share of the steps, and no fewer than fill the guardian's history of 64 records."""
MAX_SLOPE = 0.1
"""MB in use a hundred steps after the warm-up: 1 KB a step."""
MAX_BLOCKS = 1000
"""Small Python objects a hundred steps; one record kept of each step would be 5000."""
COLUMNS = ("rss", "in_use", "blocks", "files", "database")
SMALL = 200
"""Bytes of a leaked object that Python's own allocator holds."""
CHECKPOINTS, SAMPLE_STEPS, PROBE_EVERY = 2, 50, 50
JUDGE = "tightrope.demo.judges:independent"


class Watch(Nobody):
    """Reads the process after every step into a table made beforehand, so that watching holds nothing more.

    ``leak``: bytes kept on purpose at each step, half in one piece and half in small objects, to see it seen.
    """

    def __init__(self, database: Path, steps: int, leak: int) -> None:
        self._process = psutil.Process()
        self._database = database
        self._leak = leak
        self._leaked: list[list[bytes]] = []
        self.table = np.zeros((steps, len(COLUMNS)), dtype=np.int64)

    def write(self, record: StepRecord) -> None:
        if "/" in record.stage:
            return
        if self._leak:
            small = [bytes([n % 256]) * SMALL for n in range(self._leak // 2 // SMALL)]
            self._leaked.append([bytes(self._leak // 2), *small])
        gc.collect()  # what waits for the collector is no leak
        size = sum(path.stat().st_size for path in self._database.parent.glob("run.db*"))
        rss, files = self._process.memory_info().rss, self._process.num_fds()
        self.table[record.step] = (rss, bytes_in_use(), python_blocks(), files, size)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--leak", type=int, default=0, help="bytes kept at each step on purpose, to see them seen")
    parser.add_argument("--output", type=Path, default=Path("docs"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found, panels = measured(Path(folder), options.steps, options.leak)
    (options.output / "images").mkdir(parents=True, exist_ok=True)
    title = f"PPO, {options.steps} steps of the small demo's model"
    (options.output / "images/long-run.svg").write_text(svg_of(title, panels))
    (options.output / "long-run.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found))
    return 0 if found["as_configured"] else 1


def measured(folder: Path, steps: int, leak: int = 0) -> tuple[dict[str, Any], dict[str, list[tuple[float, float]]]]:
    config = ppo_config(folder, steps)
    watch = Watch(config.output / "run.db", steps, leak)
    began = time.monotonic()
    done = start("ppo", config, lambda stage, settings: watch)
    seconds = time.monotonic() - began
    store = MetricStore(config.output / "run.db", read_only=True)
    records = store.rows("ppo")
    store.close()
    samples = SampleStore(config.output / "run.db", read_only=True)
    kept = {split: len(samples.steps(split)) for split in ("train", "probe")}
    samples.close()
    checkpoints = len(list((config.output / "checkpoints").glob("iter-*")))
    after = watch.table[max(WARMUP_STEPS, int(steps * WARMUP_SHARE)) :]
    rss, in_use, blocks, files, size = after.T
    grown, objects = 100 * slope((in_use / 2**20).tolist()), 100 * slope(blocks.astype(float).tolist())
    expected = {"train": min(SAMPLE_STEPS, steps), "probe": min(SAMPLE_STEPS + 1, steps // PROBE_EVERY + 1)}
    found = {
        "steps": done.steps,
        "outcome": done.outcome,
        "seconds": round(seconds, 1),
        "in_use_mb_after_warmup": round(float(in_use[0]) / 2**20, 2),
        "in_use_mb_end": round(float(in_use[-1]) / 2**20, 2),
        "in_use_mb_per_100_steps": round(grown, 3),
        "python_blocks_per_100_steps": round(objects, 1),
        "rss_mb_end": round(float(rss[-1]) / 2**20, 1),
        "rss_mb_peak": round(float(watch.table[:, 0].max()) / 2**20, 1),
        "open_files_after_warmup": int(files[0]),
        "open_files_end": int(files[-1]),
        "run_db_kb_per_100_steps": round(float(size[-1] - size[0]) / len(after) * 100 / 2**10, 1),
        "run_db_mb": round(float(size[-1]) / 2**20, 2),
        "records": len(records),
        "checkpoints": checkpoints,
        "sample_steps": kept,
        "as_configured": done.outcome == "finished"
        and len(records) == steps
        and grown < MAX_SLOPE
        and objects < MAX_BLOCKS
        and bool(files[-1] <= files[0])
        and checkpoints == CHECKPOINTS
        and kept == expected,
    }
    return found, panels_of(records, watch)


def panels_of(records: list[StepRecord], watch: Watch) -> dict[str, list[tuple[float, float]]]:
    names = {"reward_raw": "reward", "kl_seq": "KL, nats per response", "response_tokens": "response length, tokens"}
    panels = {
        title: [(float(r.step), r.metrics[name]) for r in records if name in r.metrics] for name, title in names.items()
    }
    panels["beta"] = [(float(r.step), r.controls["beta"]) for r in records if "beta" in r.controls]
    for column, title in ((1, "memory in use, MB"), (0, "resident memory, MB")):
        panels[title] = [(float(i), float(value) / 2**20) for i, value in enumerate(watch.table[:, column])]
    return {title: points for title, points in panels.items() if points}


def slope(values: list[float]) -> float:
    """Least squares, per step.

    >>> slope([1.0, 3.0, 5.0])
    2.0
    """
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    squares = sum((step - middle) ** 2 for step in range(len(values)))
    return sum((step - middle) * (value - mean) for step, value in enumerate(values)) / squares


def ppo_config(folder: Path, steps: int) -> RunConfig:
    """Model and prompts as in the demo, and a PPO run small enough for thousands of steps."""
    files = DemoFiles(folder / "data")
    files.folder.mkdir(parents=True)
    corpus = load_corpus(0)
    vocabulary = vocabulary_of(corpus.writing)
    write_texts(files, corpus, vocabulary, 0, prompts=1000, held_out=64)
    write_base_model(folder / "base", vocabulary, 0)
    sft = {
        "output": folder / "sft",
        "model": {"name": folder / "base"},
        "data": {"train": files.demonstrations},
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 20},
        "training": {"steps": SFT_STEPS},
        "checkpoint": {"every": SFT_STEPS},
        "sft": {"batch_size": 32, "evaluate_every": SFT_STEPS},
    }
    start("sft", CONFIGS["sft"].model_validate(sft), lambda stage, settings: Nobody())
    content = {
        "output": folder / "ppo",
        "model": {"name": folder / "sft"},
        "data": {"train": files.prompts},
        "optimizer": {"learning_rate": 5e-5, "critic_learning_rate": 5e-4},
        "training": {"steps": steps},
        "checkpoint": {"every": 100, "keep": CHECKPOINTS},
        "rollout": {"prompts_per_step": 16, "max_new_tokens": 16},
        "reward": {"function": JUDGE},
        "kl": {"beta": 0.15, "target": 5.0},
        "ppo": {"epochs": 2, "minibatches": 2},
        "evaluation": {"every": PROBE_EVERY, "prompts": 16, "function": JUDGE},
        "samples": {"count": 4, "keep_steps": SAMPLE_STEPS},
    }
    return CONFIGS["ppo"].model_validate(content)


if __name__ == "__main__":
    sys.exit(main())
