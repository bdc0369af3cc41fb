"""The base of every config section."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


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
