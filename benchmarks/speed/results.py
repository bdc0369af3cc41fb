"""What do the rows say? Figures of a side, ratios between sides, and one table.

A ratio is the peer's CPU seconds of a real token over ours: medians over the steps of both. Prompts are the same, and
responses are sampled under the same conditions but not the same: a step's seconds alone would measure their luck too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.speed.contests import PEER
from benchmarks.speed.workers import Row

PHASES = ("rollout", "score", "update")
MEDIANS = ("cpu", "wall", "tokens", "response_tokens", *PHASES)
SUMMARY = (
    *(f"{side}_{size}" for side in ("same_maths", "default", "cached") for size in ("S", "M")),
    "peak_rss_gb_M",
    "peer_rss_gb_M",
    *(f"{stage}_{size}" for stage in ("sft", "reward") for size in ("S", "M")),
)
"""What the last line always has; null where nothing was measured."""
Figures = dict[str, dict[str, dict[str, Any]]]
"""By contest, then by side."""


def figures_of(counted: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, Any]]:
    """Of one contest, by side; ``ratio`` is the peer's cost of a token over the side's."""
    found = {side: figures(rows) for side, rows in counted.items() if rows}
    peer = found.get(PEER)
    for side in found.values():
        side["ratio"] = None if peer is None else peer["cpu_per_token"] / side["cpu_per_token"]
    return found


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """
    >>> row = {"cpu": 2.0, "wall": 3.0, "tokens": 100, "rss_gb": 1.0}
    >>> figures([row, row | {"rss_gb": 2.0}])["tokens_per_cpu_second"]
    50.0
    """
    per_token = median(row["cpu"] / row["tokens"] for row in rows)
    return {
        "steps": len(rows),
        **{name: median(row[name] for row in rows) for name in MEDIANS if name in rows[0]},
        "cpu_per_token": per_token,
        "tokens_per_cpu_second": 1 / per_token,
        "rss_gb": max(row["rss_gb"] for row in rows),
    }


def summary(found: Figures) -> dict[str, float | None]:
    """The last line of the benchmark: ratios, and gigabytes where the name says so."""

    def value(contest: str, side: str, name: str) -> float | None:
        number = found.get(contest, {}).get(side, {}).get(name)
        return None if number is None else round(number, 2)

    line: dict[str, float | None] = {
        f"{side}_{size}": value(f"ppo_{size}", side, "ratio")
        for side in ("same_maths", "default", "cached")
        for size in ("S", "M")
    }
    line |= {"peak_rss_gb_M": value("ppo_M", "default", "rss_gb"), "peer_rss_gb_M": value("ppo_M", PEER, "rss_gb")}
    for stage in ("sft", "reward"):
        for size in ("S", "M"):
            line[f"{stage}_{size}"] = value(f"{stage}_{size}", "same_maths", "ratio")
            line[f"{stage}_default_{size}"] = value(f"{stage}_{size}", "default", "ratio")
    return line


TITLES = {
    PEER: "TRL",
    "same_maths": "same mathematics: policy and critic trained whole",
    "default": "LoRA roles on one backbone, value head on its trunk",
    "cached": "LoRA in the upper layers, lower ones computed once",
}
STAGES = {"ppo": "PPO", "sft": "SFT", "reward": "reward model"}
HEADER = (
    "| stage, size | side | **ratio** | CPU s a step | rollout | score | update | over the floor | wall s | real tokens"
    " | tokens per CPU s | peak RSS GB |\n|" + "---|" * 12
)


def table(found: Figures) -> str:
    lines = [HEADER]
    for name, sides in found.items():
        stage, size = name.split("_")
        lines += [f"| {STAGES[stage]}, {size} | {line_of(side, numbers)} |" for side, numbers in sides.items()]
    return "\n".join(lines)


def line_of(side: str, numbers: Mapping[str, Any]) -> str:
    phases = [f"{numbers[name]:.2f}" if name in numbers else "" for name in PHASES]
    ratio = "" if side == PEER or numbers["ratio"] is None else f"**{numbers['ratio']:.1f}x**"
    rate = numbers["tokens_per_cpu_second"]
    cells = [
        TITLES[side],
        ratio,
        f"{numbers['cpu']:.2f}",
        *phases,
        f"{numbers['cpu'] / numbers['floor']:.1f}x" if "floor" in numbers else "",
        f"{numbers['wall']:.2f}",
        f"{numbers['tokens']:.0f}",
        f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}",
        f"{numbers['rss_gb']:.2f}",
    ]
    return " | ".join(cells)


GROWING = {"batch": "batch", "length": "responses, size S", "length_wide": "responses, width of size M"}


def growth(found: Figures) -> dict[str, float]:
    """Cost of a token at each scale over that at the first, by name: 1 is proportional, above it is worse."""
    return {
        f"{name}_{scale}": round(numbers["cpu_per_token"] / next(iter(scales.values()))["cpu_per_token"], 3)
        for name, scales in found.items()
        for scale, numbers in scales.items()
    }


def linear_table(found: Figures) -> str:
    relative = growth(found)
    lines = [
        "| what grows | scale | CPU s a step | real tokens | CPU ms a token | over x1 | arithmetic over x1 |",
        "|" + "---|" * 7,
    ]
    for name, scales in found.items():
        first = next(iter(scales.values()))
        for scale, numbers in scales.items():
            lines.append(
                f"| {GROWING[name]} | {scale} | {numbers['cpu']:.2f} | {numbers['tokens']:.0f} "
                f"| {1000 * numbers['cpu_per_token']:.2f} | {relative[f'{name}_{scale}']:.2f} "
                f"| {numbers['arithmetic'] / first['arithmetic']:.2f} |"
            )
    return "\n".join(lines)
