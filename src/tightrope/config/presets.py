"""What does ``preset: rlhf`` mean? The file ``presets/rlhf.yaml``, laid under what a person wrote.

A preset names the commands it is for; of the sections ``ppo`` and ``rloo`` a run takes its own. Its values say where
they come from: ``run.yaml:2 (preset rlhf, line 9)``.
"""

from __future__ import annotations

import difflib
from collections.abc import Container
from pathlib import Path
from typing import cast, get_args

from tightrope.config.errors import TightropeError
from tightrope.config.schema import Preset
from tightrope.config.sources import KeyPath, Source, Tree, read_source

FOLDER = Path(__file__).with_name("presets")
NAMES: tuple[str, ...] = get_args(Preset)
PRESET, STAGES = "preset", "stages"
ONE_STAGE = ("ppo", "rloo")
"""Sections that only the command of that name has."""


def read_preset(name: str) -> tuple[Source, list[str]]:
    """Its values, and the stages it is for."""
    source = read_source(FOLDER / f"{name}.yaml")
    return source, cast("list[str]", source.tree.pop(STAGES))


def command_of(stage: str) -> str:
    """What a person types to run a stage."""
    return "rm train" if stage == "rm" else stage


def with_preset(source: Source, stage: str, sections: Container[str]) -> Source:
    """``source`` with the preset it names laid under it. Raises TightropeError for a preset that does not fit."""
    name = source.tree.get(PRESET)
    if name is None:
        return source
    place = source.place((PRESET,))
    if name not in NAMES:
        near = difflib.get_close_matches(str(name).lower(), NAMES, n=1, cutoff=0.5)
        fix = f"did you mean {near[0]}?" if near else None
        raise TightropeError("unknown preset", where=place, expected=" or ".join(NAMES), found=repr(name), fix=fix)
    preset, stages = read_preset(name)
    if stage not in stages:
        fits = " and ".join(f"`tightrope {fitting}`" for fitting in stages)
        what = f"preset `{name}` is for {fits}, not for `tightrope {command_of(stage)}`"
        raise TightropeError(what, where=place, fix="remove it")
    below = {key: value for key, value in preset.tree.items() if key in sections or key not in ONE_STAGE}
    laid = Source(source.name, source.tree, dict(source.places))
    lay_under(laid, below, (), preset, f"{place} (preset {name}, line ")
    return laid


def lay_under(above: Source, below: Tree, path: KeyPath, preset: Source, place: str) -> None:
    """Fills ``above`` with the values it lacks. Sections get no place of their own: they are the person's."""
    tree = above.tree
    for key in path:
        tree = tree[key]
    for key, value in below.items():
        here = (*path, key)
        if isinstance(value, dict) and isinstance(tree.setdefault(key, {}), dict):
            lay_under(above, cast(Tree, value), here, preset, place)
        elif key not in tree:
            tree[key] = value
            above.places[here] = f"{place}{preset.place(here).rsplit(':', 1)[-1]})"
