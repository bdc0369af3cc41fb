"""Which mutants survived, which of them are known to be equivalent, and what is the score?"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.result import ROOT, Result, sources_digest, tests_digest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

EQUIVALENTS = Path(__file__).with_name("equivalents.toml")


@dataclass(frozen=True)
class Outcome:
    """A mutant, who made it, the first test that failed, and how long that took."""

    mutant: Mutant
    operator: str
    killed: bool
    by: str
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def from_json(line: str) -> Outcome:
        entry = json.loads(line)
        return Outcome(Mutant(**entry.pop("mutant")), **entry)


def read_equivalents(path: Path = EQUIVALENTS) -> dict[Mutant, str]:
    """The reason of each. Raises ValueError when one is listed twice."""
    found: dict[Mutant, str] = {}
    for group in tomllib.loads(path.read_text(encoding="utf-8")).get("group", []):
        for function, before, after in group["mutants"]:
            mutant = Mutant(function, before, after)
            if mutant in found:
                raise ValueError(f"{path.name} lists twice: {mutant}")
            found[mutant] = group["reason"]
    return found


def report(outcomes: Sequence[Outcome], left_out: Counter[str], versions: Mapping[str, str], whole: bool) -> Result:
    """Prints it all. ``whole``: all modules were run, so that a listed mutant that is missing is not made any more."""
    equivalents = read_equivalents()
    survived = [outcome.mutant for outcome in outcomes if not outcome.killed]
    killed = {outcome.mutant for outcome in outcomes if outcome.killed}
    unknown = [mutant for mutant in survived if mutant not in equivalents]
    stale = [mutant for mutant in equivalents if mutant in killed or (whole and mutant not in survived)]
    reasons = Counter(equivalents[mutant] for mutant in survived if mutant in equivalents)
    result = Result(
        sources=sources_digest(ROOT),
        tests=tests_digest(ROOT),
        mutants=len(outcomes),
        killed=len(outcomes) - len(survived),
        survived=len(unknown),
        stale=len(stale),
        equivalent=dict(reasons.most_common()),
        left_out=dict(left_out.most_common()),
        seconds=round(sum(outcome.seconds for outcome in outcomes)),
        versions=versions,
    )
    print_counts("left out before the run", left_out)
    print_counts("mutants by operator", Counter(family(outcome.operator) for outcome in outcomes))
    print_counts("mutants by module", Counter(outcome.mutant.function.split(".")[0] for outcome in outcomes))
    print_counts("equivalent by reason", reasons)
    for title, mutants in (("SURVIVED", unknown), ("LISTED AS EQUIVALENT, BUT KILLED OR NOT MADE", stale)):
        for mutant in sorted(mutants):
            print(f"{title}: {mutant}")
    print(f"{result.mutants} mutants: {result.killed} killed, {result.survived} survived,", end=" ")
    print(f"{result.equivalents} equivalent ({result.equivalent_share:.2%} of all)")
    print(f"score: {result.score:.2%} of those that are not equivalent, in {result.seconds} s")
    shares = {"score": result.score, "equivalent_share": result.equivalent_share, "whole": whole}
    print(json.dumps({**asdict(result), **shares}, ensure_ascii=False))
    return result


def print_counts(title: str, counts: Counter[str]) -> None:
    print(f"{title}:")
    for reason, count in counts.most_common():
        print(f"  {count:5d}  {reason}")


def family(operator: str) -> str:
    """``core/ReplaceBinaryOperator_Add_Sub`` -> ``core/ReplaceBinaryOperator``."""
    return operator.split("_")[0] if operator.startswith("core/") else operator
