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
    count: int = 0


@contextmanager
def broken(fault: Fault) -> Iterator[Hits]:
    """The library with the fault in it."""
    hits = Hits()
    with ExitStack() as stack:
        for change in fault.patches:
            original: Function = vars(change.owner)[change.name]
            stack.enter_context(patch.object(change.owner, change.name, counted(change.mutated(original), hits)))
        yield hits


def counted(function: Function, hits: Hits) -> Function:
    @wraps(function)
    def call(*args: Any, **others: Any) -> Any:
        hits.count += 1
        return function(*args, **others)

    return call
