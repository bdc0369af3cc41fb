"""What do several commands take alike? Overrides and flags with their help, and the length of an answer."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from tightrope.config.errors import TightropeError

Overrides = Annotated[str, Parameter(help="key.path=value, e.g. kl.beta=0.1")]
Quiet = Annotated[bool, Parameter(negative=(), help="Show nothing while it runs.")]
Json = Annotated[bool, Parameter(negative=(), help="Print the result as one JSON object on the last line.")]
Profile = Annotated[
    bool, Parameter(negative=(), help="Say at the end where time and memory went, and write profile.json in the run.")
]
Temperature = Annotated[float, Parameter(help="Divides the logits.")]
Seed = Annotated[int, Parameter(help="Keys the random numbers.")]

INTERRUPTED = 130
"""Exit code 128 + SIGINT, as shells report it."""


def new_tokens_of(asked: int | None, usual: int, context: int) -> int:
    """Longest answer: as asked, else the usual, or half the context if that is less. Raises TightropeError when no room
    for a prompt would be left.

    >>> new_tokens_of(None, 64, context=2048), new_tokens_of(None, 64, context=32), new_tokens_of(8, 64, context=32)
    (64, 16, 8)
    """
    if asked is not None and asked >= context:
        raise TightropeError(
            "no room for a prompt is left",
            where="--max-new-tokens",
            expected=f"less than the model's context of {context} tokens",
            found=str(asked),
        )
    return min(usual, context // 2) if asked is None else asked
