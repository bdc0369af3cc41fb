"""Does every option of PPO reach a run? Each is switched on alone and must change what the run logs.

``RUNS`` is the register; ``demands`` reads the option list of ``tightrope ppo`` and asks for one run with every word of
a choice, another number, a schedule where one may stand, and null where it means something. An option without a run
fails here. Checks of what each option changes to are in ``test_ppo_options``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.invariance.test_resume import differing, interrupted_and_resumed, logged
from tests.runs import Files, run_quietly, tiny_config, tiny_files
from tightrope.algorithms.options import CONFIGS
from tightrope.assemble.stage import Finished
from tightrope.config.catalogue import Option, options_of
from tightrope.config.schema import RunConfig

SECTIONS = ("ppo.", "kl.", "reward.", "rollout.", "optimizer.")
REFUSED = {"rollout.top_k", "rollout.top_p"}
"""Options whose only job is to be refused; see test_config_load."""
WAITING = (
    "reward.sources.deadline",
    "reward.sources.retries",
    "reward.sources.retry_wait",
    "reward.sources.http.",
    "reward.sources.code.",
)
"""How a source is asked, not what it says: the run must not change; see the tests of sources in tests/journeys."""

Changes = Mapping[str, Any]
RISING = {"from": 0.01, "to": 0.05}
BASE: Changes = {
    "ppo.epochs": 2,
    "ppo.minibatches": 2,
    "ppo.value_warmup_steps": 0,
    "reward.function": "tests.runs:word_share",
    "reward.normalise_samples": 16,
    "rollout.prompts_per_step": 6,
    "rollout.samples_per_prompt": 2,
    "rollout.max_new_tokens": 6,
    "evaluation.prompts": 0,
}
STEPS = 3  # at 2, half a cosine and a line are the same
LOSS = {"kl.placement": "loss", "kl.estimator": "k2"}
FIXED = {"kl.mode": "fixed"}
BUDGET = {"reward.length.kind": "over_budget", "reward.length.budget": 2, "reward.length.cost": 0.1}
OVERLONG = {"reward.length.kind": "soft_overlong", "reward.length.budget": 5, "reward.length.buffer": 3}
FAR = {"optimizer.learning_rate": 0.1}
SOURCES = {
    "reward.function": None,
    "reward.sources": (
        {"name": "characters", "function": "tests.runs:length_reward"},
        {"name": "words", "function": "tests.runs:word_share", "weight": 2.0},
    ),
}
"""A key below ``reward.sources`` is that of the last entry."""
GATED = {**SOURCES, "reward.sources.gate.below": 2.0, "reward.sources.gate.cap": -1.0}
LEARNED = {"reward.function": None, "reward.model": "REWARD MODEL"}


@dataclass(frozen=True)
class Switch:
    """``key: value`` beside other keys it needs. Compared with a run of ``against``: absent, the same without ``key``;
    None where the config is refused without it."""

    key: str
    value: Any
    beside: Changes = field(default_factory=dict)
    against: Changes | None = field(default_factory=lambda: {"": ""})

    @property
    def changes(self) -> Changes:
        return {**self.beside, self.key: self.value}

    @property
    def other(self) -> Changes | None:
        return self.beside if self.against == {"": ""} else self.against

    @property
    def name(self) -> str:
        return f"{self.key}={json.dumps(self.value)}"


RUNS = [
    Switch("ppo.epochs", 1),
    Switch("ppo.minibatches", 3),
    Switch("ppo.clip_range", 0.001),
    Switch("ppo.clip_range", {"from": 0.001, "to": 0.002}),
    Switch("ppo.clip_range_high", 0.28, {"ppo.clip_range": 0.001}),
    Switch("ppo.clip_range_high", {"from": 0.002, "to": 0.1}, {"ppo.clip_range": 0.001}),
    Switch("ppo.dual_clip", 1.0001),
    Switch("ppo.loss_aggregation", "sequence_mean_token_mean"),
    Switch("ppo.loss_aggregation", "sequence_mean_token_sum"),
    Switch("ppo.loss_aggregation", "token_sum_const"),
    Switch("ppo.entropy_coef", 0.1),
    Switch("ppo.entropy_coef", {"from": 0.1, "to": 0.0}),
    Switch("ppo.value_clip", 0.001),
    Switch("ppo.value_clip", {"from": 0.001, "to": 0.002}),
    Switch("ppo.value_clip", None, FAR),
    Switch("ppo.value_clip_unit", "return_std", {"ppo.value_clip": 0.001}),
    Switch("ppo.value_coef", 1.0),
    Switch("ppo.value_coef", {"from": 1.0, "to": 0.5}),
    Switch("ppo.gamma", 0.9),
    Switch("ppo.lam", 0.5),
    Switch("ppo.critic_lam", 1.0),
    Switch("ppo.lam_alpha", 0.3),
    Switch("ppo.bootstrap_truncated", True),
    Switch("ppo.whiten_rewards", True),
    Switch("ppo.advantage_clip", 0.1),
    Switch("ppo.whiten_advantages", False),
    Switch("ppo.value_warmup_steps", 1),
    Switch("ppo.target_kl", 1e-9),
    Switch("ppo.target_kl", None, FAR),
    Switch("ppo.critic", "separate"),
    Switch("kl.beta", 0.2),
    Switch("kl.beta", {"from": 1.0, "to": 0.5, "shape": "cosine"}, FIXED),
    Switch("kl.beta", {"from": 1.0, "to": 0.5, "shape": "constant"}, FIXED),
    Switch("kl.placement", "loss", {"kl.estimator": "k2"}, against={}),
    Switch("kl.estimator", "k2", {"kl.placement": "loss"}, against={"kl.placement": "loss", "kl.estimator": "k3"}),
    Switch("kl.estimator", "k3", {"kl.placement": "loss"}, against=LOSS),
    Switch("kl.estimator", "ratio_k3", {"kl.placement": "loss"}, against=LOSS),
    Switch("kl.mode", "fixed"),
    Switch("kl.mode", "ziegler"),
    Switch("kl.target", 0.5),
    Switch("kl.gain", 0.02),
    Switch("kl.lookahead", 0.0),
    Switch("kl.max_step", 0.01),
    Switch("kl.beta_min", 0.049),
    Switch("kl.beta_max", 0.051, {"kl.target": 0.01, **FAR}),
    Switch("kl.horizon", 100, {"kl.mode": "ziegler"}),
    Switch("kl.allow_zero", True, {**LEARNED, **FIXED, "kl.beta": 0.0}, against=None),
    Switch("reward.model", "REWARD MODEL", {"reward.function": None}, against={}),
    Switch("reward.function", "tests.runs:word_share", {"reward.model": None}, against=LEARNED),
    Switch("reward.normalise", "off"),
    Switch("reward.normalise", "manifest", LEARNED),
    Switch("reward.normalise_samples", 8),
    Switch("reward.missing_eos.mode", "replace"),
    Switch("reward.missing_eos.mode", "off"),
    Switch("reward.missing_eos.value", 2.0),
    Switch("reward.missing_eos.value", {"from": 2.0, "to": 0.5}),
    Switch("reward.scale", "running_std", {"reward.normalise": "off"}),
    Switch("reward.clip", 0.1),
    Switch("reward.length_cost", 0.1),
    Switch("reward.length_cost", RISING),
    Switch("reward.length.kind", "over_budget", BUDGET, against={}),
    Switch("reward.length.kind", "soft_overlong", OVERLONG, against={}),
    Switch("reward.length.kind", "stop_properly", {"reward.length.cost": 0.5}),
    Switch("reward.length.cost", 0.5, {**BUDGET}, against=BUDGET),
    Switch("reward.length.cost", RISING, {**BUDGET}, against=BUDGET),
    Switch("reward.length.budget", 3, {**BUDGET}, against=BUDGET),
    Switch("reward.length.buffer", 5, {**OVERLONG}, against=OVERLONG),
    Switch("reward.order", "normalise_then_sum", SOURCES),
    Switch("reward.sources.name", "share", SOURCES),
    Switch("reward.sources.weight", 0.5, SOURCES),
    Switch("reward.sources.scale", "running_std", SOURCES),
    Switch("reward.sources.clip", 0.01, SOURCES),
    Switch("reward.sources.gate.below", -1.0, GATED, against=GATED),
    Switch("reward.sources.gate.cap", -5.0, GATED, against=GATED),
    Switch("reward.sources.function", "tests.runs:length_reward", SOURCES),
    Switch("reward.sources.model", "REWARD MODEL", {**SOURCES, "reward.sources.function": None}, against=SOURCES),
    Switch("rollout.prompts_per_step", 5),
    Switch("rollout.samples_per_prompt", 3),
    Switch("rollout.max_new_tokens", 5),
    Switch("rollout.temperature", 0.7),
    Switch("rollout.truncate.token", "the", {"rollout.truncate.after": 1}, against={}),
    Switch("rollout.truncate.after", 4, {"rollout.truncate.token": "the"}),
    Switch("rollout.fixed_prompts", True),
    Switch("optimizer.learning_rate", 1e-4),
    Switch("optimizer.critic_learning_rate", 1e-4),
    Switch("optimizer.schedule", "constant"),
    Switch("optimizer.schedule", "cosine"),
    Switch("optimizer.warmup_steps", 2),
    Switch("optimizer.betas", (0.5, 0.9)),
    Switch("optimizer.eps", 1e-3),
    Switch("optimizer.weight_decay", 0.1),
    Switch("optimizer.max_grad_norm", 0.01),
]


def demands(option: Option) -> set[str]:
    """What must stand in some run: words of a choice, ``schedule``, ``null``, or ``other`` for another plain value."""
    kinds = option.type.split(" or ")
    if option.type == "bool":
        return {"false" if option.default == "true" else "true"}
    if " | " in option.type:
        return {word for word in option.type.split(" | ") if json.dumps(word) != option.default}
    known = {"schedule": "schedule", "null": "null"}
    wanted = {known.get(kind, "other") for kind in kinds}
    return wanted - {"null"} if option.default in ("null", "") else wanted


def kind_of(value: Any, option: Option) -> str:
    if isinstance(value, Mapping):
        return "schedule"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return value if " | " in option.type else "other"


OPTIONS = {
    option.key: option
    for option in options_of(CONFIGS["ppo"])
    if option.key.startswith(SECTIONS) and not option.key.startswith(WAITING) and not option.is_section
}


def without_a_run(options: Mapping[str, Option], runs: list[Switch]) -> list[str]:
    wanted = {(key, demand) for key, option in options.items() if key not in REFUSED for demand in demands(option)}
    return sorted(
        f"{key}: {kind}" for key, kind in wanted - {(run.key, kind_of(run.value, options[run.key])) for run in runs}
    )


def test_every_option_of_ppo_has_a_run() -> None:
    assert without_a_run(OPTIONS, RUNS) == []
    assert len({run.name for run in RUNS}) == len(RUNS)


def test_an_option_without_a_run_is_noticed() -> None:
    fewer = [run for run in RUNS if run.key not in ("ppo.dual_clip", "kl.estimator")]
    fewer = [run for run in fewer if not (run.key == "ppo.clip_range" and isinstance(run.value, dict))]
    assert without_a_run(OPTIONS, [run for run in fewer if (run.key, run.value) != ("ppo.value_clip", None)]) == [
        "kl.estimator: k2",
        "kl.estimator: k3",
        "kl.estimator: ratio_k3",
        "ppo.clip_range: schedule",
        "ppo.dual_clip: other",
        "ppo.value_clip: null",
    ]


class Runs:
    """Each distinct config runs once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: Files = tiny_files(folder)
        self._seen: dict[str, Finished] = {}
        self._reward_model: Path | None = None

    def reward_model(self) -> Path:
        if self._reward_model is None:
            config = tiny_config("rm", self.files, self.folder / "rm", steps=2)
            self._reward_model = run_quietly("rm", config).folder
        return self._reward_model

    def config(self, changes: Changes, name: str, steps: int = STEPS) -> RunConfig:
        nested: dict[str, Any] = {}
        for key, value in deepcopy({**BASE, **changes}).items():
            *above, last = key.split(".")
            place = nested
            for part in above:
                place = place.setdefault(part, {})
                place = place[-1] if isinstance(place, tuple) else place
            place[last] = self.reward_model() if value == "REWARD MODEL" else value
        return tiny_config("ppo", self.files, self.folder / name, steps=steps, changes=nested)

    def run(self, changes: Changes) -> Finished:
        name = json.dumps(changes, sort_keys=True)
        if name not in self._seen:
            self._seen[name] = run_quietly("ppo", self.config(changes, f"run-{len(self._seen)}"))
        return self._seen[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    return Runs(tmp_path_factory.mktemp("options"))


@pytest.mark.parametrize("switch", RUNS, ids=lambda switch: switch.name)
def test_each_option_reaches_a_run_and_changes_it(runs: Runs, switch: Switch) -> None:
    changed = runs.run(switch.changes)
    assert (changed.outcome, changed.steps) == ("finished", STEPS)
    if switch.other is None:
        with pytest.raises(ValidationError, match="zero KL"):
            runs.config(switch.beside, "refused")
    else:
        assert logged(changed.folder) != logged(runs.run(switch.other).folder)
    metrics, changes = changed.latest["ppo"].metrics, {**BASE, **switch.changes}
    assert ("kl_seq" in metrics) == (changes.get("kl.beta") != 0.0)
    assert ("loss_kl" in metrics) == (changes.get("kl.placement") == "loss")
    assert ("dual_clip_fraction" in metrics) == ("ppo.dual_clip" in changes)


REMEMBERED: dict[str, Changes] = {
    "controller, running scale, normaliser, separate critic": {
        "kl.mode": "adaptive",
        "reward.scale": "running_std",
        "ppo.critic": "separate",
        "optimizer.schedule": "cosine",
        "optimizer.warmup_steps": 1,
        "ppo.value_warmup_steps": 1,
        "ppo.bootstrap_truncated": True,
    },
    "ziegler, several lambdas": {
        "kl.mode": "ziegler",
        "kl.horizon": 100,
        "ppo.critic_lam": 1.0,
        "ppo.lam_alpha": 0.3,
        "rollout.truncate.token": "the",
        "rollout.truncate.after": 1,
    },
    "every schedule": {
        option.key: {"from": 0.3, "to": 0.1, "shape": "cosine"}
        for option in OPTIONS.values()
        if "schedule" in option.type
    }
    | {
        "kl.mode": "fixed",
        "kl.placement": "loss",
        "kl.estimator": "ratio_k3",
        "ppo.clip_range_high": {"from": 0.4, "to": 0.35},
    }
    | {key: value for key, value in BUDGET.items() if key != "reward.length.cost"},
}


@pytest.mark.parametrize("name", REMEMBERED)
def test_a_resumed_run_is_the_same_bit_for_bit_with_all_that_is_remembered(tmp_path: Path, name: str) -> None:
    runs = Runs(tmp_path)
    whole = run_quietly("ppo", runs.config(REMEMBERED[name], "whole", steps=4))
    halves = interrupted_and_resumed("ppo", runs.config(REMEMBERED[name], "halves", steps=4))
    assert logged(whole.folder) == logged(halves.folder)
    assert differing(whole.folder, halves.folder) == []
