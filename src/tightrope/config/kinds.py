"""Which kinds of value does a field take? A section, a value, or one of several: a number or a schedule.

pydantic tries each kind in turn and puts its name into the place of a mistake: ``kl.beta.Schedule.shpe``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from tightrope.config.base import Section

KeyPath = tuple[str, ...]


def fields_of(section: type[Section]) -> dict[str, FieldInfo]:
    """By the names a person writes."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def kinds_of(annotation: Any) -> list[Any]:
    """Without null: ``float | Schedule | None`` -> float and Schedule."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kinds_of(parts[0])
    if origin in (Union, UnionType):
        return [kind for part in parts for kind in kinds_of(part)]
    return [] if annotation is type(None) else [annotation]


def section_in(annotation: Any) -> type[Section] | None:
    """The section that a value is, or may be, or that each value of a list is."""
    kinds = [
        item for kind in kinds_of(annotation) for item in (kinds_of(get_args(kind)[0]) if is_list(kind) else [kind])
    ]
    sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
    return sections[0] if sections else None


def is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple and get_args(annotation)[1:] == (...,)


def without_kinds(location: Sequence[int | str], config_class: type[Section]) -> tuple[KeyPath, str | None]:
    """The keys of a place, and the name of the kind that was tried when the place ends with one."""
    keys: list[str] = []
    fields: Mapping[str, FieldInfo] = fields_of(config_class)
    rest = [part for part in location if isinstance(part, str)]
    while rest:
        key = rest.pop(0)
        keys.append(key)
        if key not in fields:
            return (*keys, *rest), None
        annotation = fields[key].annotation
        if len(kinds_of(annotation)) > 1 and rest:
            kind = rest.pop(0)
            if not rest:
                return tuple(keys), kind
        below = section_in(annotation)
        fields = {} if below is None else fields_of(below)
    return tuple(keys), None


def is_other_kind(location: Sequence[int | str], value: object, config_class: type[Section]) -> bool:
    """The complaint of a kind that was not meant: a schedule where a number is written, or the reverse."""
    keys, kind = without_kinds(location, config_class)
    if kind is None:
        return False
    below: type[Section] | None = config_class
    for key in keys:
        below = None if below is None else section_in(fields_of(below)[key].annotation)
    is_section = below is not None and below.__name__.lower() == kind.strip("<>").lower()
    return below is not None and is_section != isinstance(value, dict)
