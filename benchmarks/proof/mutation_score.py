"""Is there a test for every line of the equations? What the last ``make mutants`` found, read, not run again.

A mutant is ``src/tightrope/maths`` with one change: a sign, an operand less, arguments swapped. Claimed is that a test
fails for each of them, but for those listed that compute the same numbers, and that the equations are still the same.
"""

from __future__ import annotations

from benchmarks.mutation.result import Result, read_result, sources_digest, tests_digest
from benchmarks.proof.claims import Chapter, Claim, Work

TITLE = "Mutants of the equations"
COLUMNS = ("mutants", "number")
EQUIVALENTS_LIMIT = 0.03
"""Of all mutants: more would be a list that nobody checks."""


def mutation_score(work: Work) -> Chapter:
    if not work.wanted(TITLE):
        return Chapter(TITLE, "", COLUMNS, [], [])
    return chapter_of(read_result(), sources_digest(), tests_digest())


def chapter_of(result: Result, sources: str, tests: str) -> Chapter:
    """``sources`` and ``tests`` as they are now."""
    current = result.sources == sources
    age = "Measured on the equations as they are" if current else "Stale: the equations changed since; run make mutants"
    if current and result.tests != tests:
        age += ", with tests that changed since"
    tools = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return Chapter(
        title=TITLE,
        text=f"{age}. {result.seconds} s on one core; {tools}. `make mutants` runs them all.",
        columns=COLUMNS,
        rows=[
            ["made", str(result.mutants)],
            ["killed by a test", str(result.killed)],
            ["survived", str(result.survived)],
            *([f"the same numbers: {reason}", str(count)] for reason, count in result.equivalent.items()),
        ],
        claims=[
            Claim("mutants killed, of those that are not equivalent", result.score, 1.0),
            Claim("mutants that are equivalent, of all", result.equivalent_share, EQUIVALENTS_LIMIT, at_most=True),
            Claim("mutants listed as equivalent that are killed or not made", result.stale, 0, at_most=True),
            Claim("mutants were made of the equations as they are", float(current), 1.0),
        ],
    )
