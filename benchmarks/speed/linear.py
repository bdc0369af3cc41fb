"""Does a step cost in proportion to its tokens? Batch x1, x2, x4, and responses of 128, 256 and 512 tokens, these in a
small model and in the width of SmolLM2-135M.

    python -m benchmarks.speed.linear            # product default, about ten minutes on one core
    python -m benchmarks.speed.linear --mathematics same_maths --steps 1
    python -m benchmarks.speed.linear --write    # into docs/speed.json and docs/speed.md

The scales take turns; figures are CPU seconds of a real token, prompt or response, over those at x1. Minibatches keep
their size, so that a batch twice as large has twice as many optimizer steps. Attention grows with the square of the
length: what that alone adds is told beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.speed.conditions import conditions, told
from benchmarks.speed.contests import OURS, ROOT, Command, Contest, ours
from benchmarks.speed.floor import operations_a_token, weights_of
from benchmarks.speed.material import material
from benchmarks.speed.page import write_page
from benchmarks.speed.results import figures_of, growth, linear_table
from benchmarks.speed.series import Series, begin, play
from benchmarks.speed.sizes import E, S, W

SCALES = (1, 2, 4)
SERIES = {"batch": S, "length": E, "length_wide": W}
FIRST_LENGTH = 128
ROWS = ROOT / "runs" / "speed" / "linear.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(description="How the cost of a PPO step grows.")
    parser.add_argument("--mathematics", choices=OURS, default="default")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--write", action="store_true", help="write docs/speed.json and the table of docs/speed.md")
    asked = parser.parse_args()
    series = Series(asked.rows, conditions() | {"mathematics": asked.mathematics})
    print(told(series.conditions), flush=True)
    for size in SERIES.values():
        material(size)  # not while a scale's clock runs
    contests = {name: Contest("ppo", size.name, asked.steps) for name, size in SERIES.items()}
    sides = [f"x{scale}" for scale in SCALES]
    begin(series, list(contests.values()), sides)
    found = {}
    for name, contest in contests.items():
        for row in play(series, contest, sides, lambda each, side: command_of(each, side, asked.mathematics)):
            print(f"{name} {row['side']}: {row['cpu']:.2f} CPU s, {row['tokens']} tokens", file=sys.stderr, flush=True)
        found[name] = figures_of({side: series.counted(contest, side) for side in sides})
        for side, numbers in found[name].items():
            sequences = SERIES[name].prompts * (scale_of(side) if name == "batch" else 1)
            numbers["arithmetic"] = operations_a_token(
                weights_of(material(SERIES[name]).model), numbers["tokens"], numbers["response_tokens"], sequences
            )
    print(f"\n{linear_table(found)}\n")
    result = {"conditions": series.conditions, "summary": growth(found), "figures": found, "rows": series.rows}
    asked.rows.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    if asked.write:
        write_page("linear", result)
    print(json.dumps(result["summary"]))
    return 0


def scale_of(side: str) -> int:
    """
    >>> scale_of("x4")
    4
    """
    return int(side.removeprefix("x"))


def command_of(contest: Contest, side: str, mathematics: str) -> Command:
    scale = scale_of(side)
    if contest.size == S.name:
        option = ["--prompts", str(scale * S.prompts)]
    else:
        option = ["--new-tokens", str(scale * FIRST_LENGTH)]
    return ours([contest.size, mathematics, "--label", side, *option])


if __name__ == "__main__":
    sys.exit(main())
