"""How much faster is a step than the peer's? One run, taking turns; conditions, table, and a line of JSON at the end.

    make bench-peers                                   # builds the peer's environment, then all of it, about 40 minutes
    python -m benchmarks.speed --only S --steps 2      # a quick look, minutes
    python -m benchmarks.speed --sides same_maths default --only M --skip-stages
    python -m benchmarks.speed --write                 # docs/speed.json and the table of docs/speed.md

A run that is stopped goes on where it was (``--anew`` begins again); ``--report`` tells what there is so far. Parts
that are measured one after the other on the same commit stand in one table.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.speed.conditions import conditions, told
from benchmarks.speed.contests import CONTESTS, OURS, PEER, PEERS, ROOT, Command, Contest, chosen, command_of
from benchmarks.speed.floor import TRAINS, operations, operations_per_second, weights_of
from benchmarks.speed.material import material
from benchmarks.speed.page import write_page
from benchmarks.speed.results import Figures, figures_of, summary, table
from benchmarks.speed.series import Series, begin, play
from benchmarks.speed.sizes import SIZES, Size
from benchmarks.speed.workers import Row

ROWS = ROOT / "runs" / "speed" / "rows.jsonl"


def main() -> int:
    asked = arguments().parse_args()
    contests = chosen(asked.only, ["ppo"] if asked.skip_stages else asked.stages, asked.steps)
    sides = asked.sides
    if PEER in sides and not PEERS.is_dir():
        print("the peer's environment is missing: make bench-peers (or --sides same_maths default)", file=sys.stderr)
        return 1
    if asked.anew:
        asked.rows.unlink(missing_ok=True)
    gflops = round(operations_per_second() / 1e9, 1)
    series = Series(asked.rows, conditions() | {"gflops": gflops})
    print(told(series.conditions), flush=True)
    folders = {name: material(SIZES[name]).folder for name in asked.only}
    if not asked.report:
        begin(series, contests, sides)
        for contest in contests:
            for row in play(series, contest, contest.among(sides), partial(command_in, folders)):
                print(line(row), file=sys.stderr, flush=True)
    found = figures_by_contest(series, sides)
    print(f"\n{table(found)}\n")
    result = {"conditions": series.conditions, "summary": summary(found), "figures": found, "rows": series.rows}
    asked.rows.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    if asked.write:
        write_page("contests", result)
    print(json.dumps(result["summary"]))
    return 0


def figures_by_contest(series: Series, sides: list[str]) -> Figures:
    """Of all contests that have rows so far."""
    found = {each.name: figures_of({side: series.counted(each, side) for side in sides}) for each in CONTESTS}
    for each in CONTESTS:
        if each.stage == "ppo" and found[each.name]:
            size = SIZES[each.size]
            set_floors(found[each.name], size, material(size).folder, series.conditions["gflops"])
    return {name: sides_of for name, sides_of in found.items() if sides_of}


def set_floors(sides: dict[str, dict[str, Any]], size: Size, folder: Path, gflops: float) -> None:
    """``floor``: seconds that the arithmetic of a side's median step takes at best."""
    weights = weights_of(folder / "model")
    for side, numbers in sides.items():
        work = operations(weights, numbers["tokens"], numbers["response_tokens"], size.epochs, TRAINS[side])
        numbers["floor"] = work / 1e9 / gflops


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Steps of this library against the peer's, in one run.")
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES), help="sizes")
    parser.add_argument("--stages", nargs="+", choices=("ppo", "sft", "reward"), default=["ppo", "sft", "reward"])
    parser.add_argument("--skip-stages", action="store_true", help="PPO alone")
    parser.add_argument("--sides", nargs="+", choices=(PEER, *OURS), default=[PEER, *OURS])
    parser.add_argument("--steps", type=int, help="counted steps of each side")
    parser.add_argument("--rows", type=Path, default=ROWS, help="where each step is written as it ends")
    parser.add_argument("--anew", action="store_true", help="forget what a stopped run measured")
    parser.add_argument("--report", action="store_true", help="measure nothing, tell what there is")
    parser.add_argument("--write", action="store_true", help="write docs/speed.json and the table of docs/speed.md")
    return parser


def command_in(folders: dict[str, Path], contest: Contest, side: str) -> Command:
    return command_of(contest, side, folders[contest.size])


def line(row: Row) -> str:
    phases: dict[str, Any] = {name: row[name] for name in ("rollout", "score", "update") if name in row}
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases.items())
    told_parts = f" ({parts})" if parts else ""
    return (
        f"{row['stage']} {row['size']} {row['side']} step {row['step']}: {row['cpu']:.2f} CPU s{told_parts}, "
        f"{row['tokens']} tokens, {row['rss_gb']:.2f} GB"
    )


if __name__ == "__main__":
    sys.exit(main())
