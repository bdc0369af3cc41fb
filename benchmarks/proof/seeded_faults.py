"""Chapter 3: does each fault show? By the share of the optimum it reaches, by a named check, or by the self-test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.proof.checks import checkers_of, small
from benchmarks.proof.claims import Chapter, Claim, Work
from benchmarks.proof.faults import Fault, broken
from benchmarks.proof.faults_credit import CREDIT_FAULTS
from benchmarks.proof.faults_rollout import ROLLOUT_FAULTS
from benchmarks.proof.faults_update import UPDATE_FAULTS
from benchmarks.proof.runs import Variant, result_of

FAULTS: tuple[Fault, ...] = (*CREDIT_FAULTS, *UPDATE_FAULTS, *ROLLOUT_FAULTS)
SHORT = 60
"""Steps of a faulty run: fewer than in chapter 1, and enough for correct code (first row of the table)."""
CAUGHT = 0.9
"""A run that reaches no more than this share of the optimum shows that something is wrong."""
SOUND = 0.93
"""What correct code reaches in so many steps at least."""
COLUMNS = ("fault", "share of the optimum", "caught by")
SHOWN = 3
"""Names of checks in a row; the rest is counted."""


@dataclass(frozen=True)
class Verdict:
    """``share`` of the optimum, None where the run was refused; ``failed`` names the checks that noticed."""

    share: float | None
    failed: tuple[str, ...]

    @property
    def ways(self) -> int:
        """By how many checks it was caught, the known optimum being one."""
        return len(self.failed) + (self.share is not None and not self.share > CAUGHT)


def seeded_faults(work: Work) -> Chapter:
    faults = [fault for fault in FAULTS if work.wanted(fault.what)]
    if not faults:
        return Chapter("Seeded faults", "", COLUMNS, [], [])
    sound = list({repr(fault.variant): fault.variant for fault in faults}.values())
    clean = work.map(verdict_of_sound, sound)
    verdicts = work.map(verdict_of_fault, [fault.what for fault in faults])
    lowest = min((verdict.share for verdict in clean if verdict.share is not None), default=math.nan)
    failed = [name for verdict in clean for name in verdict.failed]
    return Chapter(
        title="Seeded faults",
        text=f"{SHORT} steps each. The first row: the code as it is, in the {len(sound)} variants that the faults use.",
        columns=COLUMNS,
        rows=[
            ["none", f"{lowest:.3f} or more", shown(failed)],
            *([fault.what, share_text(v), shown(v.failed)] for fault, v in zip(faults, verdicts, strict=True)),
        ],
        claims=[
            Claim("sound code: worst share of the optimum", lowest, SOUND),
            Claim("sound code: checks that fail", len(failed), 0, at_most=True),
            *(
                Claim(f"fault noticed: {fault.what}: by how many checks", v.ways, 1)
                for fault, v in zip(faults, verdicts, strict=True)
            ),
        ],
    )


def verdict_of_sound(variant: Variant) -> Verdict:
    failed = [m.name for checker in checkers_of(variant) for m in checker(small(variant)) if not m.passed]
    return Verdict(result_of(replace(variant, steps=SHORT)).share, tuple(failed))


def verdict_of_fault(what: str) -> Verdict:
    """Raises RuntimeError where the mutated code was never called."""
    (fault,) = (fault for fault in FAULTS if fault.what == what)
    failed: list[str] = []
    with broken(fault) as hits:
        for checker in checkers_of(fault.variant):
            try:
                failed += [m.name for m in checker(small(fault.variant)) if not m.passed]
            except Exception as error:  # a fault may make anything impossible
                failed.append(f"{type(error).__name__} in {checker.__name__}")
        try:
            share = result_of(replace(fault.variant, steps=SHORT), with_self_test=False).share
        except Exception as error:
            share, failed = None, [*failed, f"{type(error).__name__} in the run"]
    if not hits.count:
        raise RuntimeError(f"the fault {what!r} was never reached: it proves nothing")
    return Verdict(share, tuple(failed))


def share_text(verdict: Verdict) -> str:
    return "refused" if verdict.share is None else f"{verdict.share:.3f}"


def shown(names: Sequence[str]) -> str:
    more = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return "; ".join([*names[:SHOWN], *more])
