"""Who runs what is still missing? Each worker walks the same list and takes what nobody has taken.

A run is claimed by a lock that ends with its process, and finished by its line in the ledger. So a series that was
interrupted goes on, and any number of workers may be started at any time.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.learning.ledger import Entry, Ledger
from benchmarks.learning.settings import Experiment, Setting, config_hash

SOURCES = ("src", "benchmarks", ":!benchmarks/*/ledger.jsonl")
Runner = Callable[[Setting, int, str], dict[str, Any]]
"""(setting, seed, config hash) → figures."""


def work(experiment: Experiment, seeds: Sequence[int], ledger: Ledger, root: Path, run: Runner) -> int:
    """Runs what is missing and not claimed, seed by seed; returns how many that were."""
    commit, versions, done = commit_of(), versions_of(run), 0
    for seed in seeds:
        for setting in experiment.settings:
            config = config_hash(setting, seed)
            name = (experiment.name, setting.name, seed)
            with claimed(root / "claims" / f"{config}.lock") as mine:
                if not mine or ledger.has(name, config):
                    continue
                before = ledger.with_config(config)
                if before is not None:
                    same = f"{before.experiment}/{before.setting}"
                    ledger.append(Entry(*name, config, setting.told, same_as=same))
                    continue
                print(f"{experiment.name} / {setting.name} / seed {seed}", flush=True)
                began = time.monotonic()
                figures = run(setting, seed, config)
                seconds = round(time.monotonic() - began, 1)
                ledger.append(Entry(*name, config, setting.told, commit, versions, seconds, figures))
                done += 1
    return done


def versions_of(run: Runner) -> dict[str, str]:
    """Of a real run; a stub in a test needs no packages."""
    if run is not run_setting:
        return {}
    from benchmarks.learning.material import packages

    return packages()


def run_setting(setting: Setting, seed: int, config: str) -> dict[str, Any]:
    """The product's own run, in this process. Its folder keeps the samples; the weights are deleted."""
    from benchmarks.learning.best_of_n import best_of_n_figures
    from benchmarks.learning.figures import figures_of
    from benchmarks.learning.material import ROOT, material_of
    from benchmarks.learning.settings import config_of
    from tightrope import api

    material = material_of(seed, setting.reward)
    accuracy = {"reward_accuracy": material.reward_accuracy(setting.reward)}
    if setting.kind == "best_of_n":
        return best_of_n_figures(material, setting.reward, seed) | accuracy
    folder = (ROOT / "ppo" / config).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    with api.start(config_of(setting, seed, material.places(setting.reward, folder))) as running:
        for _ in running.steps():
            pass
        outcome = str(running.outcome)
    for heavy in ("checkpoints", "export"):
        shutil.rmtree(folder / heavy, ignore_errors=True)
    return figures_of(api.read(folder), material.gold(), outcome) | accuracy


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """False when another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def commit_of() -> str:
    """Of the sources that ran; ``-dirty`` when they differ from it."""
    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return f"{head}-dirty" if git("status", "--porcelain", "--", *SOURCES) else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    return done.stdout.strip()


def helpers(count: int, names: Sequence[str], seeds: Sequence[int] | None) -> list[subprocess.Popen[bytes]]:
    """More workers like this one."""
    command = [sys.executable, "-m", "benchmarks.learning", *names]
    command += [] if seeds is None else ["--seeds", *map(str, seeds)]
    return [subprocess.Popen(command) for _ in range(count)]
