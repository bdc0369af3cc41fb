"""Writes the reference pages that the code itself knows: every option and every metric.

python docs/build.py          write docs/options.md and docs/metrics.md
python docs/build.py --check  exit 1 when a page differs from what the code says
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tightrope.algorithms.options import CONFIGS
from tightrope.guardian.metric_cards import CARDS

HERE = Path(__file__).parent
STAGE_TITLES = {
    "sft": "`tightrope sft`",
    "rm": "`tightrope rm train`",
    "dpo": "`tightrope dpo`",
    "ppo": "`tightrope ppo`",
    "rloo": "`tightrope rloo`",
}


def options_page() -> str:
    lines = [
        "# Options",
        "",
        "One YAML a run; any key can be given on the command line too, as `kl.beta=0.1`. Written by `make docs`.",
    ]
    seen: dict[str, str] = {}
    for stage, config in CONFIGS.items():
        rows = [(path, field) for path, field in fields_of(config, "") if seen.setdefault(path, stage) == stage]
        lines += ["", f"## {STAGE_TITLES[stage]}" + (", beyond those above" if len(seen) > len(rows) else ""), ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [row_of(path, field) for path, field in rows]
    return "\n".join(lines) + "\n"


def fields_of(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    """Every leaf option; an optional section is listed itself and then its own options."""
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is None or (not field.is_required() and field.default is None):
            yield prefix + name, field
        if section is not None:
            yield from fields_of(section, f"{prefix}{name}.")


def section_of(annotation: Any) -> type[BaseModel] | None:
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def row_of(path: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else f"`{plain(field.default)}`"
    description = " ".join((field.description or "").replace("``", "`").split())
    return f"| `{path}` | {type_name(field.annotation)} | {default} | {description} |".replace("||", "|")


def plain(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def type_name(annotation: Any) -> str:
    """Words a person reads: `float or null`, or the list of allowed words."""
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(annotation))
    if get_origin(annotation) is Annotated:
        return type_name(get_args(annotation)[0])
    if section_of(annotation) is not None:
        return "section"
    if get_origin(annotation) is tuple:
        return "list of " + type_name(get_args(annotation)[0])
    parts = get_args(annotation)
    if parts:
        return " or ".join(type_name(part) for part in parts)
    return {type(None): "null", Path: "path"}.get(annotation, annotation.__name__)


def metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        "What a run reports at each step. An undefined metric is absent, never 0. Written by `make docs`.",
        "",
        "| metric | unit | what it is | healthy | what to do |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{card.name}` | {card.unit} | {card.formula} | {card.healthy} | {card.what_to_do} |"
        for card in CARDS.values()
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    stale = []
    for name, text in (("options.md", options_page()), ("metrics.md", metrics_page())):
        path = HERE / name
        if "--check" in sys.argv:
            stale += [name] if not path.exists() or path.read_text() != text else []
        else:
            path.write_text(text)
    if stale:
        print(f"out of date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
