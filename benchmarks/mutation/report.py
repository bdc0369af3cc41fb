"""Which mutants survived, which of them are known to be equivalent, and what is the score?"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.mutation.mutants import Mutant

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Outcome:
    """A mutant, who made it, and the first test that failed."""

    mutant: Mutant
    operator: str
    killed: bool
    by: str

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def read_outcomes(path: Path) -> list[Outcome]:
    found: list[Outcome] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        found.append(Outcome(Mutant(**entry.pop("mutant")), **entry))
    return found


def read_equivalents(path: Path) -> dict[Mutant, str]:
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
    return {Mutant(entry["function"], entry["before"], entry["after"]): entry["reason"] for entry in entries}


def report(outcomes: Sequence[Outcome], left_out: Counter[str], listed: Path, complete: bool, seconds: float) -> int:
    """``complete``: all modules were run, so that a listed mutant that is missing is not made any more."""
    equivalents = read_equivalents(listed)
    survived = [outcome.mutant for outcome in outcomes if not outcome.killed]
    killed = {outcome.mutant for outcome in outcomes if outcome.killed}
    unknown = [mutant for mutant in survived if mutant not in equivalents]
    stale = [mutant for mutant in equivalents if mutant in killed or (complete and mutant not in set(survived))]
    total, known = len(outcomes), len(survived) - len(unknown)

    print_counts("left out before the run", left_out)
    print_counts("mutants by operator", Counter(family(outcome.operator) for outcome in outcomes))
    print_counts("equivalent by reason", Counter(equivalents[mutant] for mutant in survived if mutant in equivalents))
    for title, mutants in (("SURVIVED", unknown), ("LISTED AS EQUIVALENT, BUT KILLED OR NOT MADE", stale)):
        for mutant in sorted(mutants):
            print(f"{title}: {mutant}")
    score = (total - len(survived)) / max(total - known, 1)
    print(f"{total} mutants: {total - len(survived)} killed, {len(unknown)} survived, {known} equivalent")
    print(f"score: {score:.2%} of those that are not equivalent; equivalent: {known / max(total, 1):.2%} of all")
    line = {"mutants": total, "killed": total - len(survived), "survived": len(unknown), "equivalent": known}
    line |= {"stale": len(stale), "score": round(score, 6), "seconds": round(seconds), "complete": complete}
    print(json.dumps(line))
    return 1 if unknown or stale or not total else 0


def print_counts(title: str, counts: Counter[str]) -> None:
    print(f"{title}:")
    for reason, count in counts.most_common():
        print(f"  {count:5d}  {reason}")


def family(operator: str) -> str:
    """``core/ReplaceBinaryOperator_Add_Sub`` -> ``core/ReplaceBinaryOperator``."""
    return operator.split("_")[0] if operator.startswith("core/") else operator
