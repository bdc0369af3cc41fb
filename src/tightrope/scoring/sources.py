"""What happens when a reward source fails: a deadline, more attempts, and one error that lets the run pause.

A function runs in a thread of its own, given up at its deadline. Python cannot end a thread: one that sleeps or waits
is left behind and goes with the process, so an attempt that was too late is not repeated beside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from tightrope.config.errors import TightropeError, one_line
from tightrope.config.reward_sources import SourceSection
from tightrope.protocols import RewardSource
from tightrope.scoring.checked import checked_rewards
from tightrope.types import Sample

LONGEST_WAIT = 30.0
T = TypeVar("T")


class RewardSourceFailed(TightropeError):
    """A source gave no usable numbers, after its retries. Nothing was learned from this step; the run can pause."""


class TooLate(TightropeError):
    """Over its deadline, and perhaps still running."""


class SafeSource:
    """A RewardSource around another: its deadline, its retries, and errors that say which source it was.

    ``retries`` False where the source asks again by itself (HTTP).
    """

    def __init__(
        self,
        source: RewardSource,
        section: SourceSection,
        *,
        retries: bool = True,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._name = f"reward source `{section.name}` ({section.kind})"
        self._attempts = 1 + (section.retries if retries else 0)
        self._first_wait = section.retry_wait
        self._deadline = section.patience if section.kind == "function" else None
        self._sleep = sleep

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Raises RewardSourceFailed."""
        for attempt in range(1, self._attempts + 1):
            try:
                return self._ask(samples)
            except TightropeError as error:
                if attempt == self._attempts or isinstance(error, TooLate):
                    raise self._failed(error, attempt) from error
            except (Exception, SystemExit) as error:
                if attempt == self._attempts:
                    told = TightropeError(f"{type(error).__name__}: {one_line(str(error))}")
                    raise self._failed(told, attempt) from error
            self._sleep(min(LONGEST_WAIT, self._first_wait * 2.0 ** (attempt - 1)))
        raise AssertionError("the last attempt returns or raises")

    def _ask(self, samples: Sequence[Sample]) -> list[float]:
        def work() -> list[float]:
            return checked_rewards(self._source.score(samples), samples, "its answer")

        return work() if self._deadline is None else within(self._deadline, work)

    def _failed(self, error: TightropeError, attempts: int) -> RewardSourceFailed:
        times = "" if attempts == 1 else f" ({attempts} attempts)"
        where = "" if error.where is None or error.where == "its answer" else f"; at {error.where}"
        return RewardSourceFailed(
            f"{self._name} gave no rewards{times}: {error.what}",
            expected=error.expected,
            found=error.found,
            fix=(error.fix or "bring the source back") + where,
        )


def within(seconds: float, work: Callable[[], T]) -> T:
    """What ``work`` gives, in a thread without gradients. Raises what it raises, TooLate at the deadline."""
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with torch.no_grad():
                results.append(work())
        except BaseException as error:  # raised again below, in the thread that asked
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True, name="tightrope-reward")
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise TooLate(f"no answer within {seconds:g} s", fix="make it faster, or raise its deadline in a new run")
    return results[0]
