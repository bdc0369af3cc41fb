"""Does a test notice every slip of the pen in tightrope.maths? Mutation testing with Cosmic Ray.

    make mutants                                  all mutants, one core; writes result.json
    python -m benchmarks.mutation [MODULE ...]    those of some modules, like ``kl`` or ``ragged``
        --again    only what survived in the last run, after tests were added
        --count    how many there are, without running a test

It works on a copy under build/mutation, one for each choice of modules. A run that was stopped goes on where it was,
unless the equations, the tests or this tool changed. Exit code 1 when a mutant survives that ``equivalents.toml`` does
not list, or when a listed one is killed or no longer made. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from benchmarks.mutation.mutants import Mutant, mutants_of
from benchmarks.mutation.report import Outcome, report
from benchmarks.mutation.result import MATHS, ROOT, digest, sources_digest, tests_digest
from benchmarks.mutation.warm import WarmTests, warm_tests

MIXED = "tests were added during the run"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="all, if none is named")
    parser.add_argument("--again", action="store_true", help="only what survived in the last run")
    parser.add_argument("--count", action="store_true", help="how many there are, without running a test")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    modules = sorted(options.modules) or sorted(path.stem for path in (ROOT / MATHS).glob("*.py"))
    if options.count:
        return count(modules)
    copy = ROOT / "build" / "mutation" / ("-".join(options.modules) or "all")
    copy_repository(copy)
    left_out: Counter[str] = Counter()
    with warm_tests(copy) as tests:
        outcomes = list(tested(modules, copy, options.again, left_out, tests))
        versions = tests.versions | {"cosmic-ray": version("cosmic-ray")}
    result = report(outcomes, left_out, versions, whole=not options.modules)
    if not options.modules and not options.again:
        result.write()
    return 1 if result.survived or result.stale or not result.mutants else 0


def count(modules: Sequence[str]) -> int:
    left_out: Counter[str] = Counter()
    paths = [ROOT / MATHS / f"{module}.py" for module in modules]
    made = Counter(name for path in paths for _, name, _, _ in mutants_of(path, left_out))
    print(json.dumps({"mutants": made.total(), "operators": made, "left_out": left_out}, indent=1))
    return 0


def copy_repository(copy: Path) -> None:
    copy.mkdir(parents=True, exist_ok=True)
    for name in ("src", "tests"):
        shutil.rmtree(copy / name, ignore_errors=True)
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", copy)


def tested(
    modules: Sequence[str], copy: Path, again: bool, left_out: Counter[str], tests: WarmTests
) -> Iterator[Outcome]:
    """Each mutant with its fate, written down as it goes, below a line that says of which state it speaks."""
    file = copy / "outcomes.jsonl"
    state = f"{sources_digest()} {tests_digest()} {digest(ROOT, Path(__file__).parent.glob('*.py'))}"
    known = earlier(file, state, again)
    lines = [MIXED if again else state, *(outcome.to_json() for same in known.values() for outcome in same)]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with file.open("a", encoding="utf-8") as stream:
        for module in modules:
            begun = time.monotonic()
            made = list(tested_module(copy / MATHS / f"{module}.py", known, left_out, tests, stream))
            alive, seconds = sum(not outcome.killed for outcome in made), time.monotonic() - begun
            print(f"{module}: {len(made)} mutants, {alive} survived, {seconds:.0f} s", file=sys.stderr, flush=True)
            yield from made


def earlier(file: Path, state: str, again: bool) -> dict[Mutant, list[Outcome]]:
    """What need not be asked any more."""
    first, *lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else [""]
    known: dict[Mutant, list[Outcome]] = defaultdict(list)
    for outcome in map(Outcome.from_json, lines if again or first == state else ()):
        if outcome.killed or not again:
            known[outcome.mutant].append(outcome)
    return known


def tested_module(
    path: Path, known: Mapping[Mutant, list[Outcome]], left_out: Counter[str], tests: WarmTests, stream: TextIO
) -> Iterator[Outcome]:
    """New outcomes are written to the stream, too."""
    for mutant, operator, text, line in mutants_of(path, left_out):
        if known.get(mutant):
            yield known[mutant].pop(0)
            continue
        begun = time.monotonic()
        killed, by = tests.ask(path, text, line)
        if by.startswith("the change could not be made"):
            raise SystemExit(f"{mutant}\n{by}")
        outcome = Outcome(mutant, operator, killed, by, round(time.monotonic() - begun, 3))
        print(outcome.to_json(), file=stream, flush=True)
        yield outcome


if __name__ == "__main__":
    sys.exit(main())
