"""Which key was meant? By spelling, by the section it belongs to, and by the names other tools use."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, cast

from tightrope.config.base import Section
from tightrope.config.kinds import fields_of, section_in
from tightrope.config.other_tools import our_keys
from tightrope.config.sources import KeyPath, Tree

CLOSE = 0.72
"""Similarity (difflib ratio) from which a key is taken for a misspelling of another."""
SHORTEST_START = 3
"""So many letters of a key's beginning are taken for the key."""


def key_tree(section: type[Section]) -> dict[str, Any]:
    """Every key a config class knows: name -> None, or the keys of the section below it, or of the one it may be."""
    found: dict[str, Any] = {}
    for name, field in fields_of(section).items():
        below = section_in(field.annotation)
        found[name] = None if below is None else key_tree(below)
    return found


def all_paths(tree: Mapping[str, Any], above: KeyPath = ()) -> list[KeyPath]:
    """Every key and section, as paths."""
    found: list[KeyPath] = []
    for name, below in tree.items():
        found.append((*above, name))
        if below is not None:
            found += all_paths(cast(Mapping[str, Any], below), (*above, name))
    return found


def suggest(path: KeyPath, config_class: type[Section]) -> str | None:
    """The key that was probably meant, as a dotted path."""
    paths = all_paths(key_tree(config_class))
    name = path[-1].strip().lower().lstrip("-").replace("-", "_").replace(" ", "_")
    level = [known for known in paths if known[:-1] == path[:-1]]
    choices = (
        [known for known in level if known[-1] == name]
        or by_other_tool((*path[:-1], name), paths)
        or slipped(name, level)
        or closest(name, {known[-1]: known for known in level})
        or beginning(name, level)
        or [known for known in nearest_section(path, paths) if known[-1] == name]
        or slipped(name, nearest_section(path, paths))
        or closest(name, {known[-1]: known for known in reversed(nearest_section(path, paths))})
        or closest(".".join((*path[:-1], name)), {".".join(known): known for known in paths})
    )
    return ".".join(choices[0]) if choices else None


def by_other_tool(path: KeyPath, paths: Iterable[KeyPath]) -> list[KeyPath]:
    """Our key for another tool's; one in the section it was written in goes first."""
    known = set(paths)
    found = [key for key in (tuple(text.split(".")) for text in our_keys(path)) if key in known]
    return sorted(found, key=lambda key: key[:-1] != path[:-1])


def slipped(name: str, choices: Iterable[KeyPath]) -> list[KeyPath]:
    """Keys from which one slip of the finger leads to this one, the most similar first."""
    near = [known for known in choices if is_one_slip(name, known[-1])]
    return sorted(near, key=lambda known: -similarity(name, known[-1]))


def is_one_slip(left: str, right: str) -> bool:
    """One letter more, less or another, or two neighbours swapped.

    >>> [is_one_slip("beta", other) for other in ("bta", "betta", "bete", "ebta", "beta", "eta2")]
    [True, True, True, True, False, False]
    """
    if left == right or abs(len(left) - len(right)) > 1:
        return False
    start = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    a, b = left[start:], right[start:]
    swapped = len(a) > 1 and a[1::-1] + a[2:] == b
    return swapped or a[1:] == b[1:] or a[1:] == b or a == b[1:]


def nearest_section(path: KeyPath, paths: Iterable[KeyPath]) -> list[KeyPath]:
    """Keys in the order in which their section resembles the one that was written, then by depth."""
    above = ".".join(path[:-1])
    return sorted(paths, key=lambda known: (-similarity(above, ".".join(known[:-1])), len(known)))


def closest(name: str, choices: Mapping[str, KeyPath]) -> list[KeyPath]:
    return [choices[near] for near in difflib.get_close_matches(name, list(choices), n=1, cutoff=CLOSE)]


def beginning(name: str, level: Iterable[KeyPath]) -> list[KeyPath]:
    """The one key that begins like this."""
    found = [known for known in level if known[-1].startswith(name)] if len(name) >= SHORTEST_START else []
    return found if len(found) == 1 else []


def is_section(name: str | None, config_class: type[Section]) -> bool:
    return any(".".join(path[:-1]) == name for path in all_paths(key_tree(config_class)) if path[1:])


def leaves(value: Any, path: KeyPath) -> list[KeyPath]:
    """The paths of all values below, or the path itself."""
    if not isinstance(value, dict):
        return [path]
    tree = cast(Tree, value)
    return [leaf for key, below in tree.items() for leaf in leaves(below, (*path, key))]


def suggest_inside(section: KeyPath, value: Any, config_class: type[Section]) -> tuple[KeyPath, str | None]:
    """For an unknown section, or an unknown key: which key of it is meant for another, and for which."""
    meant = suggest(section, config_class)
    inside = [leaf for leaf in leaves(value, section) if leaf != section]
    if not inside:
        return section, meant
    if meant is not None and is_section(meant, config_class):
        known = all_paths(key_tree(config_class))
        moved = [(leaf, (*meant.split("."), *leaf[len(section) :])) for leaf in inside]
        wrong = [(leaf, there) for leaf, there in moved if there not in known]
        if not wrong:
            return section, meant
        leaf, there = wrong[0]
        return leaf, suggest(there, config_class) or meant
    found = [(leaf, suggest(leaf, config_class)) for leaf in inside]
    return next((pair for pair in found if pair[1] is not None), found[0])


def similarity(left: str, right: str) -> float:
    return difflib.SequenceMatcher(None, left, right).ratio()
