"""Did the work on speed move learning? The demo's PPO with each optimisation switched back, against the product.

    python -m benchmarks.unmoved                    run what the ledger lacks for the sources as they are
    python -m benchmarks.unmoved --only RMSNorm     the runs of switches with this in their name
    python -m benchmarks.unmoved --minutes 20       start no run once so many CPU minutes are spent
    python -m benchmarks.unmoved --list             what is done and what is missing; runs nothing
    python -m benchmarks.unmoved --tables           the tables, from the ledger alone
    python -m benchmarks.unmoved --write            the same, into docs/unmoved.md

Results go to benchmarks/unmoved/ledger.jsonl, one line a run. Models lie in runs/learning/, which git ignores.
Exit code: 1 when a switch moved learning, or a fault did not; 2 without 512-bit vectors.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.ledger import Entry, Ledger
from benchmarks.learning.work import commit_of, git
from benchmarks.unmoved.runs import MATERIAL_SEED, SEEDS, common_hash, config_of, run_of
from benchmarks.unmoved.switches import SWITCHES, Switch, product_of
from benchmarks.unmoved.tables import PAGE, TABLES, comparisons, filled
from benchmarks.unmoved.verdicts import MOVED
from tightrope.kernels.products import WIDE_VECTORS

LEDGER = Path(__file__).parent / "ledger.jsonl"
Missing = tuple[Switch, int, str]
"""Switch, seed and hash of what it has in common with the product's run."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="switches whose name holds this, and the product's runs they need")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--minutes", type=float, default=35.0, help="of CPU time, for this call")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="run nothing; fill the page")
    asked, ledger = parser.parse_args(arguments), Ledger(LEDGER)
    if asked.tables or asked.write:
        show(ledger.read(), asked.write)
        return 0
    wanted = [switch for switch in SWITCHES if asked.only in switch.name]
    missing = list(missing_runs(wanted, asked.seeds, ledger, sources()))
    if asked.list:
        print("\n".join(f"missing: {switch.recipe} / {switch.name} / seed {seed}" for switch, seed, _ in missing))
        return 0
    if not WIDE_VECTORS:
        print("error: without 512-bit vectors the product has nothing of oneDNN to switch back", file=sys.stderr)
        return 2
    work(missing, ledger, asked.minutes, material_runner() if missing else run_of)
    return verdict(ledger.read())


def missing_runs(wanted: Sequence[Switch], seeds: Sequence[int], ledger: Ledger, sources: str) -> Iterator[Missing]:
    """Seed by seed, the product's runs first, so that whatever was done before a stop can be compared."""
    done = {(entry.run, entry.config) for entry in ledger.read()}
    products = [product_of(recipe) for recipe in dict.fromkeys(switch.recipe for switch in wanted)]
    for seed in seeds:
        for switch in (*products, *wanted):
            common = common_hash(switch.recipe, seed, sources)
            if ((switch.recipe, switch.name, seed), common) not in done:
                yield switch, seed, common


def work(missing: Sequence[Missing], ledger: Ledger, minutes: float, run: Callable[..., dict[str, Any]]) -> int:
    """``run`` takes switch and seed; returns how many runs were made."""
    commit, began = commit_of(), time.process_time()
    for number, (switch, seed, common) in enumerate(missing):
        if time.process_time() - began > 60 * minutes:
            print(f"{len(missing) - number} runs are left for the next call", file=sys.stderr)
            return number
        print(f"{switch.recipe} / {switch.name} / seed {seed}", flush=True)
        figures = run(switch, seed)
        seconds = figures.pop("cpu_seconds")
        ledger.append(Entry(switch.recipe, switch.name, seed, common, {}, commit, packages(), seconds, figures))
    return len(missing)


def material_runner() -> Callable[[Switch, int], dict[str, Any]]:
    """Makes the SFT and the reward model where they are missing, a minute and a half."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from benchmarks.learning.material import material_of
    from benchmarks.learning.settings import DEMO_MODEL

    torch.set_num_threads(1)
    found = material_of(MATERIAL_SEED, DEMO_MODEL)
    places = {
        "model": {"name": found.sft},
        "data": {"train": found.files.prompts, "evaluation": found.files.held_out},
        "reward": {"model": found.reward_folder(DEMO_MODEL)},
    }
    return lambda switch, seed: run_of(config_of(switch.recipe, seed, places), switch)


def sources() -> str:
    """The state of ``src``: runs of different states are never compared."""
    tree = git("rev-parse", "--short=12", "HEAD:src")
    return f"{tree}-dirty" if git("status", "--porcelain", "--", "src") else tree


def packages() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "peft")}


def show(entries: Sequence[Entry], write: bool) -> None:
    if write:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), entries), encoding="utf-8")
        return
    print("\n".join(table(entries) for table in TABLES.values()))


def verdict(entries: Sequence[Entry]) -> int:
    """Prints what is not as it should be; the exit code."""
    found = comparisons(entries)
    wrong = [s for s in SWITCHES if s.name in found and (found[s.name].verdict == MOVED) != s.is_fault]
    for switch in wrong:
        print(f"{switch.name}: {found[switch.name].verdict}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
