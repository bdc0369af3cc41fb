"""A user's reward function: found, called with the original rows, and told clearly what is wrong with it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from tightrope.config.errors import TightropeError
from tightrope.scoring.checked import checked_rewards
from tightrope.scoring.functions import load_function
from tightrope.scoring.judge import NonFiniteReward
from tightrope.types import Prompt, Sample

SAMPLES = [
    Sample(Prompt(10 + i, (1, 2), f"prompt {i}", {"prompt": f"prompt {i}", "answer": i}), text, "stop", 2)
    for i, text in enumerate(["one", "two words", ""])
]


@pytest.fixture
def write(tmp_path):
    """Writes a reward file and gives its specification for a function in it."""

    def to_file(code: str, name: str = "reward", file: str = "my_reward.py") -> str:
        (tmp_path / file).write_text(code)
        return f"{tmp_path / file}:{name}"

    return to_file


def returning(write, expression: str):
    return load_function(write(f"import math\ndef reward(samples):\n    return {expression}\n"))


def test_a_file_gives_its_function(write):
    source = load_function(write("def reward(samples):\n    return [len(s.response.split()) for s in samples]\n"))
    assert source.score(SAMPLES) == [1.0, 2.0, 0.0]


def test_a_module_of_the_working_directory_gives_its_function(tmp_path, monkeypatch):
    (tmp_path / "length_reward_here.py").write_text("def reward(samples):\n    return [1] * len(samples)\n")
    monkeypatch.chdir(tmp_path)
    assert load_function("length_reward_here:reward").score(SAMPLES) == [1.0] * 3
    assert str(tmp_path) not in sys.path


def test_a_file_replaces_no_module_and_finds_its_neighbours(write, tmp_path):
    (tmp_path / "helper_of_reward.py").write_text("VALUE = 7\n")
    code = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport helper_of_reward\n"
        "@dataclass\nclass Rule:\n    value: int\n"
        "def reward(samples):\n    return [Rule(helper_of_reward.VALUE).value for s in samples]\n"
    )
    before = (sys.modules["json"], list(sys.path))
    assert load_function(write(code, file="json.py")).score(SAMPLES) == [7.0] * 3
    assert (sys.modules["json"], sys.path) == before


def test_the_function_sees_the_original_row(write):  # B83: text is never re-decoded, so a look-up by prompt works
    hard = ["trailing  ", "two  spaces", "a\u00a0b", "emoji 🙂", "<|endoftext|> inside"]
    samples = [Sample(Prompt(i, (3,), "cut", {"prompt": p, "gold": i}), "x", "stop", 1) for i, p in enumerate(hard)]
    source = load_function(
        write(
            f"GOLD = {dict(zip(hard, range(len(hard)), strict=True))!r}\n"
            "def reward(samples):\n"
            "    return [GOLD[s.prompt.row['prompt']] - s.prompt.row['gold'] for s in samples]\n"
        )
    )
    assert source.score(samples) == [0.0] * len(hard)


@pytest.mark.parametrize(
    "result",
    [
        [1, 2.5, True],
        (1, 2.5, 1),
        np.array([1, 2.5, 1]),
        [np.float32(1), np.float64(2.5), np.bool_(True)],
        torch.tensor([1, 2.5, 1]),
        [torch.tensor(1), torch.tensor(2.5), np.array(1)],
        (value for value in (1, 2.5, 1)),
    ],
    ids=["list", "tuple", "array", "numpy scalars", "tensor", "torch scalars", "generator"],
)
def test_numbers_in_any_usual_form_are_rewards(result):
    rewards = checked_rewards(result, SAMPLES, "reward")
    assert rewards == [1.0, 2.5, 1.0]
    assert {type(value) for value in rewards} == {float}


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("None", "must return one number a sample; expected a list of 3 numbers, found NoneType"),
        ("0.5", "must return one number a sample; expected a list of 3 numbers, found float"),
        ("'abc'", "must return one number a sample; expected a list of 3 numbers, found str"),
        ("{1: 2, 3: 4, 5: 6}", "must return one number a sample; expected a list of 3 numbers, found dict"),
        ("[1.0, 2.0]", "expected 3 numbers, found 2"),
        ("[1.0] * 4", "expected 3 numbers, found 4"),
        ("[]", "expected 3 numbers, found 0"),
        (
            "[1.0, '2.0', 3.0]",
            "sample 1 (data row 11, prompt 'prompt 1') is not a number; expected a number",
        ),
        ("[1.0, 2.0, None]", "sample 2 (data row 12, prompt 'prompt 2') is not a number"),
        ("[[1.0], [2.0], [3.0]]", "sample 0 (data row 10, prompt 'prompt 0') is not a number"),
        ("[1j, 1j, 1j]", "is not a number; expected a number, found complex"),
    ],
)
def test_anything_but_one_number_a_sample_is_refused(write, expression, message):  # B75
    source = returning(write, expression)
    with pytest.raises(TightropeError) as caught:
        source.score(SAMPLES)
    assert message in str(caught.value)
    assert "my_reward.py:reward" in str(caught.value)
    assert not isinstance(caught.value, NonFiniteReward)


@pytest.mark.parametrize("value", ["math.nan", "math.inf", "-math.inf", "1e39", "10**400"])
def test_a_reward_that_is_not_finite_is_named(write, value):  # B71
    with pytest.raises(NonFiniteReward) as caught:
        returning(write, f"[0.0, {value}, 0.0]").score(SAMPLES)
    message = str(caught.value)
    assert "sample 1 (data row 11, prompt 'prompt 1') is not finite" in message
    assert "found " in message and len(message) < 400


def test_an_exception_names_the_users_line(write):
    helper = "def helper(s):\n    return s.prompt.row['missing']\n"
    spec = write(helper + "def reward(samples):\n    return [*map(helper, samples)]\n")
    with pytest.raises(TightropeError) as caught:
        load_function(spec).score(SAMPLES)
    assert caught.value.where is not None and caught.value.where.endswith("my_reward.py:2")
    assert "raised KeyError: 'missing'" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_exception_inside_a_library_names_the_users_line(write):
    spec = write("import json\ndef reward(samples):\n    return json.loads('{')\n")
    with pytest.raises(TightropeError) as caught:
        load_function(spec).score(SAMPLES)
    assert caught.value.where is not None and caught.value.where.endswith("my_reward.py:3")


def test_leaving_is_not_an_error_of_the_function(write):
    with pytest.raises(KeyboardInterrupt):
        load_function(write("def reward(samples):\n    raise KeyboardInterrupt\n")).score(SAMPLES)


@pytest.mark.parametrize("spec", ["", "reward", "module:", ":reward", "file.py"])
def test_a_specification_has_two_parts(spec):
    with pytest.raises(TightropeError, match=r"expected module:function, path/file\.py:function"):
        load_function(spec)


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("def other(s):\n    return s\n", "reward", "there is no 'reward' in"),
        ("reward = 5\n", "reward", "is not a function; expected a callable, found int"),
        ("def reward(:\n", "reward", "my_reward.py:1: the reward function"),
        ("x = 1\nimport no_such_module_anywhere\n", "reward", "my_reward.py:2: the reward function"),
        ("x = 1\nraise RuntimeError('at import')\n", "reward", "found RuntimeError: at import"),
    ],
)
def test_a_file_that_does_not_give_a_function_is_refused(write, code, name, message):
    with pytest.raises(TightropeError) as caught:
        load_function(write(code, name))
    assert message in str(caught.value)


def test_a_missing_file_or_module_is_refused(tmp_path):
    with pytest.raises(TightropeError, match="no such file"):
        load_function(f"{tmp_path}/none.py:reward")
    with pytest.raises(TightropeError, match=r"cannot be imported.*no_such_module_anywhere"):
        load_function("no_such_module_anywhere:reward")


def test_a_failed_file_leaves_nothing_behind(write):
    before = set(sys.modules)
    with pytest.raises(TightropeError):
        load_function(write("raise RuntimeError\n"))
    assert set(sys.modules) == before
