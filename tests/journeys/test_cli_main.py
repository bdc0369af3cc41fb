"""Does the command answer at once, in one line, with the right exit code, and without loading what it does not need?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiny import tiny_llama
from tightrope.cli.main import COMMANDS, REWARD_MODEL_COMMANDS, main

CODE = "import sys; from tightrope.cli.main import main; main(); sys.exit(0)"
CONFIG = "output: {run}\nmodel:\n  name: {model}\ndata:\n  train: {rows}\nreward:\n  function: {judge}:judge\n"


def call(capsys, *words):
    """Exit code, standard output, standard error of a command run in this process."""
    code = 0
    try:
        main(list(words))
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    tiny_llama(folder / "model")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"the cat {i}"}) + "\n" for i in range(40)))
    (folder / "judge.py").write_text("def judge(samples):\n    return [float(s.n_tokens) for s in samples]\n")
    names = {"run": "run", "model": "model", "rows": "rows.jsonl", "judge": "judge.py"}
    config = folder / "ppo.yaml"
    config.write_text(CONFIG.format(**{name: folder / path for name, path in names.items()}))
    return folder


def check(capsys, files, *overrides, stage="ppo"):
    small = ["rollout.max_new_tokens=8", "data.held_out=8", "evaluation.prompts=8", "rollout.prompts_per_step=32"]
    return call(capsys, "check", stage, str(files / "ppo.yaml"), *small, *overrides)


def test_help_names_every_command_on_one_line_and_loads_nothing_heavy():
    code = f"{CODE[:-11]}print([m for m in ('torch', 'pydantic', 'numpy', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == "[]"
    for name in (*COMMANDS, "rm"):
        (line,) = [line for line in lines if line.startswith(f"│ {name} ")]
        assert line.rstrip("│ ").endswith(".")


# One child for all of them: what any help loads is still loaded at the end.
ALL_HELP = """
import json, sys
from tightrope.cli.main import main
for words in json.loads(sys.argv.pop()):
    try:
        main(words)
    except SystemExit:
        pass
    heavy = [name for name in ("torch", "transformers") if name in sys.modules]
    if heavy:
        sys.exit(f"{words} loaded {heavy}")
