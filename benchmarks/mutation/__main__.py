"""Does a test notice every slip of the pen in tightrope.maths? Mutation testing with Cosmic Ray.

    make mutants                                  all mutants, one core
    python -m benchmarks.mutation [MODULE ...]    those of some modules, like ``kl`` or ``ragged``
        --again    only what survived in the last run, after tests were added
        --count    how many there are, without running a test

It works on a copy under build/mutation, one for each choice of modules. Exit code 1 when a mutant survives that
``equivalents.toml`` does not list, or when a listed one is killed or no longer made. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.mutation.mutants import Mutant, mutants_of
from benchmarks.mutation.report import Outcome, read_outcomes, report

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODULES = sorted(word for word in sys.argv[1:] if not word.startswith("--"))
COPY = ROOT / "build" / "mutation" / ("-".join(MODULES) or "all")
OUTCOMES = COPY / "outcomes.jsonl"
TESTS_PYTHON = Path(os.environ.get("TESTS_PYTHON", ROOT / ".venv" / "bin" / "python"))
Ask = Callable[[Mapping[str, object]], tuple[bool, str]]


def main() -> int:
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    earlier = read_outcomes(OUTCOMES) if "--again" in sys.argv else []
    wanted = {outcome.mutant for outcome in earlier if not outcome.killed}
    kept = [outcome for outcome in earlier if outcome.killed]
    copy_repository()
    left_out: Counter[str] = Counter()
    sources = sorted((COPY / "src/tightrope/maths").glob("*.py"))
    paths = [path for path in sources if not MODULES or path.stem in MODULES]
    if "--count" in sys.argv:
        made = Counter(name for path in paths for _, name, _, _ in mutants_of(path, left_out))
        print(json.dumps({"mutants": made.total(), "operators": made, "left_out": left_out}, indent=1))
        return 0
    with OUTCOMES.open("w", encoding="utf-8") as file, warm_tests() as ask:
        for outcome in kept:
            print(outcome.to_json(), file=file)
        for path in paths:
            for outcome in tested(path, wanted if earlier else None, left_out, ask):
                print(outcome.to_json(), file=file, flush=True)
    return report(read_outcomes(OUTCOMES), left_out, HERE / "equivalents.toml", not MODULES, time.monotonic() - begun)


def copy_repository() -> None:
    COPY.mkdir(parents=True, exist_ok=True)
    for name in ("src", "tests"):
        shutil.rmtree(COPY / name, ignore_errors=True)
        shutil.copytree(ROOT / name, COPY / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", COPY)


def tested(path: Path, wanted: set[Mutant] | None, left_out: Counter[str], ask: Ask) -> Iterator[Outcome]:
    begun, count, alive = time.monotonic(), 0, 0
    for mutant, operator, text, line in mutants_of(path, left_out):
        if wanted is None or mutant in wanted:
            killed, by = ask({"path": str(path), "text": text, "line": line})
            if by.startswith("the change could not be made"):
                raise SystemExit(f"{mutant}\n{by}")
            count, alive = count + 1, alive + (not killed)
            yield Outcome(mutant, operator, killed, by)
    seconds = time.monotonic() - begun
    print(f"{path.stem}: {count} mutants, {alive} survived, {seconds:.0f} s", file=sys.stderr, flush=True)


@contextmanager
def warm_tests() -> Iterator[Ask]:
    """Starts ``warm_tests.py``; gives a function that runs the tests on what lies in the copy: (killed, by which)."""
    address = f"/tmp/tightrope-mutants-{os.getpid()}"
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}
    environment = os.environ | quiet | {"PYTHONPATH": str(COPY / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    command = [str(TESTS_PYTHON), str(HERE / "warm_tests.py"), address]
    with subprocess.Popen(command, cwd=COPY, env=environment, stdout=subprocess.PIPE, text=True) as warm:
        try:
            assert warm.stdout is not None
            for said in warm.stdout:
                if said.strip() == "ready":
                    break
                print(said, end="", file=sys.stderr)
            else:
                raise SystemExit("the tests do not run")

            def ask(mutant: Mapping[str, object]) -> tuple[bool, str]:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(address)
                    with connection.makefile("rw", encoding="utf-8") as stream:
                        print(json.dumps(mutant), file=stream, flush=True)
                        killed, by = json.loads(stream.read())
                return killed, by

            yield ask
        finally:
            warm.terminate()
            Path(address).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
