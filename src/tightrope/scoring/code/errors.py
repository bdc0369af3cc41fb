"""What went wrong around the generated code, and is nobody's score."""

from __future__ import annotations

from tightrope.config.errors import TightropeError


class SandboxUnavailable(TightropeError):
    """Generated code cannot be run safely here, or the machinery around it failed. Never a score: the run stops or
    pauses, and the same responses are scored again later."""
