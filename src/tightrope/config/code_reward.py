"""How responses that are code are run and scored."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from typing_extensions import Self

from tightrope.config.base import Section, refused


class CodeSection(Section):
    credit: Literal["all", "share"] = "all"
    """``all``: 1 where every case passes, else 0. ``share``: the share of cases that pass."""
    sandbox: Literal["auto", "bubblewrap", "landlock", "command"] = "auto"
    """How code is kept away from this machine. ``auto``: bubblewrap, else Landlock, else the run is refused."""
    command: tuple[str, ...] = ()
    """With ``sandbox: command``: what starts a container of yours; its last word is the Python interpreter in it."""
    seconds: PositiveFloat = 6.0
    """Wall-clock seconds of one case."""
    cpu_seconds: PositiveInt = 2
    """Seconds of processor time of one case."""
    memory_mib: int = Field(default=256, ge=64)
    """Address space of one case, in MiB."""
    parallel: PositiveInt | None = None
    """Cases that run at a time. Absent: one a core."""
    tolerance: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Relative difference up to which numbers with a decimal point count as equal."""

    @model_validator(mode="after")
    def names_a_command_where_one_is_used(self) -> Self:
        if self.sandbox == "command" and not self.command:
            raise refused("command", "sandbox: command has no command", "set command, such as [docker, run, ...]")
        if self.sandbox != "command" and self.command:
            raise refused("command", f"command does nothing with sandbox: {self.sandbox}", "set sandbox: command")
        return self
