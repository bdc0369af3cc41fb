"""Is everything that changes during a run in its state tree, so that a resumed run is the run that was interrupted?

The object graph of a run is walked from ``Assembled``: attributes, containers, partials, bound methods and closures,
inside our own classes. What belongs to torch and transformers is looked at as parameters only.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tests.runs import STAGES, built_run, tiny_config, tiny_files
from tightrope.assemble import online, parts
from tightrope.assemble.parts import Assembled
from tightrope.config.schema import PTXSection, RunConfig
from tightrope.guardian.guardian import StepGuardian
from tightrope.rollout.local_engine import LocalEngine
from tightrope.training.loop import StopSignals
from tightrope.training.run import RunCore

OWNED = {"NamedAdamW": "learner", "KLRemedy": "guardian", "NonFiniteRemedy": "guardian"}
"""Stateful classes that are part of another's state: the registered name of their owner."""
NOT_STATE = {
    "Stopwatch": "seconds are the one thing that differs between a run and its repetition; emptied at each step",
    "Computed": "what a profile tells of this process; no number of a run depends on it",
    "LineLog": "the journal's open file: on the disk at once, and a resume cuts it back to the checkpoint",
    "EpochOrders": "a cache: each order is a function of (seed, epoch)",
}
PLAIN = (int, float, str, bool, type(None))


def is_ours(value: object) -> bool:
    module = type(value).__module__
    return (module.startswith("tightrope.") or module == __name__) and not isinstance(value, type | nn.Module)


def attributes(value: object) -> dict[str, Any]:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(vars(value)) if hasattr(value, "__dict__") else {}


def below(value: object) -> dict[str, Any]:
    """What an object of the graph leads to, by name."""
    if isinstance(value, Mapping):
        return {f"[{key}]": item for key, item in value.items()}
    if isinstance(value, list | tuple | deque) and not is_ours(value):
        return {f"[{index}]": item for index, item in enumerate(value)}
    if isinstance(value, functools.partial):
        return {"func": value.func, **{f"args[{i}]": a for i, a in enumerate(value.args)}, **value.keywords}
    if isinstance(value, MethodType):
        return {"__self__": value.__self__}
    if isinstance(value, FunctionType):
        names = value.__code__.co_freevars
        return {name: cell.cell_contents for name, cell in zip(names, value.__closure__ or (), strict=True)}
    return attributes(value) if is_ours(value) else {}


def objects(root: object) -> Iterator[tuple[str, object]]:
    """Every object that can be reached, once, with the path to it."""
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [("", root)]
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen or isinstance(value, (*PLAIN, torch.Tensor)):
            continue
        seen.add(id(value))
        yield path, value
        waiting += [(f"{path}.{name}", item) for name, item in below(value).items()]


def plain_text(value: object) -> str | None:
    """The content of a field that holds numbers and texts, in containers too; None for an object, which is walked."""
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return repr(value.tolist()) if value.numel() <= 8 else None
    if isinstance(value, Mapping):
        return repr(sorted((repr(key), str(plain_text(item))) for key, item in value.items()))
    if isinstance(value, list | tuple | set | frozenset | deque) and not is_ours(value):
        return repr([plain_text(item) for item in value])
    return None


def snapshot(built: Assembled) -> dict[str, str]:
    """``path.field`` to content, for every field that holds numbers and texts, with the class in the path."""
    found: dict[str, str] = {}
    for path, value in objects(built):
        if is_ours(value) and type(value).__name__ not in NOT_STATE:
            for name, content in attributes(value).items():
                text = plain_text(content)
                if text is not None:
                    found[f"{path}.{name} ({type(value).__name__})"] = text
    return found


def parameters(built: Assembled) -> dict[int, tuple[str, nn.Parameter]]:
    return {
        id(parameter): (f"{path}.{name}", parameter)
        for path, value in objects(built)
        if isinstance(value, nn.Module)
        for name, parameter in value.named_parameters()
    }


def state_of(core: RunCore) -> Mapping[str, Any]:
    """Saved, read back and verified, as at a resume."""
    core.save()
    loaded = core.store.load_latest()
    assert loaded is not None
    return loaded[1]


