"""What do the figures say? One Markdown table an experiment, from the ledger alone.

A cell is the mean over the seeds and, in brackets, the lowest and highest of them. ``docs/science.md`` holds the same
tables between marks; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.experiments import CONTROLLER, EXPERIMENTS, OVEROPTIMISATION
from benchmarks.learning.figures import curve
from benchmarks.learning.fit import Fit, peak_kl, rl_fit
from benchmarks.learning.ledger import Results
from benchmarks.learning.settings import Experiment, Setting

PAGE = Path(__file__).parents[2] / "docs" / "science.md"
MARKS = re.compile(r"<!-- table (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
Figures = Mapping[str, Any]
Column = tuple[str, Callable[[Figures], float | None], str]
"""Heading, what it reads, and how a number is written."""

START: Column = ("true reward, start", lambda f: f["start"]["true"][0], ".2f")
END: Column = ("end", lambda f: f["end"]["true"][0], ".2f")
KL_END: Column = ("KL, end", lambda f: f["end"]["kl"], ".1f")
KL_LAST: Column = ("KL, last third", lambda f: f["last_third"]["kl"], ".1f")
WORDS: Column = ("independent judge, end", lambda f: f["end"]["independent"][0], "+.2f")
TOKENS: Column = ("tokens", lambda f: f["end"]["tokens"], ".1f")
DISTINCT: Column = ("distinct-3", lambda f: f["end"]["distinct_3"], ".2f")
STEPS_TO: Column = ("steps to 0.8", lambda f: f["steps_to"]["0.8"], ".0f")
RESULT = (START, END, WORDS, KL_END, TOKENS, DISTINCT)
COLUMNS: dict[str, Sequence[Column]] = {
    "frontier": RESULT,
    "critic": (
        ("explained variance, mean", lambda f: f["ev"]["mean"], ".2f"),
        ("at step 10", lambda f: f["ev"]["step_10"], ".2f"),
        ("at the end", lambda f: f["ev"]["end"], ".2f"),
        END,
        KL_LAST,
    ),
    "clip": (
        ("largest move of a step, nats a token", lambda f: f["peaks"]["approx_kl"], ".3f"),
        ("steps over 0.05", lambda f: f["peaks"]["spikes"], ".0f"),
        ("KL, peak", lambda f: f["peaks"]["kl"], ".1f"),
        STEPS_TO,
        *RESULT[1:],
    ),
    "batch": (
        ("steps", lambda f: f["steps"], ".0f"),
        ("KL, peak", lambda f: f["peaks"]["kl"], ".1f"),
        KL_LAST,
        *RESULT[1:],
    ),
}
DEFAULT_COLUMNS = (STEPS_TO, *RESULT[1:], ("explained variance, mean", lambda f: f["ev"]["mean"], ".2f"))


def table_of(experiment: Experiment, results: Results) -> str:
    if experiment is CONTROLLER:
        return controller_table(results)
    if experiment is OVEROPTIMISATION:
        return over_table(results)
    columns = COLUMNS.get(experiment.name, DEFAULT_COLUMNS)
    runs = [setting for setting in experiment.settings if setting.kind == "ppo"]
    rows = [row_of(experiment, setting, columns, results) for setting in runs]
    table = markdown(["setting", "seeds", *(column[0] for column in columns)], [row for row in rows if row])
    choices = [setting for setting in experiment.settings if setting.kind == "best_of_n"]
    return "\n".join([table, *(best_of_n_table(experiment, setting, results) for setting in choices)])


def row_of(experiment: Experiment, setting: Setting, columns: Sequence[Column], results: Results) -> list[str]:
    found = results.figures(experiment.name, setting.name)
    if not found:
        return []
    cells = [spread([read(figures) for figures in found.values()], how) for _, read, how in columns]
    return [setting.name, " ".join(map(str, found)), *cells]


def best_of_n_table(experiment: Experiment, setting: Setting, results: Results) -> str:
    found = list(results.figures(experiment.name, setting.name).values())
    if not found:
        return ""
    rows = []
    for place, n in enumerate(found[0]["n"]):
        kl = f"{found[0]['kl'][place]:.2f}"
        rows.append([str(n), kl, spread([figures["true"][place][0] for figures in found], ".2f")])
    return "\n" + markdown([f"{setting.name}: n", "KL", "true reward"], rows)


def controller_table(results: Results) -> str:
    rows: list[list[str]] = []
    for setting in CONTROLLER.settings:
        target = float(setting.overrides["kl.target"])
        for seed, figures in results.figures(CONTROLLER.name, setting.name).items():
            last = figures["last_third"]
            off = last["kl"] / target - 1.0
            verdict = "yes" if abs(off) <= HOLDS else "no"
            beta = [value for _, value in curve(figures, "beta")]
            cells = [f"{last['kl']:.2f}", f"{off:+.0%}", verdict, f"{figures['peaks']['kl']:.1f}"]
            rows.append([setting.name, str(seed), *cells, f"{beta[0]:.3g} → {beta[-1]:.3g}", str(figures["alarms"])])
    heads = ["setting", "seed", "KL, last third", "off by", "within 30 %", "KL, peak", "beta", "alarms"]
    return markdown(heads, rows)


HOLDS = 0.3
"""Share of the target within which the last third's mean KL counts as held."""


