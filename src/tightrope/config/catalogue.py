"""Which options are there, of which type, within which bounds, with which default? Read from pydantic's JSON schema.

``explain``, ``docs/options.md`` and the pinned option list all show what is found here, so that they cannot differ.
A section is a group of options; a value that may be a number or a mapping (a schedule) is one option.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from tightrope.config.base import Section

Node = Mapping[str, Any]
"""One value's JSON schema."""
BOUNDS = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "under", "maximum": "at most"}
NAMES = {"integer": "int", "number": "float", "boolean": "bool", "string": "str", "null": "null", "object": "mapping"}


@dataclass(frozen=True)
class Option:
    """``default`` is JSON text, empty where a value is required; ``bounds`` is empty where any value will do."""

    key: str
    type: str
    bounds: str
    default: str
    description: str
    is_section: bool

    @property
    def line(self) -> str:
        """As the pinned list has it."""
        bounds = f" ({self.bounds})" if self.bounds else ""
        return f"{self.key}: {self.type}{bounds} = {self.default or 'required'}"


@cache
def options_of(config_class: type[Section]) -> tuple[Option, ...]:
    """Every section and option of a command, each section before what is in it."""
    schema = config_class.model_json_schema()
    return tuple(walk(schema, "", cast("Mapping[str, Node]", schema.get("$defs", {}))))


def by_stage(configs: Mapping[str, type[Section]]) -> dict[Option, list[str]]:
    """Each option once, with the stages that have it just so."""
    found: dict[Option, list[str]] = {}
    for stage, config_class in configs.items():
        for option in options_of(config_class):
            found.setdefault(option, []).append(stage)
    return found


def walk(section: Node, above: str, definitions: Mapping[str, Node]) -> Iterator[Option]:
    required = section.get("required", ())
    for name, node in cast("Mapping[str, Node]", section.get("properties", {})).items():
        item = section_below(node.get("items", {}), definitions)
        below = section_below(node, definitions) or item
        default = "" if name in required else json.dumps(node.get("default"), ensure_ascii=False)
        yield Option(
            key=above + name,
            type=type_of(node, definitions)
            if below is None or item is not None
            else "section or null"
            if "anyOf" in node
            else "section",
            bounds=bounds_of(node),
            default="" if below is not None and item is None and "anyOf" not in node else default,
            description=words(node.get("description") or (below or {}).get("description") or ""),
            is_section=below is not None,
        )
        if below is not None:
            yield from walk(below, f"{above}{name}.", definitions)


def section_below(node: Node, definitions: Mapping[str, Node]) -> Node | None:
    """The section a value is: a section, or a section that may be absent. None for any other value."""
    kinds = [kind for kind in node.get("anyOf", [node]) if kind.get("type") != "null"]
    if len(kinds) != 1 or "$ref" not in kinds[0]:
        return None
    found = definitions[kinds[0]["$ref"].rsplit("/", 1)[-1]]
    return found if "properties" in found else None


def type_of(node: Node, definitions: Mapping[str, Node]) -> str:
    """Words a person reads: ``float or null``, or the allowed words."""
    for several in ("anyOf", "oneOf"):
        if several in node:
            kinds = dict.fromkeys(type_of(kind, definitions) for kind in node[several])
            return (" | " if any("enum" in kind for kind in node[several]) else " or ").join(kinds)
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        kind = definitions[name]
        return name.removesuffix("Section").lower() if "properties" in kind else type_of(kind, definitions)
    if "enum" in node or "const" in node:
        return " | ".join(str(word) for word in node.get("enum", [node.get("const")]))
    if node.get("type") == "array":
        item: Node = node["prefixItems"][0] if "prefixItems" in node else node.get("items", {})
        return f"list of {type_of(item, definitions)}"
    return "path" if node.get("format") == "path" else NAMES.get(str(node.get("type")), "value")


def bounds_of(node: Node) -> str:
    """The bounds of a number, also of the number among several kinds, and of the numbers of a list."""
    own = [f"{word} {plain_number(node[name])}" for name, word in BOUNDS.items() if name in node]
    below = [*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("prefixItems", ())[:1]]
    return ", ".join(own) or next((found for found in map(bounds_of, below) if found), "")


def plain_number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def words(text: str) -> str:
    return " ".join(text.replace("``", "`").split())
