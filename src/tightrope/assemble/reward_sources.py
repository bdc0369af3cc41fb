"""Which object gives the rewards of each entry under ``reward.sources``? One factory a kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from tightrope.config.code_reward import CodeSection
from tightrope.config.errors import TightropeError
from tightrope.config.reward_sources import SourceSection
from tightrope.config.schema import RewardSection
from tightrope.plugins import PluginKind, load_plugin
from tightrope.protocols import RewardSource
from tightrope.scoring.code.reward import CodeReward
from tightrope.scoring.composite import CompositeReward, WeightedSource
from tightrope.scoring.functions import FunctionReward
from tightrope.scoring.http_calls import Breaker, Endpoint, Patience
from tightrope.scoring.normaliser import RewardNormaliser, RunningScale
from tightrope.scoring.remote import Asking, HttpReward, checked_health, require_fingerprint
from tightrope.scoring.sources import SafeSource
from tightrope.types import Sample

FUNCTION = PluginKind("reward function", "reward.sources", "tightrope.rewards")
COOLDOWN = 60.0
"""Seconds for which a service that failed in every attempt is left alone."""


def function_source(section: SourceSection) -> RewardSource:
    assert section.function is not None
    return SafeSource(FunctionReward(load_plugin(section.function, FUNCTION), section.function), section)


def http_source(section: SourceSection) -> RewardSource:
    assert section.http is not None
    attempts = 1 + section.retries
    source = HttpReward(
        endpoint_of(section),
        Patience(attempts, section.retry_wait),
        Breaker(attempts, COOLDOWN),
        Asking(section.http.batch_size, section.http.columns),
    )
    return SafeSource(source, section, retries=False)


def code_source(section: SourceSection) -> RewardSource:
    assert section.code is not None
    return SafeSource(code_reward_of(section.code), section)


def code_reward_of(section: CodeSection) -> CodeReward:
    """One sandbox for each setting and process: what was tried is what trains. Raises SandboxUnavailable."""
    return opened(section.model_dump_json())


@cache
def opened(section: str) -> CodeReward:
    return CodeReward.open(CodeSection.model_validate_json(section))


def sandbox_facts(reward: RewardSection) -> dict[str, Any]:
    """By source, what the self-test of its sandbox found."""
    chosen = [source for source in reward.sources if source.code is not None]
    return {one.name: asdict(code_reward_of(one.code).sandbox.facts) for one in chosen if one.code is not None}


def endpoint_of(section: SourceSection) -> Endpoint:
    assert section.http is not None and section.patience is not None
    variable = section.http.token_env
    return Endpoint(
        section.http.url, os.environ.get(variable), section.patience, f"the token is read from the variable {variable}"
    )


FACTORIES: Mapping[str, Callable[[SourceSection], RewardSource]] = {
    "function": function_source,
    "http": http_source,
    "code": code_source,
}
"""By kind. A model is not among them: its weights are loaded with the policy's, see ``composite_of``."""


def composite_of(reward: RewardSection, model: RewardSource | None) -> CompositeReward:
    """``model``: the reward model, where one of the entries names it."""
    found: list[WeightedSource] = []
    for section in reward.sources:
        if section.kind == "model":
            assert model is not None
            source: RewardSource = SafeSource(model, section)
        else:
            source = FACTORIES[section.kind](section)
        scale = RunningScale() if section.scale == "running_std" else None
        found.append(WeightedSource(section, source, RewardNormaliser(), scale))
    return CompositeReward(found)


def require_sources(reward: RewardSection) -> None:
    """Raises TightropeError for one that cannot be made: no such function, no such file."""
    for section in reward.sources:
        if section.kind != "model":
            FACTORIES[section.kind](section)


def try_sources(reward: RewardSection, samples: Sequence[Sample]) -> None:
    """Each is asked once about made-up responses, without retries: what fails is told in seconds, before the model is
    loaded. Raises TightropeError."""
    for section in reward.sources:
        if section.http is not None and section.http.fingerprint is not None:
            require_fingerprint(endpoint_of(section), checked_health(endpoint_of(section)), section.http.fingerprint)
        if section.kind != "model":
            once = section.model_copy(update={"retries": 0})
            try:
                FACTORIES[section.kind](once).score(samples)
            except TightropeError as error:
                error.what += ", asked about a made-up response"
                raise
