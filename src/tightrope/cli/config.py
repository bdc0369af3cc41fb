"""``tightrope config``: explain an option, show where a file's values come from, print the schema for editors."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tightrope.algorithms.options import CONFIGS
from tightrope.cli.arguments import Overrides
from tightrope.config.editor_schema import stage_schema, whole_schema
from tightrope.config.errors import TightropeError
from tightrope.config.explain import explain_key
from tightrope.config.explain import show as show_lines
from tightrope.config.load import layered, named_stage
from tightrope.config.sources import Source, read_source

Stage = Literal["sft", "rm", "dpo", "ppo", "rloo"]
For = Annotated[Stage | None, Parameter(help="The command the file is for. Absent: seen from its sections.")]


def explain(
    key: str,
    /,
    *overrides: Overrides,
    config: Annotated[Path | None, Parameter(help="YAML file: show its value too, and where it comes from.")] = None,
    stage: For = None,
) -> None:
    """Say what an option or a section is, and where its value in a file comes from.

    Parameters
    ----------
    key
        An option or a section, as kl.beta or kl; or the name it has in TRL, OpenRLHF or verl.
    """
    source = None if config is None else read(config, overrides, stage)[1]
    print("\n".join(explain_key(key, CONFIGS, source)))


def show(
    config: Path,
    /,
    *overrides: Overrides,
    stage: For = None,
    everything: Annotated[bool, Parameter(name="--all", negative=(), help="Also what has its default.")] = False,
) -> None:
    """Show every value of a config and where it comes from: the file, an override or a preset.

    Parameters
    ----------
    config
        YAML file.
    """
    found, source = read(config, overrides, stage)
    print("\n".join(show_lines(CONFIGS[found], source, everything)))


def schema(stage: Annotated[Stage | None, Parameter(help="A command. Absent: all of them.")] = None, /) -> None:
    """Print the JSON Schema with which an editor completes and checks a config."""
    found = whole_schema(CONFIGS) if stage is None else stage_schema(stage, CONFIGS[stage])
    print(json_format.dumps(found, indent=2, ensure_ascii=False))


def read(path: Path, overrides: tuple[str, ...], stage: Stage | None) -> tuple[str, Source]:
    """The file with overrides and preset, and its command."""
    source = read_source(path, overrides)
    found = stage or stage_of(source)
    return found, layered(source, CONFIGS[found])


def stage_of(source: Source) -> str:
    """Raises TightropeError when the file does not tell."""
    named = named_stage(source)
    if isinstance(named, str) and named in CONFIGS:
        return named
    fix = f"add --stage {'|'.join(CONFIGS)}, or write `stage: ppo` (or another) in the file"
    raise TightropeError("for which command is this file?", where=source.name, fix=fix)
