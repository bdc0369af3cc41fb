"""The ledger as Markdown; docs/unmoved.md holds the same tables between marks, and a test compares them.

Of a switch the newest runs count whose product run has the same hash: same recipe, seed and sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.ledger import Entry
from benchmarks.learning.tables import markdown
from benchmarks.unmoved.switches import PRODUCT, SWITCHES, Switch
from benchmarks.unmoved.verdicts import Comparison, Difference, Figures, compared, moments

PAGE = Path(__file__).parents[2] / "docs" / "unmoved.md"
MARKS = re.compile(r"<!-- table (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
LEAST_SEEDS = 2


def pairs_of(switch: Switch, entries: Sequence[Entry]) -> list[tuple[Figures, Figures]]:
    """(product, with the switch) of each seed that has both, in the order of the seeds."""
    products = {e.config: e.figures for e in entries if (e.experiment, e.setting) == (switch.recipe, PRODUCT)}
    mine = {e.seed: e for e in entries if (e.experiment, e.setting) == (switch.recipe, switch.name)}
    return [(products[e.config], e.figures) for _, e in sorted(mine.items()) if e.config in products]


def comparisons(entries: Sequence[Entry]) -> dict[str, Comparison]:
    """Of the switches with enough seeds, by name."""
    pairs = {switch.name: pairs_of(switch, entries) for switch in SWITCHES}
    return {name: compared(found) for name, found in pairs.items() if len(found) >= LEAST_SEEDS}


def switch_table(entries: Sequence[Entry]) -> str:
    rows = [[s.name, s.recipe, s.what, s.instead] for s in SWITCHES]
    return markdown(["switch", "recipe", "the product", "switched back"], rows)


def result_table(entries: Sequence[Entry]) -> str:
    found = comparisons(entries)
    rows = [result_row(switch, found[switch.name]) for switch in SWITCHES if switch.name in found]
    heads = ["switch", "verdict", "weights bit-equal", "same tokens", "apart, first update", "last"]
    return markdown([*heads, "reward curve", "reward, end", "KL, end"], rows)


def result_row(switch: Switch, c: Comparison) -> list[str]:
    shares = [f"{count} of {c.steps}" for count in (c.equal_weights, c.equal_draws)]
    numbers = [short(number) for number in (c.first, c.last, c.curve)]
    return [switch.name, f"**{c.verdict}**", *shares, *numbers, told(c.reward), told(c.kl)]


def told(difference: Difference) -> str:
    if difference.mean == difference.error == 0:
        return "0"
    return (
        f"{difference.mean:+.1g} ± {difference.error:.1g}"
        if abs(difference.mean) < 1e-3
        else (f"{difference.mean:+.3f} ± {difference.error:.3f}")
    )


def short(number: float | None) -> str:
    if number is None:
        return "-"
    return "0" if number == 0 else f"{number:.1g}"


def product_table(entries: Sequence[Entry]) -> str:
    newest = {(e.experiment, e.seed): e.figures for e in entries if e.setting == PRODUCT}
    rows: list[list[str]] = []
    for recipe in dict.fromkeys(name for name, _ in newest):
        runs = [figures for (name, _), figures in sorted(newest.items()) if name == recipe]
        if len(runs) >= LEAST_SEEDS:
            start = moments([figures["reward"][0] for figures in runs])[0]
            ends = [moments([figures["end"][what] for figures in runs]) for what in ("reward", "kl")]
            cells = [f"{mean:.2f}, spread {spread:.2f}" for mean, spread in ends]
            rows.append([recipe, str(len(runs)), f"{start:.2f}", *cells])
    return markdown(["recipe", "seeds", "reward, first step", "reward, end", "KL, end"], rows)


def made_table(entries: Sequence[Entry]) -> str:
    """What was run, and what it took."""
    commits = ", ".join(dict.fromkeys(entry.commit for entry in entries))
    packages: Mapping[str, Any] = entries[-1].packages if entries else {}
    told = ", ".join(f"{name} {version}" for name, version in packages.items())
    minutes = sum(entry.seconds for entry in entries) / 60
    return markdown(
        ["runs", "CPU minutes", "commit", "packages"], [[str(len(entries)), f"{minutes:.0f}", commits, told]]
    )


TABLES: Mapping[str, Callable[[Sequence[Entry]], str]] = {
    "switches": switch_table,
    "results": result_table,
    "product": product_table,
    "made": made_table,
}


def filled(page: str, entries: Sequence[Entry]) -> str:
    """The page with every table between its marks as the ledger has it now."""
    return MARKS.sub(lambda found: f"<!-- table {found[1]} -->\n{TABLES[found[1]](entries)}<!-- end -->", page)
