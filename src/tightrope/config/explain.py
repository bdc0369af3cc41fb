"""What is an option, and where does its value in a config file come from? Text for a person, without torch.

Reading a file here proves nothing about it: the values are shown as they stand, so that a config that is refused can be
looked into.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from tightrope.config.base import Section
from tightrope.config.catalogue import Option, by_stage, options_of
from tightrope.config.errors import TightropeError
from tightrope.config.other_tools import THEIR_NAMES, no_counterpart, our_keys
from tightrope.config.presets import NAMES, command_of, read_preset
from tightrope.config.sources import Source, Tree
from tightrope.config.suggestions import suggest

Configs = Mapping[str, type[Section]]
SHOWN = 6
"""Related keys named at most."""


@dataclass(frozen=True)
class Entry:
    option: Option
    stages: list[str]


def explain_key(key: str, configs: Configs, source: Source | None = None) -> list[str]:
    """The lines about an option or a section. Raises TightropeError for a key that does not exist."""
    entries = [Entry(option, stages) for option, stages in by_stage(configs).items()]
    path = key.strip().lstrip("-").partition("=")[0]
    options = {entry.option.key: entry.option.is_section for entry in entries}
    if options.get(path.rpartition(".")[0]) is False:  # one key of a value that may be a mapping, as kl.beta.from
        path = path.rpartition(".")[0]
    found = [entry for entry in entries if entry.option.key == path]
    if not found:
        ours = our_keys(path.split("."))
        found = [entry for entry in entries if entry.option.key in ours]
        note = [f"`{path}` is another tool's name; here it is {either(entry.option.key for entry in found)}", ""]
    else:
        note = []
    if not found:
        raise unknown(path, configs)
    lines = note
    for entry in found:
        lines += [*about(entry, entries, source), ""]
    return lines[:-1]


def unknown(path: str, configs: Configs) -> TightropeError:
    reason = no_counterpart(path.split("."))
    if reason:
        return TightropeError(f"there is no option `{path}`", fix=f"no counterpart: {reason}")
    section = path.rpartition(".")[0]
    near = dict.fromkeys(suggest(tuple(path.split(".")), config) for config in configs.values())
    meant = [name for name in near if name]
    nearest = [name for name in meant if name.rpartition(".")[0] == section or name.endswith(f".{path}")] or meant
    fix = f"did you mean {either(nearest[:3])}?" if nearest else "see docs/options.md"
    return TightropeError(f"there is no option `{path}`", fix=fix)


def about(entry: Entry, entries: Sequence[Entry], source: Source | None) -> list[str]:
    option = entry.option
    rows = {
        "type": f"{option.type}, {option.bounds}" if option.bounds else option.type,
        "default": option.default or ("" if option.is_section else "none: it must be written"),
        "commands": ", ".join(command_of(stage) for stage in entry.stages),
        "presets": "; ".join(preset_values(option.key)),
        "elsewhere": ", ".join(THEIR_NAMES.get(option.key, "").split()),
        "related": ", ".join(related(option, entries)),
    }
    if source is not None:
        rows["value"] = origin(option, source)
    lines = [option.key, f"  {option.description}", ""]
    lines += [f"  {name:<9} {text}" for name, text in rows.items() if text]
    if option.is_section:
        inside = [below.option for below in entries if below.option.key.rpartition(".")[0] == option.key]
        width = max((len(below.key) for below in inside), default=0)
        lines += ["", *(f"  {below.key:<{width}}  {first_sentence(below.description)}" for below in inside)]
    return lines


def first_sentence(text: str) -> str:
    return text.split(". ")[0].rstrip(".") + "."


def preset_values(key: str) -> list[str]:
    """What each preset sets it to, as ``rlhf: 0.05``."""
    found: list[str] = []
    for name in NAMES:
        value, there = at(preset_tree(name), key)
        if there and not isinstance(value, dict):
            found.append(f"{name}: {json.dumps(value)}")
    return found


@cache
def preset_tree(name: str) -> Tree:
    """Read once: a file of the package does not change."""
    return read_preset(name)[0].tree


def related(option: Option, entries: Sequence[Entry]) -> list[str]:
    """Keys whose descriptions name each other, then the neighbours in the section."""
    section, _, name = option.key.rpartition(".")
    if option.is_section:
        return []
    others = [entry.option for entry in entries if entry.option.key != option.key and not entry.option.is_section]
    neighbours = [other for other in others if other.key.rpartition(".")[0] == section and section]
    named = [
        other
        for other in others
        if other.key in option.description
        or option.key in other.description
        or (other in neighbours and (names(name, other.description) or names(other.key, option.description)))
    ]
    return list(dict.fromkeys(other.key for other in [*named, *neighbours]))[:SHOWN]


def names(key: str, text: str) -> bool:
    return f"`{key.rpartition('.')[2]}`" in text


def at(tree: Mapping[str, Any], key: str) -> tuple[Any, bool]:
    """The value of a dotted key, and whether there is one."""
    value: Any = tree
    for name in key.split("."):
        if not isinstance(value, dict) or name not in value:
            return None, False
        value = cast("dict[str, Any]", value)[name]
    return value, True


def origin(option: Option, source: Source) -> str:
    """``0.1, from run.yaml:12``."""
    value, there = at(source.tree, option.key)
    if there:
        return f"{json.dumps(value, ensure_ascii=False)}, from {source.place(option.key.split('.'))}"
    if option.is_section and not option.default:
        return f"not in {source.name}: all defaults"
    return f"{option.default}, the default" if option.default else f"missing in {source.name}"


def show(config_class: type[Section], source: Source, everything: bool) -> list[str]:
    """``key: value  # where it comes from`` for what was set, or for every option."""
    rows: list[tuple[str, str]] = []
    for option in options_of(config_class):
        value, there = at(source.tree, option.key)
        if option.is_section and (value is not None or not option.default):
            continue
        if there:
            rows.append((f"{option.key}: {json.dumps(value, ensure_ascii=False)}", source.place(option.key.split("."))))
        elif everything:
            rows.append((f"{option.key}: {option.default or '(missing)'}", "default" if option.default else "required"))
    width = min(max((len(row[0]) for row in rows), default=0), 50)
    return [f"{text:<{width}}  # {place}" for text, place in rows]


def either(keys: Iterable[str]) -> str:
    return " or ".join(f"`{key}`" for key in keys)
