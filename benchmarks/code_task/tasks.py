"""Small functions to write, generated: a chain of operations in words, and what the function returns.

    number add 3 then square =        ->  ( ( x + 3 ) ** 2 )
    text reverse then drop first =    ->  x [ : : - 1 ] [ 1 : ]

A task's name is its chain. Chains are split, so no held-out task was ever a demonstration or a prompt, and a task's
inputs are split: those of the reward and those of the evaluation differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

PREFIX = "def f(x):\n    return "
INPUTS = {
    "number": ((-3, 0, 5), (-7, 2, 11)),
    "text": (("planet", "a b", "Radio"), ("window", "xyZ", "Quiet sea")),
}
"""Kind -> inputs of the reward, inputs of the evaluation."""
WRONG = 0.5
"""Share of demonstrations of another function than the one that was asked for."""


@dataclass(frozen=True)
class Operation:
    """``code`` has a gap for what it is applied to."""

    words: str
    code: str
    apply: Callable[[Any], Any]


def numbers() -> list[Operation]:
    found = [
        Operation("square", "( {} ** 2 )", lambda x: x**2),
        Operation("negate", "( - {} )", lambda x: -x),
        Operation("absolute", "abs ( {} )", abs),
    ]
    for n in range(1, 10):
        found.append(Operation(f"add {n}", f"( {{}} + {n} )", lambda x, n=n: x + n))
        found.append(Operation(f"subtract {n}", f"( {{}} - {n} )", lambda x, n=n: x - n))
        if n > 1:
            found.append(Operation(f"times {n}", f"( {{}} * {n} )", lambda x, n=n: x * n))
    return found


TEXTS = [
    Operation("reverse", "{} [ : : - 1 ]", lambda x: x[::-1]),
    Operation("upper", "{} . upper ( )", str.upper),
    Operation("swap", "{} . swapcase ( )", str.swapcase),
    Operation("drop first", "{} [ 1 : ]", lambda x: x[1:]),
    Operation("drop last", "{} [ : - 1 ]", lambda x: x[:-1]),
    Operation("twice", "( {} * 2 )", lambda x: x * 2),
]
OPERATIONS = {"number": (numbers(), 2), "text": (TEXTS, 3)}
"""Kind -> its operations, and how many make a task."""


@dataclass(frozen=True)
class Task:
    kind: str
    chain: tuple[Operation, ...]

    @property
    def prompt(self) -> str:
        return f"{self.kind} {' then '.join(one.words for one in self.chain)} ="

    @property
    def code(self) -> str:
        text = "x"
        for one in self.chain:
            text = one.code.format(text)
        return text

    def __call__(self, x: Any) -> Any:
        for one in self.chain:
            x = one.apply(x)
        return x

    def row(self, held_out: bool) -> dict[str, Any]:
        """For the code reward."""
        cases = [{"input": x, "expected": self(x)} for x in INPUTS[self.kind][held_out]]
        return {"prompt": self.prompt, "entry_point": "f", "prefix": PREFIX, "cases": cases}


def all_tasks(seed: int, held_out: int) -> tuple[list[Task], list[Task]]:
    """Those to train on, those held out."""
    tasks = [
        Task(kind, chain)
        for kind, (operations, length) in OPERATIONS.items()
        for chain in product(operations, repeat=length)
    ]
    random.Random(seed).shuffle(tasks)
    return tasks[held_out:], tasks[:held_out]


def demonstrations(tasks: Sequence[Task], each: int, seed: int) -> list[dict[str, str]]:
    """``each`` a task; in half of them one operation is another one: what a model learns from careless people."""
    draw, found = random.Random(seed), list[dict[str, str]]()
    for task in tasks:
        for _ in range(each):
            chain = list(task.chain)
            if draw.random() < WRONG:
                chain[draw.randrange(len(chain))] = draw.choice(OPERATIONS[task.kind][0])
            found.append({"prompt": task.prompt, "completion": Task(task.kind, tuple(chain)).code})
    draw.shuffle(found)
    return found


def vocabulary(tasks: Sequence[Task]) -> list[str]:
    """Every word of every task, in one order."""
    return sorted({word for task in tasks for word in f"{task.prompt} {task.code}".split()})
