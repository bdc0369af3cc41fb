"""Learning experiments: run what is missing, draw the plots, print the tables.

python -m benchmarks.learning NAME [NAME ...] [--seeds 0 1 2] [--workers N]
python -m benchmarks.learning all --list       what is done and what is missing
python -m benchmarks.learning plots            docs/images/science-*.svg, from the ledger alone
python -m benchmarks.learning tables [--write] Markdown, from the ledger alone; --write puts them into docs/science.md

Results go to benchmarks/learning/ledger.jsonl, one line a run; what is there is not run again. Models and samples lie
in runs/learning/, which git ignores.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from benchmarks.learning.experiments import EXPERIMENTS
from benchmarks.learning.ledger import Ledger, Results
from benchmarks.learning.settings import Experiment, config_hash


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=[*EXPERIMENTS, "all", "plots", "tables"], metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="of tables: into the page")
    asked = parser.parse_args()
    ledger = Ledger()
    if "plots" in asked.names:
        from benchmarks.learning.plots import write

        print("\n".join(map(str, write(Results(ledger.read())))))
    if "tables" in asked.names:
        tables(Results(ledger.read()), asked.write)
    names = list(EXPERIMENTS) if "all" in asked.names else [name for name in asked.names if name in EXPERIMENTS]
    chosen = [EXPERIMENTS[name] for name in names]
    if asked.list:
        print("\n".join(state_of(experiment, asked.seeds, ledger) for experiment in chosen))
    elif chosen:
        run_all(chosen, asked.seeds, asked.workers, ledger)
    return 0


def run_all(chosen: Sequence[Experiment], seeds: Sequence[int] | None, workers: int, ledger: Ledger) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from benchmarks.learning.material import ROOT
    from benchmarks.learning.work import helpers, run_setting, work

    torch.set_num_threads(1)  # the environment is read when torch loads, which has happened
    more = helpers(workers - 1, [experiment.name for experiment in chosen], seeds)
    for experiment in chosen:
        work(experiment, seeds or experiment.seeds, ledger, ROOT, run_setting)
    for helper in more:
        helper.wait()


def state_of(experiment: Experiment, seeds: Sequence[int] | None, ledger: Ledger) -> str:
    lines = [f"{experiment.name}: {experiment.question}"]
    entries = ledger.read()
    done = {(entry.run, entry.config) for entry in entries}
    older = {entry.run for entry in entries}
    for setting in experiment.settings:
        states: list[str] = []
        for seed in seeds or experiment.seeds:
            run = (experiment.name, setting.name, seed)
            is_done = (run, config_hash(setting, seed)) in done
            states.append(f"{seed} done" if is_done else f"{seed} stale" if run in older else f"{seed} missing")
        lines.append(f"  {setting.name}: {', '.join(states)}")
    return "\n".join(lines)


def tables(results: Results, write: bool) -> None:
    from benchmarks.learning.tables import PAGE, filled, table_of

    if write:
        PAGE.write_text(filled(PAGE.read_text(), results))
        return
    for experiment in EXPERIMENTS.values():
        print(f"{experiment.name}\n\n{table_of(experiment, results)}")


if __name__ == "__main__":
    sys.exit(main())
