"""Does the proof tell a mutation score that is not full, too many equivalents, or a result of other equations?"""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from benchmarks.mutation.code_in_place import change_in_place, skeleton
from benchmarks.mutation.filters import SAME, TWIN, WORDS, Source
from benchmarks.mutation.result import Result, digest, read_result
from benchmarks.proof.mutation_score import chapter_of

GOOD = Result(
    sources="s",
    tests="t",
    mutants=100,
    killed=98,
    survived=0,
    stale=0,
    equivalent={"the same": 2},
    left_out={},
    seconds=9,
    versions={"python": "3.11"},
)


def missed(result: Result, sources: str = "s") -> list[str]:
    return [claim.name for claim in chapter_of(result, sources, "t").claims if not claim.passed]


def test_a_full_score_passes() -> None:
    assert (GOOD.score, GOOD.equivalent_share) == (1.0, 0.02)
    assert missed(GOOD) == []


@pytest.mark.parametrize(
    ("result", "sources", "claim"),
    [
        (replace(GOOD, killed=97, survived=1), "s", "mutants killed, of those that are not equivalent"),
        (replace(GOOD, killed=96, equivalent={"a": 2, "b": 2}), "s", "mutants that are equivalent, of all"),
        (replace(GOOD, stale=1), "s", "mutants listed as equivalent that are killed or not made"),
        (GOOD, "other", "mutants were made of the equations as they are"),
    ],
)
def test_what_is_missing_is_told(result, sources, claim) -> None:
    assert missed(result, sources) == [claim]


def test_the_committed_result_can_be_read() -> None:
    result = read_result()
    assert result.mutants == result.killed + result.survived + result.equivalents > 3000


def test_the_digest_is_of_names_and_bytes(tmp_path) -> None:
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text("x = 1\n")
    before = digest(tmp_path, [first])
    second.write_text("x = 1\n")
    assert before != digest(tmp_path, [second])
    first.write_text("x = 2\n")
    assert before != digest(tmp_path, [first])


MODULE = '''
"""Words."""
LIMIT = 2.0


def half(x: float, by: float = 2.0) -> float:
    if x < 0:
        raise ValueError("no")
    return min(x / by, LIMIT)
'''


def test_words_are_no_mutants_and_the_same_program_is_none_either() -> None:
    source = Source("module", MODULE)
    start = MODULE.splitlines()[7].index('"no"')
    assert source.reason_to_skip((8, start), (8, start + 4)) == WORDS
    assert source.reason_to_skip((9, 11), (9, 14)) is None
    assert source.reason_to_drop(MODULE.replace("x / by", "(x / by)")) == SAME
    assert source.reason_to_drop(MODULE.replace("min", "max")) is None
    assert source.reason_to_drop(MODULE.replace("min", " max")) == TWIN
    assert source.function_at(9) == ("module.half", 6)


def test_a_mutant_keeps_its_name_when_lines_move() -> None:
    mutant = Source("module", MODULE).changed_lines(MODULE.replace("min", "max"))
    moved = "\n\n" + MODULE
    assert mutant == Source("module", moved).changed_lines(moved.replace("min", "max"))
    assert mutant == ("return min(x / by, LIMIT)", "return max(x / by, LIMIT)")


def test_a_function_takes_the_code_of_a_mutant_where_it_stands(monkeypatch) -> None:
    text = MODULE.replace("by: float = 2.0", "by: float = 4.0").replace("min", "max").replace("= 2.0\n", "= 3.0\n")
    module, mutated = ModuleType("half_of"), ModuleType("half_of")
    exec(compile(MODULE, "module", "exec"), vars(module))
    exec(compile(text, "module", "exec"), vars(mutated))
    monkeypatch.setitem(sys.modules, "half_of", module)
    half = module.half
    assert half(8.0) == 2.0
    assert skeleton(text) == skeleton(MODULE) != skeleton(MODULE.replace("def half", "@staticmethod\ndef half"))
    change_in_place(vars(module), vars(mutated), ast.parse(MODULE), ast.parse(text))
    assert (half(8.0), half(40.0), module.LIMIT) == (3.0, 10.0, 3.0)
