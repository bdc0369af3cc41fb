"""What does an editor need to complete and check a config? A JSON Schema of one command, or of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tightrope.config.base import Section

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def stage_schema(stage: str, config_class: type[Section]) -> dict[str, Any]:
    """The schema of a command's YAML, with the ``stage:`` line a file may have."""
    schema = config_class.model_json_schema()
    named = {"const": stage, "description": "The command this file is for."}
    schema["properties"] = {"stage": named, **schema["properties"]}
    return {"$schema": DIALECT, **schema, "title": f"tightrope {stage}"}


def whole_schema(configs: Mapping[str, type[Section]]) -> dict[str, Any]:
    """A file that fits any command. An editor's messages are better with the schema of one."""
    kinds, definitions = list[dict[str, Any]](), dict[str, Any]()
    for stage, config_class in configs.items():
        schema = stage_schema(stage, config_class)
        definitions |= schema.pop("$defs")
        del schema["$schema"]
        kinds.append(schema)
    return {"$schema": DIALECT, "title": "tightrope", "anyOf": kinds, "$defs": definitions}
