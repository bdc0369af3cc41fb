"""Which options exist? ``options.txt`` pins the list: adding, renaming or re-defaulting one is a visible change.

After a change on purpose:  python tests/architecture/test_options.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from tightrope.algorithms.options import CONFIGS
from tightrope.config.base import Section
from tightrope.config.suggestions import KNOWN_NAMES, all_paths, key_tree

PINNED = Path(__file__).with_name("options.txt")


def option_lines() -> list[str]:
    """``stages key: type = default`` for every option, each once, sorted by key."""
    found: dict[str, list[str]] = {}
    for stage, config_class in CONFIGS.items():
        for line in section_lines(config_class, ""):
            found.setdefault(line, []).append(stage)
    return [f"{' '.join(stages):<20} {line}" for line, stages in sorted(found.items())]


def section_lines(section: type[Section], above: str) -> list[str]:
    lines = []
    for name, field in section.model_fields.items():
        below = section_of(field.annotation)
        if below is not None:
            lines += section_lines(below, f"{above}{name}.")
        if below is None or (not field.is_required() and field.default is None):
            default = "required" if field.is_required() else json.dumps(field.default)
            lines.append(f"{above}{name}: {type_text(field.annotation)} = {default}")
    return lines


def section_of(annotation: Any) -> type[Section] | None:
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    return next((kind for kind in kinds if issubclass(kind, Section)), None)


def type_text(annotation: Any) -> str:
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    if get_origin(annotation) in (UnionType, Union):
        return " | ".join(map(type_text, get_args(annotation)))
    if get_origin(annotation) is tuple:
        return f"[{', '.join(map(type_text, get_args(annotation)))}]"
    if get_origin(annotation) is not None:
        return type_text(get_args(annotation)[0])
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def sections(section: type[Section]) -> list[type[Section]]:
    below = [section_of(field.annotation) for field in section.model_fields.values()]
    return [section, *(inner for kind in below if kind is not None for inner in sections(kind))]


def test_the_option_list_is_the_pinned_one():
    assert option_lines() == PINNED.read_text().splitlines()


def test_every_option_says_what_it_is():
    silent = [
        f"{section.__name__}.{name}"
        for config_class in CONFIGS.values()
        for section in sections(config_class)
        for name, field in section.model_fields.items()
        if section_of(field.annotation) is None and not (field.description or "").strip()
    ]
    assert silent == []


def test_names_of_other_tools_lead_to_keys_that_exist():
    known = {".".join(path) for config_class in CONFIGS.values() for path in all_paths(key_tree(config_class))}
    assert {key for keys in KNOWN_NAMES.values() for key in keys} <= known


def test_options_and_their_loading_need_no_torch():
    code = (
        "import sys, tightrope.algorithms.options, tightrope.config.load\n"
        "sys.exit(any(name.split('.')[0] in ('torch', 'transformers', 'numpy') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


if __name__ == "__main__":
    PINNED.write_text("\n".join(option_lines()) + "\n")
