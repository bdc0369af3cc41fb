"""How do the runs look? One chart an experiment, from the ledger alone: thin lines are seeds, thick ones their mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.chart import Panel, Points, Series, chart
from benchmarks.learning.experiments import CONTROLLER, EXPERIMENTS, FRONTIER, OVEROPTIMISATION
from benchmarks.learning.figures import curve
from benchmarks.learning.fit import NEAREST, rl_fit
from benchmarks.learning.ledger import Results
from benchmarks.learning.settings import DEMO_MODEL, PROXY_PAIRS, TRUE, Experiment

IMAGES = Path(__file__).parents[2] / "docs" / "images"
TRUE_Y, KL_Y = "gold judge, 0-1", "nats a response"
CURVES = {
    "true": ("true reward of the samples", TRUE_Y),
    "kl": ("KL to the start", KL_Y),
    "beta": ("log10 of beta", "reward a nat"),
    "explained_variance": ("explained variance of the critic", "share"),
    "approx_kl": ("move of one step", "nats a token"),
    "clip_fraction": ("clipped actions", "share"),
}
SHOWN = {
    "critic": ("explained_variance", "true"),
    "clip": ("true", "kl", "approx_kl", "clip_fraction"),
    "beta": ("true", "kl", "beta"),
}
LOWEST = {"explained_variance": -0.5}


def plots(results: Results) -> dict[str, str]:
    """File name → SVG, of every experiment that has results."""
    special = {"frontier": frontier, "controller": controller, "overoptimisation": overoptimisation}
    found: dict[str, str] = {}
    for name, experiment in EXPERIMENTS.items():
        panels = special[name](results) if name in special else curves_of(experiment, results)
        drawn = [panel for panel in panels if any(series.points for series in panel.series)]
        if drawn:
            found[f"science-{name}.svg"] = chart(experiment.question, drawn, 3 if name == "controller" else 2)
    return found


def curves_of(experiment: Experiment, results: Results) -> list[Panel]:
    settings = [setting.name for setting in experiment.settings if setting.kind == "ppo"]
    x = "samples" if experiment.name == "batch" else "step"
    return [
        Panel(CURVES[name][0], x, CURVES[name][1], over_steps(experiment, settings, name, results), LOWEST.get(name))
        for name in SHOWN.get(experiment.name, ("true", "kl"))
    ]


def over_steps(experiment: Experiment, settings: Sequence[str], name: str, results: Results) -> list[Series]:
    found: list[Series] = []
    for colour, setting in enumerate(settings):
        runs: list[Points] = []
        for figures in results.figures(experiment.name, setting).values():
            scale = figures["sequences"] if experiment.name == "batch" else 1
            points = [
                (step * scale, math.log10(v) if name == "beta" and v > 0 else v) for step, v in curve(figures, name)
            ]
            runs.append(points)
        found += seeds_and_mean(runs, colour, setting)
    return found


def seeds_and_mean(runs: Sequence[Points], colour: int, name: str) -> list[Series]:
    if len(runs) == 1:
        return [Series(runs[0], colour, name)]
    return [*(Series(points, colour, style="thin") for points in runs), Series(mean_points(runs), colour, name)]


def mean_points(runs: Sequence[Points]) -> Points:
    """Where every run has a point; a run that ended early ends the mean."""
    by_x = [dict(points) for points in runs]
    shared = [x for x in (by_x[0] if by_x else {}) if all(x in one for one in by_x)]
    return [(x, sum(one[x] for one in by_x) / len(by_x)) for x in shared]


def frontier(results: Results) -> list[Panel]:
    ends: list[Series] = []
    curves: list[Series] = []
    for colour, reward in enumerate((TRUE, DEMO_MODEL)):
        settings = [setting for setting in FRONTIER.settings if setting.reward == reward]
        means: list[tuple[float, float]] = []
        for setting in settings:
            found = list(results.figures(FRONTIER.name, setting.name).values())
            if setting.kind == "best_of_n":
                ends += best_of_n(found, colour, setting.name)
                continue
            points = [(figures["end"]["kl"], figures["end"]["true"][0]) for figures in found]
            ends.append(Series(points, colour, style="marks"))
            if points:
                means.append((sum(p[0] for p in points) / len(points), sum(p[1] for p in points) / len(points)))
        told = "the true reward" if reward == TRUE else "the learned reward"
        ends.append(Series(means, colour, f"PPO towards {told}"))
        for setting in settings:
            if setting.kind == "ppo" and setting.overrides["kl.target"] in (2.0, 8.0):
                runs = [curve(figures, "true") for figures in results.figures(FRONTIER.name, setting.name).values()]
                curves.append(Series(mean_points(runs), colour, style="line" if "8" in setting.name else "thin"))
    return [
        Panel("held-out prompts after 60 steps", "KL to the start, nats a response", TRUE_Y, ends, 0.4, 1.0, (0.85,)),
        Panel("training samples, target 8 (thick) and 2 (thin)", "step", TRUE_Y, curves, 0.4, 1.0),
    ]


def best_of_n(runs: Sequence[Mapping[str, Any]], colour: int, name: str) -> list[Series]:
    if not runs:
        return []
    kl, count = runs[0]["kl"], len(runs)
    points = [(kl[i], sum(figures["true"][i][0] for figures in runs) / count) for i in range(len(kl))]
    return [Series(points, colour, name, "dashed")]


def controller(results: Results) -> list[Panel]:
    panels: list[Panel] = []
    for name in ("kl", "beta"):
        for mode, told in MODES.items():
            settings = [setting.name for setting in CONTROLLER.settings if setting.name.startswith(mode)]
            series = over_steps(CONTROLLER, settings, name, results)
            named = [Series(s.points, s.colour, s.name.partition(", ")[2], s.style) for s in series]
            title, unit = CURVES[name]
            top = 12.0 if name == "kl" else None
            panels.append(
                Panel(f"{told}: {title}", "step", unit, named, 0.0 if top else None, top, (2, 4, 8) if top else ())
            )
    return panels


def overoptimisation(results: Results) -> list[Panel]:
    panels: list[Panel] = []
    for pairs in PROXY_PAIRS:
        series: list[Series] = []
        for figures in results.figures(OVEROPTIMISATION.name, f"{pairs} pairs").values():
            kl, odds, proxy = ([value for _, value in curve(figures, name)] for name in ("kl", "odds", "proxy"))
            distance = [math.sqrt(max(value, 0.0)) for value in kl]
            series.append(Series(list(zip(distance, proxy, strict=True)), 1, "proxy", "thin"))
            series.append(Series(list(zip(distance, odds, strict=True)), 0, "true score", "thin"))
            fit = rl_fit(kl, odds)
            if fit is not None:
                grid = [NEAREST + (max(distance) - NEAREST) * i / 40 for i in range(41)]
                points = [(d, d * (fit.alpha - fit.beta * math.log(d))) for d in grid]
                series.append(Series(points, 0, "fit of the true score", "dashed"))
        panels.append(Panel(f"reward model from {pairs:,} pairs", "d = sqrt(KL)", "standard deviations", series))
    chosen: list[Series] = []
    for colour, pairs in enumerate(PROXY_PAIRS):
        for figures in results.figures(OVEROPTIMISATION.name, f"best of n, {pairs} pairs").values():
            distance = [math.sqrt(value) for value in figures["kl"]]
            chosen.append(Series(list(zip(distance, figures["odds"], strict=True)), colour + 2, f"{pairs:,} pairs"))
    return [*panels, Panel("best of n: true score", "d = sqrt(KL)", "standard deviations", chosen)]


MODES = {"default": "default", "lookahead 0": "without looking ahead", "ziegler": "Ziegler's, horizon 10,000"}


def write(results: Results, folder: Path = IMAGES) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, picture in plots(results).items():
        (folder / name).write_text(picture)
        written.append(folder / name)
    return written