"""


def test_no_help_and_no_mistyped_command_waits_for_torch():
    helps = [[*name.split(), "--help"] for name in (*COMMANDS, *(f"rm {n}" for n in REWARD_MODEL_COMMANDS))]
    words = json.dumps([*helps, ["ppoo"], ["rm", "trian"], ["--verbose"]])
    done = subprocess.run([sys.executable, "-c", ALL_HELP, words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr.splitlines()[-1]


def test_help_is_quick():
    """0.3 s on an idle core; the best of three in CPU time, so that a busy machine does not fail it."""
    times = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, "-c", CODE, "--help"], capture_output=True, check=True)
        after = os.times()
        times.append(after.children_user - before.children_user + after.children_system - before.children_system)
    assert min(times) < 0.3


def test_every_command_exists_and_says_the_same_in_its_own_help(capsys):
    for name, (_, line) in (*COMMANDS.items(), *((f"rm {n}", c) for n, c in REWARD_MODEL_COMMANDS.items())):
        code, out, _ = call(capsys, *name.split(), "--help")
        assert code == 0 and line in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ppoo"], "there is no command `ppoo`; did you mean `tightrope ppo`?"),
        (["zzz"], "there is no command `zzz`; see tightrope --help"),
        (["rm", "trian"], "there is no command `rm trian`; did you mean `tightrope rm train`?"),
        (["--verbose"], "there is no option `--verbose`"),
        (["check"], "requires an argument"),
        (["check", "ppoo", "x.yaml"], 'Did you mean "ppo"?'),
        (["check", "ppo", "none.yaml"], "none.yaml: there is no such config file"),
        (["check", "ppo", "none.yaml", "--schema-onyl"], "--schema-onyl"),
        (["env", "extra"], "extra"),
    ],
)
def test_wrong_words_are_one_line_and_exit_2(capsys, words, says):
    code, out, err = call(capsys, *words)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and says in err


def test_the_module_is_the_command():
    words = [sys.executable, "-m", "tightrope", "ppoo"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_whoever_stops_reading_breaks_nothing(files):
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-c", CODE, "check", "ppo", str(files / "ppo.yaml"), "--schema-only"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 141 and done.stderr == b""


def test_an_interrupt_is_quiet(monkeypatch, capsys):
    def interrupted(self, *arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("cyclopts.App.__call__", interrupted)
    assert call(capsys, "env") == (130, "", "")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out of memory"),
        (MemoryError(), "out of memory"),
        (OSError(28, "No space left on device", "/runs/x"), "/runs/x: No space left on device"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
    ],
)
def test_what_the_machine_lacks_is_one_line(monkeypatch, capsys, error, says):
    def stumble():
        raise error

    monkeypatch.setattr("tightrope.cli.env.env", stumble)
    code, out, err = call(capsys, "env")
    assert (code, out) == (2, "") and err.count("\n") == 1 and says in err


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    def stumble():
        raise RuntimeError("sizes differ")

    monkeypatch.setattr("tightrope.cli.env.env", stumble)
    with pytest.raises(RuntimeError, match="sizes differ"):
        main(["env"])


def test_check_tells_what_the_run_will_do(capsys, files):
    code, out, err = check(capsys, files)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "40 prompts read: 32 to train on, 8 held out" in lines
    assert "longest: 3 tokens of 56 that fit" in lines
    assert any(line.startswith("prompt ▸  the cat") for line in lines)
    assert any(line.startswith("memory: about ") for line in lines)
    assert lines[-1] == "ready"
    assert not (files / "run").exists()


def test_check_warns_in_words(capsys, files):
    _, out, _ = check(capsys, files, "ppo.clip_range=0.5", "rollout.prompts_per_step=33", "evaluation.prompts=9")
    assert "warning: ppo.clip_range 0.5 is wide" in out
    assert "warning: a step takes 33 prompts and there are 32" in out
    assert "warning: a probe of 9 prompts is asked for, 8 are held out" in out
    assert out.splitlines()[-1] == "ready, with 3 warnings"


def test_a_run_that_the_machine_cannot_hold_is_one_line_before_anything_loads(capsys, files, monkeypatch):
    monkeypatch.setattr("tightrope.assemble.memory.whole_bytes", lambda config: 1000)
    code, out, err = check(capsys, files)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "GiB of memory are needed and the machine has 0.0 GiB; set model.lora" in err
    code, out, err = call(
        capsys, "ppo", str(files / "ppo.yaml"), "rollout.max_new_tokens=8", "data.held_out=8", "evaluation.prompts=8"
    )
    assert code == 2 and "GiB of memory are needed" in err and not (files / "run").exists()


def test_check_as_json(capsys, files):
    code, out, _ = check(capsys, files, "--json")
    found = json.loads(out)
    assert code == 0 and found["train"] == 32 and found["longest"] == 3 and found["memory_bytes"] > 0
    assert found["warnings"] == []


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("kl.bta=1", "error: override kl.bta: unknown key `kl.bta`; did you mean `kl.beta`?"),
        ("rollout.top_p=0.9", "sampled distribution must be the scored one"),
        ("rollout.max_new_tokens=64", "leaves no room for a prompt"),
        ("data.train=none.jsonl", "none.jsonl: there is no such data file"),
        ("model.name=none", "none: no such folder, and as a hub name"),
        ("data.max_prompt_tokens=2", "rows.jsonl:1: the prompt is too long; expected at most 2 tokens, found 3"),
    ],
)
def test_check_refuses_in_one_line(capsys, files, override, says):
    code, out, err = check(capsys, files, override)
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and says in err


def test_a_base_model_given_as_reward_model_is_refused(capsys, files):
    code, _, err = check(capsys, files, "reward.function=null", f"reward.model={files / 'model'}")
    assert code == 2 and err.count("\n") == 1 and "is not a reward model" in err


def test_zero_kl_with_a_learned_reward_is_refused_before_anything_is_read(capsys, files):
    code, _, err = check(capsys, files, "reward.function=null", "reward.model=none", "kl.beta=0")
    assert code == 2 and "zero KL with a learned reward model" in err


def test_the_config_alone_is_checked_without_torch(files):
    code = f"{CODE[:-11]}print('torch' in sys.modules)"
    words = [sys.executable, "-c", code, "check", "ppo", str(files / "ppo.yaml"), "--schema-only", "model.name=none"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["ready", "False"]


def test_env_says_what_a_bug_report_needs(capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "canary-value")
    code, out, _ = call(capsys, "env", "--json")
    found = json.loads(out)
    assert code == 0 and {"python", "cpus", "device", "torch_threads"} <= set(found)
    assert found["packages"]["torch"]
    assert "canary-value" not in out
    _, text, _ = call(capsys, "env")
    assert any(line.split()[0] == "torch" for line in text.splitlines())


def test_a_config_mistake_in_a_training_command_waits_for_nothing(files):
    began = time.monotonic()
    words = [sys.executable, "-c", CODE, "ppo", str(files / "ppo.yaml"), "kl.bta=1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert time.monotonic() - began < 20
    assert not Path(files / "run").exists()