def over_table(results: Results) -> str:
    heads = ["setting", "seed", "reward model right", "true score: peak", "KL there", "end", "KL", "proxy, end"]
    rows: list[list[str]] = []
    for setting in OVEROPTIMISATION.settings:
        for seed, figures in results.figures(OVEROPTIMISATION.name, setting.name).items():
            if setting.kind == "ppo":
                rows.append([setting.name, str(seed), *over_cells(figures)])
    return markdown([*heads, "alpha", "beta", "R²", "peak KL of the fit"], rows)


def over_cells(figures: Figures) -> list[str]:
    kl, odds, proxy = ([value for _, value in curve(figures, name)] for name in ("kl", "odds", "proxy"))
    top = max(range(len(odds)), key=lambda i: odds[i])
    fit = rl_fit(kl, odds)
    cells = [f"{figures['reward_accuracy']:.0%}", f"{odds[top]:.2f}", f"{kl[top]:.1f}"]
    cells += [f"{tail(odds):.2f}", f"{tail(kl):.1f}", f"{tail(proxy):.2f}"]
    return cells + fit_cells(fit)


def tail(values: Sequence[float]) -> float:
    """Mean of the last five points."""
    last = values[-5:]
    return sum(last) / len(last)


def fit_cells(fit: Fit | None) -> list[str]:
    if fit is None:
        return ["-"] * 4
    peak = peak_kl(fit)
    r2 = "-" if fit.r2 is None else f"{fit.r2:.2f}"
    return [f"{fit.alpha:.2f}", f"{fit.beta:.2f}", r2, "none" if peak is None else f"{peak:.1f}"]


def spread(values: Sequence[float | None], how: str) -> str:
    """
    >>> spread([0.5, 0.7], ".2f"), spread([0.5], ".2f"), spread([None, 3.0], ".0f")
    ('0.60 (0.50 to 0.70)', '0.50', '3 (1 of 2 runs)')
    """
    known = [value for value in values if value is not None]
    if not known:
        return "never"
    mean = format(sum(known) / len(known), how)
    if len(known) < len(values):
        return f"{mean} ({len(known)} of {len(values)} runs)"
    return mean if len(known) == 1 else f"{mean} ({format(min(known), how)} to {format(max(known), how)})"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(page: str, results: Results) -> str:
    """The page with every table between its marks as the ledger has it now."""
    return MARKS.sub(lambda found: marked(found[1], table_of(EXPERIMENTS[found[1]], results)), page)


def marked(name: str, table: str) -> str:
    return f"<!-- table {name} -->\n{table}<!-- end -->"
