"""The base of every config section."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Strict, frozen, and closed: an unknown key is an error, a wrong type is never converted.

    Each field's description is its help, its documentation and its form field.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True)
