"""What the learning experiments showed, read from their ledger: nothing is run here (``make learning`` does that)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.learning.experiments import CONTROLLER, CRITIC, FRONTIER
from benchmarks.learning.ledger import Ledger, Results
from benchmarks.learning.settings import SEEDS, TRUE
from benchmarks.proof.claims import Chapter, Claim, Work

MOST_KL, FROM, TO = 8.0, 0.55, 0.85
OFF = 0.3
NOISE = 2.0
"""Standard errors of a difference within which two settings are equal."""
DEFAULT_CRITIC = "shared, x5, warm-up"
TEXT = (
    "Read from `benchmarks/learning/ledger.jsonl`; [science.md](science.md) has the conditions, plots and tables. "
    "The controller's number is the worst of nine runs, the frontier's the worst seed of the best setting."
)


def learned(work: Work) -> Chapter:
    results = Results(Ledger().read())
    made = [claims for name, claims in CLAIMS.items() if work.wanted(name)]
    claims = [claim for of in made for claim in of(results)]
    rows = [[claim.name, f"{claim.value:.3g}"] for claim in claims]
    return Chapter("Learning experiments", TEXT, ["what", "value"], rows, claims)


def controller_claims(results: Results) -> list[Claim]:
    found: list[float] = []
    for setting in CONTROLLER.settings:
        if setting.name.startswith("default"):
            target = float(setting.overrides["kl.target"])
            runs = results.figures(CONTROLLER.name, setting.name)
            found += [
                abs(runs[seed]["last_third"]["kl"] / target - 1.0) if seed in runs else math.nan for seed in SEEDS
            ]
    return [Claim("controller: largest miss of the KL target in the last third", worst(found), OFF, at_most=True)]


def frontier_claims(results: Results) -> list[Claim]:
    """Of the settings that ended within the KL on every seed, the one whose worst seed is best."""
    names = [setting.name for setting in FRONTIER.settings if setting.reward == TRUE and setting.kind == "ppo"]
    found = [results.figures(FRONTIER.name, name) for name in names]
    whole = [runs for runs in found if all(seed in runs for seed in SEEDS)]
    starts = [runs[seed]["start"]["true"][0] for runs in whole for seed in SEEDS]
    within = [runs for runs in whole if all(runs[seed]["end"]["kl"] <= MOST_KL for seed in SEEDS)]
    ends = [min(runs[seed]["end"]["true"][0] for seed in SEEDS) for runs in within]
    return [
        Claim("frontier: true reward before PPO, highest seed", worst(starts or [math.nan]), FROM, at_most=True),
        Claim(
            f"frontier: true reward after 60 steps at KL <= {MOST_KL:g}, lowest seed", max(ends, default=math.nan), TO
        ),
    ]


def critic_claims(results: Results) -> list[Claim]:
    """How far the default lies behind the best learning rate and warm-up of the same critic, in standard errors."""
    settings = [setting.name for setting in CRITIC.settings if setting.name.startswith("shared")]
    claims: list[Claim] = []
    for what, of in (("explained variance", ("ev", "mean")), ("true reward", ("last_third", "true"))):
        values = {name: [run[of[0]][of[1]] for run in results.figures(CRITIC.name, name).values()] for name in settings}
        behind = worst([errors_behind(values[DEFAULT_CRITIC], values[name]) for name in settings])
        claims.append(
            Claim(f"critic: {what}, default behind the best shared one, standard errors", behind, NOISE, at_most=True)
        )
    return claims


def errors_behind(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """(mean of theirs - mean of ours) / its standard error; 0 for the same numbers, NaN for fewer than two."""
    if min(len(ours), len(theirs)) < 2:
        return math.nan
    if list(ours) == list(theirs):
        return 0.0
    pairs = [(sum(v) / len(v), v) for v in (ours, theirs)]
    error = math.sqrt(sum(sum((x - m) ** 2 for x in v) / (len(v) - 1) / len(v) for m, v in pairs))
    return (pairs[1][0] - pairs[0][0]) / error if error else math.nan


def worst(values: Sequence[float]) -> float:
    """The largest; NaN where one is missing."""
    return math.nan if any(math.isnan(v) for v in values) else max(values, default=math.nan)


CLAIMS = {"controller": controller_claims, "frontier": frontier_claims, "critic": critic_claims}
