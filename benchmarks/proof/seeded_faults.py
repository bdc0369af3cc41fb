"""Chapter 3: does each fault show? By the share of the optimum it reaches, by a named check, or by the self-test."""

from __future__ import annotations

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
OTHER_AIM = "bootstrap_truncated"
"""With it a cut response is worth what the critic expects of going on: no longer J, so J's optimum is no yardstick."""
WRONG_FAULT = (AttributeError, ImportError, NameError, TypeError)
"""What a mutation raises that was written for other code than there is."""
SHOWN = 3
"""Names of checks in a row; the rest is counted."""


@dataclass(frozen=True)
class Verdict:
    """``share`` of the optimum, None where the run was refused; ``failed`` names the checks that noticed. The share
    counts where the run ``aims_at_j``."""

    share: float | None
    failed: tuple[str, ...]
    aims_at_j: bool

    @property
    def ways(self) -> int:
        """By how many checks it was caught, the known optimum being one."""
        return len(self.failed) + (self.aims_at_j and self.share is not None and not self.share > CAUGHT)


def seeded_faults(work: Work) -> Chapter:
    faults = [fault for fault in FAULTS if work.wanted(fault.what)]
    if not faults:
        return Chapter("Seeded faults", "", COLUMNS, [], [])
    sound = list({in_words(fault.variant): fault.variant for fault in faults}.values())
    clean = work.map(verdict_of_sound, sound)
    verdicts = work.map(verdict_of_fault, [fault.what for fault in faults])
    shares = [verdict.share for verdict in clean if verdict.share is not None and verdict.aims_at_j]
    failed = [name for verdict in clean for name in verdict.failed]
    return Chapter(
        title="Seeded faults",
        text=f"{SHORT} steps each. The first rows: sound code in the {len(sound)} variants that the faults use.",
        columns=COLUMNS,
        rows=[
            *(
                [f"none: {in_words(variant)}", share_text(v), shown(v.failed)]
                for variant, v in zip(sound, clean, strict=True)
            ),
            *([fault.what, share_text(v), shown(v.failed)] for fault, v in zip(faults, verdicts, strict=True)),
        ],
        claims=[
            *([Claim("sound code: worst share of the optimum", min(shares), SOUND)] if shares else []),
            Claim("sound code: checks that fail", len(failed), 0, at_most=True),
            *(
                Claim(f"fault noticed: {fault.what}: by how many checks", v.ways, 1)
                for fault, v in zip(faults, verdicts, strict=True)
            ),
        ],
    )


def verdict_of_sound(variant: Variant) -> Verdict:
    failed = [m.name for checker in checkers_of(variant) for m in checker(small(variant)) if not m.passed]
    return Verdict(result_of(replace(variant, steps=SHORT)).share, tuple(failed), aims_at_j(variant))


def aims_at_j(variant: Variant) -> bool:
    return OTHER_AIM not in variant.changes.get("ppo", {})


def verdict_of_fault(what: str) -> Verdict:
    """Raises RuntimeError where the mutated code was never called, or no longer fits the code around it."""
    (fault,) = (fault for fault in FAULTS if fault.what == what)
    return verdict_of_broken(fault)


def verdict_of_broken(fault: Fault) -> Verdict:
    failed: list[str] = []
    with broken(fault) as hits:
        for checker in checkers_of(fault.variant):
            try:
                failed += [m.name for m in checker(small(fault.variant)) if not m.passed]
            except WRONG_FAULT as error:
                raise misfit(fault) from error
            except Exception as error:  # a fault may make anything impossible
                failed.append(f"{type(error).__name__} in {checker.__name__}")
        try:
            share = result_of(replace(fault.variant, steps=SHORT), with_self_test=False).share
        except WRONG_FAULT as error:
            raise misfit(fault) from error
        except Exception as error:
            share, failed = None, [*failed, f"{type(error).__name__} in the run"]
    if not hits.count:
        raise RuntimeError(f"the fault {fault.what!r} was never reached: it proves nothing")
    return Verdict(share, tuple(failed), aims_at_j(fault.variant))


def misfit(fault: Fault) -> RuntimeError:
    return RuntimeError(f"the fault {fault.what!r} does not fit the code: it proves nothing")


def share_text(verdict: Verdict) -> str:
    if verdict.share is None:
        return "refused"
    return f"{verdict.share:.3f}" + ("" if verdict.aims_at_j else " (another aim)")


def in_words(variant: Variant) -> str:
    """
    >>> in_words(Variant(stage="rloo").but("training", token_budget=512))
    'fixed length, RLOO, token_budget 512'
    """
    changes = [f"{name} {value}" for section in variant.changes.values() for name, value in section.items()]
    return ", ".join([f"{variant.form} length", variant.stage.upper(), *(["LoRA"] if variant.lora else []), *changes])


def shown(names: Sequence[str]) -> str:
    more = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return "; ".join([*names[:SHOWN], *more])
