"""Do the generated tasks ask for what their code does, and are held-out ones unseen?"""

from __future__ import annotations

import json
import random

from benchmarks.code_task.tasks import INPUTS, OPERATIONS, PREFIX, all_tasks, demonstrations, vocabulary
from tightrope.demo.tokenizer import SPECIAL, word_tokenizer


def value(code: str, x: object) -> object:
    space: dict = {}
    exec(PREFIX + code, space)  # our own code, from our own grammar
    return space["f"](x)


def test_the_code_of_every_task_does_what_its_words_say() -> None:
    train, held_out = all_tasks(0, 200)
    for task in [*train, *held_out]:
        for x in (x for inputs in INPUTS[task.kind] for x in inputs):
            assert value(task.code, x) == task(x)


def test_a_tokenizer_gives_back_code_that_still_does_it() -> None:
    train, held_out = all_tasks(1, 200)
    tokenizer = word_tokenizer([*SPECIAL, *vocabulary([*train, *held_out])], 64)
    for task in random.Random(0).sample(train, 200):
        ids = tokenizer.encode(task.code, add_special_tokens=False)
        assert tokenizer.unk_token_id not in ids
        for x in INPUTS[task.kind][0]:
            assert value(tokenizer.decode(ids), x) == task(x)
        assert tokenizer.unk_token_id not in tokenizer.encode(task.prompt, add_special_tokens=False)


def test_held_out_tasks_and_inputs_are_unseen() -> None:
    train, held_out = all_tasks(0, 200)
    assert len(held_out) == 200 and len(train) == sum(len(ops) ** n for ops, n in OPERATIONS.values()) - 200
    assert not {task.prompt for task in train} & {task.prompt for task in held_out}
    assert not {row["prompt"] for row in demonstrations(train, 2, 0)} & {task.prompt for task in held_out}
    for rewarded, evaluated in INPUTS.values():
        assert not set(rewarded) & set(evaluated)
    row = held_out[0].row(held_out=True)
    assert [case["input"] for case in row["cases"]] == list(INPUTS[held_out[0].kind][1])
    assert json.loads(json.dumps(row)) == row


def test_demonstrations_are_careless() -> None:
    train, _ = all_tasks(0, 200)
    right = {task.prompt: task.code for task in train}
    rows = demonstrations(train, 10, 0)
    share = sum(right[row["prompt"]] == row["completion"] for row in rows) / len(rows)
    assert 0.45 < share < 0.6
