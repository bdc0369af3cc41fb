"""How does a YAML file become a config? Read, laid over with overrides, validated; every mistake is one line.

config = load_config(Path("ppo.yaml"), ["kl.beta=0.1"], PPOConfig)
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML

from tightrope.config.errors import TightropeError
from tightrope.config.kinds import is_other_kind, without_kinds
from tightrope.config.other_tools import no_counterpart, their_name
from tightrope.config.presets import command_of, with_preset
from tightrope.config.schema import RunConfig
from tightrope.config.sources import KeyPath, Source, read_source
from tightrope.config.suggestions import all_paths, by_other_tool, key_tree, leaves, suggest, suggest_inside

ConfigT = TypeVar("ConfigT", bound=RunConfig)
STAGE = "stage"
"""The key under which a file may say which command it is for."""
SECTIONS_OF_STAGES: Mapping[str, str] = {
    "sft": "sft",
    "reward_model": "rm train",
    "dpo": "dpo",
    "ppo": "ppo",
    "rloo": "rloo",
    **dict.fromkeys(("preset", "rollout", "reward", "kl", "evaluation", "samples"), "ppo or rloo"),
}
"""Top-level sections and the commands that have them."""
OWN_SECTIONS: Mapping[str, str] = {"reward_model": "rm", **{stage: stage for stage in ("sft", "dpo", "ppo", "rloo")}}
"""Sections that only one stage has."""
SHOWN_MORE = 3


def named_stage(source: Source) -> object:
    """What stands under ``stage:``, else the stage of the one section that no other has; None when nothing tells."""
    own = [stage for section, stage in OWN_SECTIONS.items() if section in source.tree]
    return source.tree.get(STAGE, own[0] if len(own) == 1 else None)


def load_config(path: Path, overrides: Sequence[str], config_class: type[ConfigT]) -> ConfigT:
    """The overrides win over the file, the file over its preset, the preset over the defaults.

    Raises TightropeError about the first mistake, counting the others.
    """
    return validated(layered(read_source(path, overrides), config_class), config_class)


def layered(source: Source, config_class: type[RunConfig]) -> Source:
    """With the preset it names laid under it, and without the name of its stage."""
    stage = source.tree.pop(STAGE, config_class.stage)
    if stage != config_class.stage:
        raise TightropeError(
            "a config for another command", where=source.place((STAGE,)), expected=config_class.stage, found=str(stage)
        )
    return with_preset(source, config_class.stage, config_class.model_fields)


def validated(source: Source, config_class: type[ConfigT]) -> ConfigT:
    """Strict, in JSON mode: lists become tuples and texts become paths and choices, and nothing else is converted."""
    try:
        return config_class.model_validate_json(json.dumps(source.tree))
    except ValidationError as error:
        raise explain(error, source, config_class) from error


def save_resolved(stage: str, config: RunConfig, path: Path) -> None:
    """Every key with its value, the defaults too. ``load_resolved`` gives the equal config."""
    yaml = YAML()
    yaml.width = 1_000_000  # a long text stays on one line
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        yaml.dump({STAGE: stage, **config.model_dump(mode="json")}, file)  # pyright: ignore[reportUnknownMemberType]
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load_resolved(path: Path, classes: Mapping[str, type[RunConfig]]) -> tuple[str, RunConfig]:
    """The stage and the config of a run, from its ``resolved.yaml``, which says everything: no preset is read."""
    source = read_source(path)
    stage = source.tree.pop(STAGE, None)
    if not isinstance(stage, str) or stage not in classes:
        raise TightropeError(
            "no known stage", where=source.place((STAGE,)), expected=f"stage: {' | '.join(classes)}", found=str(stage)
        )
    return stage, validated(source, classes[stage])


def explain(error: ValidationError, source: Source, config_class: type[RunConfig]) -> TightropeError:
    """The first mistake in full; the others named at the end of the line.

    Unknown keys go first: a misspelled section is also a missing one.
    """
    found = error.errors(include_url=False)
    meant_kind = [detail for detail in found if not is_other_kind(detail["loc"], detail["input"], config_class)]
    details = sorted(meant_kind or found, key=lambda detail: detail["type"] != "extra_forbidden")
    first = details[0]
    told = describe(first, source, config_class)
    meant = suggestion(first, config_class)
    paths = dict.fromkeys(path_text(detail, config_class) for detail in details)
    others = [path for path in list(paths)[1:] if path != meant]
    if others:
        more = f"and {len(others)} more mistake{'s' if len(others) > 1 else ''}: {', '.join(others[:SHOWN_MORE])}"
        told.fix = "; ".join(part for part in (told.fix, more + (", …" if others[SHOWN_MORE:] else "")) if part)
    return told


def suggestion(detail: ErrorDetails, config_class: type[RunConfig]) -> str | None:
    return suggest(keys_of(detail, config_class), config_class) if detail["type"] == "extra_forbidden" else None


def describe(detail: ErrorDetails, source: Source, config_class: type[RunConfig]) -> TightropeError:
    keys, kind, context = keys_of(detail, config_class), detail["type"], detail.get("ctx", {})
    in_list = any(isinstance(part, int) for part in detail["loc"])
    name, where = ".".join(keys), source.place((*detail["loc"], context.get("key", "")) if in_list else keys)
    if kind == "extra_forbidden":
        told = unknown_key(keys, detail["input"], source, config_class)
        told.where = where if in_list else told.where
        return told
    if kind == "missing" and isinstance(detail["loc"][-1], int):
        return TightropeError(f"too few values in `{name}`", where=where, expected=f"at least {detail['loc'][-1] + 1}")
    if kind == "missing":
        example = f"write `{keys[-1]}:` under `{'.'.join(keys[:-1])}:`" if keys[1:] else f"write `{name}: ...`"
        return TightropeError(f"`{name}` is missing", where=where, fix=example)
    if kind == "refused":  # a rule of our own, see config.base.refuse
        return TightropeError(detail["msg"], where=where, fix=context.get("fix"))
    return TightropeError(
        f"wrong value of `{name}`",
        where=where,
        expected=expected_of(detail),
        found=shown(detail["input"]),
        fix=value_fix(detail),
    )


def unknown_key(keys: KeyPath, value: Any, source: Source, config_class: type[RunConfig]) -> TightropeError:
    for leaf in leaves(value, keys):
        theirs = by_other_tool(leaf, all_paths(key_tree(config_class)))
        if theirs and "." in (their_name(leaf) or ""):  # verl's `reward_model.model.path` is no section of ours
            return not_known(leaf, source, f"did you mean `{'.'.join(theirs[0])}`?")
    command = SECTIONS_OF_STAGES.get(keys[0])
    if keys[0] not in config_class.model_fields and command is not None:
        own = command_of(config_class.stage)
        return TightropeError(
            f"section `{keys[0]}` belongs to `tightrope {command}`, not to `tightrope {own}`",
            where=source.place(keys),
            fix="remove it, or use that command",
        )
    for leaf in leaves(value, keys):
        reason = no_counterpart(leaf)
        if reason:
            return not_known(leaf, source, f"no counterpart: {reason}")
    leaf, meant = suggest_inside(keys, value, config_class)
    return not_known(leaf, source, f"did you mean `{meant}`?" if meant else None)


def not_known(keys: KeyPath, source: Source, fix: str | None) -> TightropeError:
    return TightropeError(f"unknown key `{'.'.join(keys)}`", where=source.place(keys), fix=fix)


def expected_of(detail: ErrorDetails) -> str:
    """pydantic says "Input should be greater than 0"; what should be is what we expect."""
    if detail["type"] == "literal_error":
        return str(detail.get("ctx", {}).get("expected")).replace("'", "")
    if detail["type"] in ("model_type", "model_attributes_type"):
        return "a section of `key: value` lines"
    if detail["type"] == "string_pattern_mismatch":
        return "module:function, file.py:function or the name of an entry point"
    return detail["msg"].removeprefix("Input should be ").removeprefix("a valid ")


def value_fix(detail: ErrorDetails) -> str | None:
    """What to write, where the slip is a common one."""
    value, kind = detail["input"], detail["type"]
    if kind == "literal_error" and isinstance(value, str):
        choices = [choice.strip(" '") for choice in expected_of(detail).replace(" or ", ",").split(",")]
        near = difflib.get_close_matches(value.lower(), choices, n=1, cutoff=0.5)
        return f"did you mean {near[0]}?" if near else None
    if not isinstance(value, str):
        return None
    if value.lower() in ("none", "~", "nil"):
        return "write null for no value"
    if kind == "bool_type" and value.lower() in ("yes", "no", "on", "off", "true", "false"):
        return f"write {'true' if value.lower() in ('yes', 'on', 'true') else 'false'}, without quotes"
    if kind in ("float_type", "int_type"):
        try:
            float(value)
        except ValueError:
            return None
        return "write the number without quotes"
    return None


def keys_of(detail: ErrorDetails, config_class: type[RunConfig]) -> KeyPath:
    """A rule over several keys says itself which one the person should look at."""
    named = detail.get("ctx", {}).get("key")
    return (*without_kinds(detail["loc"], config_class)[0], *(str(named).split(".") if named else ()))


def path_text(detail: ErrorDetails, config_class: type[RunConfig]) -> str:
    return ".".join(keys_of(detail, config_class))


def shown(value: Any) -> str:
    text = "null" if value is None else repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:79] + "…"
