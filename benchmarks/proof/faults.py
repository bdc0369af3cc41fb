"""Single mutations of the live code path: what people get wrong in PPO, one at a time.

Each replaces functions of the library where they are used, for one run, and counts how often the replacement was
called: a fault that was never reached proves nothing, and is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch

from benchmarks.proof.runs import Variant

Function = Callable[..., Any]


@dataclass(frozen=True)
class Patch:
    """``owner.name`` becomes what ``mutated`` makes of the original."""

    owner: Any
    name: str
    mutated: Callable[[Function], Function]


@dataclass(frozen=True)
class Fault:
    """``what`` is wrong, in the words of who would write it. ``variant`` is the run whose known answer is asked, and
    whose small form is checked."""

    what: str
    patches: tuple[Patch, ...]
    variant: Variant


@dataclass
class Hits:
    """How often the replacement of each patch was called."""

    counts: list[int]

    @property
    def count(self) -> int:
        """Of the patch that was called least; a fault without patches is never reached."""
        return min(self.counts, default=0)


@contextmanager
def broken(fault: Fault) -> Iterator[Hits]:
    """The library with the fault in it."""
    hits = Hits([0] * len(fault.patches))
    with ExitStack() as stack:
        for place, change in enumerate(fault.patches):
            original: Function = vars(change.owner)[change.name]
            stack.enter_context(patch.object(change.owner, change.name, counted(change.mutated(original), hits, place)))
        yield hits


def counted(function: Function, hits: Hits, place: int) -> Function:
    @wraps(function)
    def call(*args: Any, **others: Any) -> Any:
        hits.counts[place] += 1
        return function(*args, **others)

    return call
