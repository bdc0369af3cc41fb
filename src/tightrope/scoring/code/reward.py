"""Does the code in a response do what its row's cases ask? Run in the sandbox, judged outside.

A row has ``entry_point`` (the function's name) and ``cases``, a list (or its JSON text) of objects with ``expected``,
one of ``args`` (a list of arguments) and ``input`` (the only argument), and ``kwargs`` if need be. A column ``prefix``,
where there is one, goes before the code: the signature that the model was to continue.

Every case is a fresh child that gets this input alone. A mistake of the code scores 0 for its case; a mistake of the
row or of the machinery is an error, never a score.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tightrope.config.code_reward import CodeSection
from tightrope.config.errors import TightropeError
from tightrope.scoring.code.extract import code_of
from tightrope.scoring.code.rungs import Limits
from tightrope.scoring.code.sandbox import LADDER, Job, Sandbox
from tightrope.scoring.code.strict_json import same
from tightrope.types import Prompt, Sample


@dataclass(frozen=True)
class Case:
    """One call and what it must return; ``expected`` never enters the sandbox."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    expected: Any


@dataclass(frozen=True)
class Task:
    entry_point: str
    prefix: str
    cases: Sequence[Case]


@dataclass(frozen=True)
class Verdict:
    """``passed`` case by case; ``details`` what happened in those that did not."""

    passed: tuple[bool, ...]
    details: tuple[str, ...]


class CodeReward:
    """A RewardSource. ``verdicts`` are those of the last call, one a sample."""

    def __init__(self, sandbox: Sandbox, section: CodeSection) -> None:
        self.sandbox = sandbox
        self.verdicts: list[Verdict] = []
        self._section = section

    @classmethod
    def open(cls, section: CodeSection | None = None) -> CodeReward:
        """Raises SandboxUnavailable where nothing keeps the code in."""
        section = section or CodeSection()
        sandbox = Sandbox.open(
            LADDER if section.sandbox == "auto" else (section.sandbox,),
            Limits(memory=section.memory_mib << 20, cpu=section.cpu_seconds),
            section.seconds,
            section.parallel,
            section.command,
        )
        return cls(sandbox, section)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Raises TightropeError for a row without sound cases, SandboxUnavailable when the machinery fails."""
        tasks = [task_of(sample.prompt) for sample in samples]
        jobs = [
            [
                Job(task.prefix + code_of(sample.response), task.entry_point, case.args, case.kwargs)
                for case in task.cases
            ]
            for sample, task in zip(samples, tasks, strict=True)
        ]
        lines = list(dict.fromkeys(job.to_line() for group in jobs for job in group))
        by_line = {job.to_line(): job for group in jobs for job in group}
        outcomes = dict(zip(lines, self.sandbox.run_all([by_line[line] for line in lines]), strict=True))
        self.verdicts = []
        for task, group in zip(tasks, jobs, strict=True):
            found = [outcomes[job.to_line()] for job in group]
            passed = tuple(
                outcome.kind == "value" and same(outcome.value, case.expected, self._section.tolerance)
                for outcome, case in zip(found, task.cases, strict=True)
            )
            details = tuple(
                "" if ok else "another value" if outcome.kind == "value" else f"{outcome.kind}: {outcome.detail}"
                for ok, outcome in zip(passed, found, strict=True)
            )
            self.verdicts.append(Verdict(passed, details))
        return [self._credit(verdict.passed) for verdict in self.verdicts]

    def _credit(self, passed: Sequence[bool]) -> float:
        return float(all(passed)) if self._section.credit == "all" else sum(passed) / len(passed)

    def close(self) -> None:
        self.sandbox.close()


def task_of(prompt: Prompt) -> Task:
    """Raises TightropeError naming the row and the column."""
    row, where = prompt.row, f"data row {prompt.index}"
    entry_point, cases, prefix = row.get("entry_point"), row.get("cases"), row.get("prefix") or ""
    if not isinstance(entry_point, str) or not entry_point.isidentifier():
        raise TightropeError("the column entry_point names no function", where=where, found=repr(entry_point))
    if isinstance(cases, str):
        try:
            cases = json.loads(cases)
        except ValueError as error:
            raise TightropeError("the column cases is not JSON", where=where, found=str(error)) from error
    if not isinstance(cases, list) or not cases:
        raise TightropeError(
            "the column cases has no case",
            where=where,
            expected='a list such as [{"args": [1, 2], "expected": 3}]',
            found=type(cases).__name__,
        )
    if not isinstance(prefix, str):
        raise TightropeError("the column prefix is no text", where=where, found=type(prefix).__name__)
    return Task(
        entry_point, prefix, [case_of(case, f"{where}, case {i}") for i, case in enumerate(cast("list[Any]", cases))]
    )


def case_of(case: Any, where: str) -> Case:
    content = cast("dict[str, Any]", case) if isinstance(case, dict) else {}
    if "expected" not in content or ("args" in content) == ("input" in content):
        raise TightropeError(
            "this is no case", where=where, expected="expected, and either args or input", found=", ".join(content)
        )
    args, kwargs = content.get("args", [content.get("input")]), content.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise TightropeError("args is a list and kwargs an object", where=where)
    try:
        json.dumps([args, kwargs, content["expected"]], allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TightropeError("a case holds what JSON cannot", where=where, found=str(error)) from error
    return Case(cast("list[Any]", args), cast("dict[str, Any]", kwargs), content["expected"])