def config_of(stage: str, folder: Path, lora: bool = False) -> RunConfig:
    return tiny_config(stage, tiny_files(folder), folder / "unused", lora=lora, steps=3)


@pytest.fixture(params=[*STAGES, "ppo with ptx"])
def config(request, tmp_path) -> RunConfig:
    stage, _, mixed = request.param.partition(" with ")
    plain = config_of(stage, tmp_path)
    return plain.model_copy(update={"ptx": PTXSection(corpus="builtin", sequence_length=8)}) if mixed else plain


def trained(config: RunConfig, folder: Path) -> Assembled:
    built = built_run(config, folder)
    built.prepare()
    for _ in built.steps(StopSignals()):
        pass
    assert built.run.core.progress.step == config.training.steps
    return built


def lost(config: RunConfig, folder: Path) -> set[str]:
    """Fields that changed in a run and that a resumed run does not have back."""
    fresh = snapshot(built_run(config, folder / "fresh"))
    run = trained(config, folder / "run")
    after = snapshot(run)
    resumed = built_run(config, folder / "resumed")
    resumed.run.core.restore(state_of(run.run.core))
    back = snapshot(resumed)
    changed = {name for name in fresh.keys() | after.keys() if fresh.get(name) != after.get(name)}
    assert changed, "nothing changes in a run: the walk is broken"
    return {name for name in changed if after.get(name) != back.get(name)}


def test_every_stateful_object_is_registered(config, tmp_path):
    built = built_run(config, tmp_path / "run")
    state = built.run.core.state
    found = {path: value for path, value in objects(built) if is_ours(value)}
    stateful = {
        path: value
        for path, value in found.items()
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
    }
    assert len(stateful) >= len(state)
    for path, value in stateful.items():
        owner = OWNED.get(type(value).__name__)
        if owner is None:
            assert any(value is part for part in state.values()), f"{path} ({type(value).__name__}) is not registered"
        else:
            held = [item for _, item in objects(attributes(state[owner]))]
            assert any(value is item for item in held), f"{path} ({type(value).__name__}) is not held by {owner}"


def test_a_resumed_run_has_every_number_that_changed(config, tmp_path):
    assert lost(config, tmp_path) == set()


class Forgetful(StepGuardian):
    """Counts what it has seen and does not say so in its state."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.reviews = 0

    def review(self, record: Any) -> Any:
        self.reviews += 1
        return super().review(record)


class Counting(LocalEngine):
    """Changes and is no part of the state tree at all."""

    calls = 0

    def generate(self, *args: Any) -> Any:
        self.calls += 1
        return super().generate(*args)


@pytest.mark.parametrize(
    ("module", "name", "part", "field"),
    [(parts, "StepGuardian", Forgetful, "reviews (Forgetful)"), (online, "LocalEngine", Counting, "calls (Counting)")],
)
def test_a_forgotten_number_is_noticed(tmp_path, monkeypatch, module: ModuleType, name: str, part: type, field: str):
    monkeypatch.setattr(module, name, part)
    assert any(item.endswith(field) for item in lost(config_of("ppo", tmp_path), tmp_path))


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("stage", ["sft", "rm", "ppo"])
def test_every_weight_that_changes_is_in_the_state(tmp_path, stage, lora):
    built = built_run(config_of(stage, tmp_path, lora), tmp_path / "run")
    registered = {id(p) for group in built.roles.parameters.values() for p in group.values()}
    before = {key: p.detach().clone() for key, (_, p) in parameters(built).items()}
    assert registered <= before.keys()
    built.prepare()
    for _ in built.steps(StopSignals()):
        pass
    moved = {key for key, (_, p) in parameters(built).items() if not torch.equal(p, before[key])}
    assert moved and moved <= registered, [parameters(built)[key][0] for key in moved - registered]
    saved = state_of(built.run.core)["weights"]
    assert {name: set(group) for name, group in saved.items()} == {
        name: set(group) for name, group in built.roles.parameters.items()
    }


def test_exceptions_name_classes_that_exist(tmp_path):
    names = {type(value).__name__ for _, value in objects(built_run(config_of("ppo", tmp_path), tmp_path / "run"))}
    assert set(OWNED) | set(NOT_STATE) <= names
