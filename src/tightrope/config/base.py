"""The base of every config section, and the types that several share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

FunctionSpec = Annotated[str, Field(pattern=r"^([^:]+:[A-Za-z_]\w*|[A-Za-z_][\w-]*)$")]
"""``module:function``, ``file.py:function``, or the name of an entry point."""
ModelName = Annotated[str, BeforeValidator(lambda given: str(given) if isinstance(given, Path) else given)]
"""Where a model is: in Python a ``Path`` will do."""


class Section(BaseModel):
    """Strict, frozen, and closed: an unknown key is an error, a wrong type is never converted.

    Each field's description is its help, its documentation and its form field.
    """

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


def refused(key: str, what: str, fix: str) -> PydanticCustomError:
    """A rule over several keys is broken. ``key``: the one to look at, seen from the section that raises this."""
    return PydanticCustomError("refused", "{what}", {"key": key, "what": what, "fix": fix})
