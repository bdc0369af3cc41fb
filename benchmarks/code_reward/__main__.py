"""python -m benchmarks.code_reward [--jobs 50] [--rungs bubblewrap landlock] [--problems 60]

One JSON line: for each rung that holds here the median and 95th percentile of a three-case job in milliseconds (the
sandbox warm, one job after another, verdict included), and how many canonical solutions of HumanEval pass.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from benchmarks.code_reward.humaneval import cases_of, problems
from tightrope.config.code_reward import CodeSection
from tightrope.scoring.code.errors import SandboxUnavailable
from tightrope.scoring.code.reward import CodeReward
from tightrope.scoring.code.sandbox import LADDER
from tightrope.types import Prompt, Sample

ROW = {"entry_point": "f", "cases": [{"args": [n], "expected": n * n} for n in (2, 3, 4)]}
PAUSE = 0.2
"""Seconds between two jobs, for the next children to get ready: a policy writes for longer than this."""


def sample_of(index: int, row: dict[str, Any], response: str) -> Sample:
    return Sample(Prompt(index, (), "", row), response, "stop", 0)


def milliseconds(reward: CodeReward, jobs: int) -> list[float]:
    found: list[float] = []
    for number in range(jobs + 1):
        time.sleep(PAUSE)
        job = sample_of(0, ROW, f"def f(x):\n    return x * x + {number} - {number}")
        begin = time.perf_counter()
        assert reward.score([job]) == [1.0]
        found.append(1000 * (time.perf_counter() - begin))
    return found[1:]


def humaneval(reward: CodeReward, limit: int) -> dict[str, Any]:
    """The first ``limit`` problems with an assert on a literal; their solutions in one batch."""
    chosen = [(problem, cases) for problem in problems() if (cases := cases_of(problem["test"]))]
    samples = [
        sample_of(
            index,
            {"entry_point": problem["entry_point"], "prefix": problem["prompt"], "cases": cases},
            problem["canonical_solution"],
        )
        for index, (problem, cases) in enumerate(chosen[:limit])
    ]
    scores = reward.score(samples)
    failed = [chosen[i][0]["task_id"] for i, score in enumerate(scores) if score != 1.0]
    why = [
        next(detail for detail in verdict.details if detail) for verdict in reward.verdicts if not all(verdict.passed)
    ]
    wrong = [sample_of(s.prompt.index, dict(s.prompt.row), "    return None\n") for s in samples]
    return {
        "problems": len(problems()),
        "with_a_literal": len(chosen),
        "checked": len(samples),
        "cases": sum(len(cases) for _, cases in chosen[:limit]),
        "passed": len(samples) - len(failed),
        "failed": dict(zip(failed, why, strict=True)),
        "return_none_passed": sum(score == 1.0 for score in reward.score(wrong)),
    }


def measured(rung: str, jobs: int, limit: int) -> dict[str, Any]:
    try:
        reward = CodeReward.open(CodeSection.model_validate_json(json.dumps({"sandbox": rung})))
    except SandboxUnavailable as error:
        return {"refused": str(error)}
    try:
        times = milliseconds(reward, jobs)
        found: dict[str, Any] = {
            "self_test_seconds": reward.sandbox.facts.seconds,
            "three_cases_ms_median": round(statistics.median(times), 1),
            "three_cases_ms_p95": round(statistics.quantiles(times, n=20)[-1], 1),
        }
        return found | ({"humaneval": humaneval(reward, limit)} if limit and problems() else {})
    finally:
        reward.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--problems", type=int, default=60, help="0: without HumanEval")
    parser.add_argument("--rungs", nargs="+", default=list(LADDER))
    asked = parser.parse_args()
    print(json.dumps({rung: measured(rung, asked.jobs, asked.problems) for rung in asked.rungs}))


if __name__ == "__main__":
    main()
