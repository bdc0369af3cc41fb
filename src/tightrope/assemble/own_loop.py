"""The parts of a run for somebody's own loop: nothing is written, nobody watches, and no step is taken for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tightrope.assemble.fanout import Nobody
from tightrope.assemble.inputs import read_inputs
from tightrope.assemble.online import build_online
from tightrope.assemble.parts import Outputs
from tightrope.config.errors import TightropeError
from tightrope.config.schema import OnlineConfig, RunConfig
from tightrope.protocols import State
from tightrope.training.run import OnlineRun


def parts_of(config: RunConfig) -> OnlineRun:
    """Prompts, engine, judge, algorithm and learner over loaded weights, with the reward's gain and the KL target
    measured as before the first step of a run."""
    if not isinstance(config, OnlineConfig):
        raise TightropeError("only a stage with rollouts comes apart", found=config.stage, expected="ppo or rloo")
    built = build_online(config, read_inputs(config), Outputs(NoStore(), NoJournal(), Nobody(), Nobody()))
    built.prepare()
    assert isinstance(built.run, OnlineRun)
    return built.run


class NoStore:
    """A checkpoint store that keeps nothing."""

    def save(self, step: int, state: Mapping[str, State]) -> Path:
        raise TightropeError("an own loop has no checkpoints", fix="save the weights of its roles yourself")

    def load_latest(self) -> None:
        """There is none."""


class NoJournal:
    def append(self, step: int, kind: str, reason: str, source: str, value: float | None = None) -> None:
        """Nothing is written."""
