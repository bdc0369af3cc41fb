"""What does a person see who gives the command something wrong? One line, exit code 2; nothing loaded, nothing left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.commands import call
from tests.runs import Files, run_quietly, tiny_config, tiny_files
from tightrope.algorithms.options import CONFIGS
from tightrope.config.load import save_resolved
from tightrope.models import load

WORDS = {"sft": ["sft"], "rm": ["rm", "train"], "dpo": ["dpo"], "ppo": ["ppo"], "rloo": ["rloo"]}
JUDGES = """
import json
def good(samples):
    return [0.5 * len(sample.response) for sample in samples]
def raises(samples):
    return [json.loads(sample.response) for sample in samples]
def leaves(samples):
    raise SystemExit(3)
def nan(samples):
    return [float("nan") for _ in samples]
def one_short(samples):
    return [1.0 for _ in samples][1:]
def words(samples):
    return ["good" for _ in samples]
later = [0]
def breaks_later(samples):
    later[0] += 1
    return [1.0 if later[0] == 1 else float("nan") for _ in samples]
"""


@dataclass(frozen=True)
class Place:
    """What all cases start from; ``rows`` are correct rows of each kind."""

    folder: Path
    files: Files
    sft: Path
    reward: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("wrong")
    files = tiny_files(folder)
    sft = run_quietly("sft", tiny_config("sft", files, folder / "sft", steps=1)).folder
    reward = run_quietly("rm", tiny_config("rm", files, folder / "rm", steps=1)).folder
    (folder / "judges.py").write_text(JUDGES)
    return Place(folder, files, sft, reward)


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(load, "_load", refuse)


def config_file(place: Place, stage: str, output: Path) -> Path:
    """A correct config as YAML, its reward from ``judges.py``."""
    config = tiny_config(stage, place.files, output, steps=2)
    if stage in ("ppo", "rloo"):
        content = config.model_dump(exclude_unset=True) | {"output": output}
        content["reward"] = {"function": f"{place.folder}/judges.py:good", "normalise_samples": 8}
        content["evaluation"] = {"every": 2, "prompts": 4}
        config = CONFIGS[stage].model_validate(content)
    path = output.with_suffix(".yaml")
    save_resolved(stage, config, path)
    return path


def refused(capsys: pytest.CaptureFixture[str], words: Sequence[str | Path], says: str, loaded: bool = False) -> None:
    """Exactly one line, on stderr, that begins with ``error:`` and holds ``says``. A run that got as far as loading
    may have given its warnings before."""
    code, out, err = call(capsys, *words)
    lines = [line for line in err.splitlines() if loaded is False or not line.startswith("warning: ")]
    assert code == 2, err
    assert out == ""
    assert len(lines) == 1 and lines[0].startswith("error: "), err
    assert says in lines[0]


def rows(*changed: str, good: object) -> str:
    return "".join([*[json.dumps(good) + "\n"] * 6, *[line + "\n" for line in changed]])


PROMPT = {"prompt": "the cat"}
DEMONSTRATION = {"prompt": "the cat", "completion": "sat"}
PAIR = {"prompt": "the cat", "chosen": "sat", "rejected": "ran"}

OVERRIDES = [
    ("ppo", ["nonsense=1"], "unknown key `nonsense`"),
    ("ppo", ["kl.bta=1"], "did you mean `kl.beta`?"),
    ("sft", ["kl.beta=1"], "section `kl` belongs to"),
    ("ppo", ["kl.beta=low"], "expected"),
    ("ppo", ["training.steps=2.5"], "training.steps"),
    ("ppo", ["training.steps=0"], "training.steps"),
    ("sft", ["sft.batch_size=-1"], "sft.batch_size"),
    ("ppo", ["rollout.top_p=0.9"], "the sampled distribution must be the scored one"),
    ("ppo", ["rollout.top_k=5"], "the sampled distribution must be the scored one"),
    ("ppo", ["reward.function=null", "reward.model={reward}", "kl.beta=0"], "zero KL with a learned reward model"),
    ("ppo", ["reward.function=null", "reward.model={sft}"], "is an SFT result, not a reward model"),
    ("ppo", ["reward.function=null", "reward.model={headless}"], "is a reward model without its head"),
    ("ppo", ["reward.function=null", "reward.model={model}"], "is not a reward model"),
    ("ppo", ["reward.function=null", "reward.model={folder}/none"], "no such model folder"),
    ("ppo", ["reward.function=null"], "nothing gives rewards"),
    ("ppo", ["model.name={reward}"], "is a reward model, not a policy"),
    ("ppo", ["model.name={folder}/none"], "no such model folder"),
    ("ppo", ["model.name={folder}"], "not a model folder"),
    ("sft", ["data.train={folder}/none.jsonl"], "there is no such data file"),
    ("ppo", ["rollout.max_new_tokens=64"], "no room for a prompt"),
    ("ppo", ["rollout.truncate.token=zebra"], "found a word it does not know"),
    ("ppo", ["rollout.truncate.token=the cat"], "found 2 tokens"),
    ("ppo", ["rollout.truncate.token=cat", "rollout.truncate.after=6"], "never ends a response"),
    ("ppo", ["rollout.temperature=1e-300"], "rollout.temperature"),
    ("ppo", ["reward.function={folder}/judges.py:leaves"], "raised SystemExit: 3"),
    ("ppo", ["output={sft}"], "already holds a run"),
    ("ppo", ["output={folder}/judges.py"], "output folder cannot be made"),
    ("ppo", ["output={folder}/judges.py/run"], "output folder cannot be made"),
    ("ppo", ["reward.function={folder}/judges.py:absent"], "there is no 'absent'"),
    ("ppo", ["reward.function={folder}/absent.py:good"], "no such file"),
    ("ppo", ["reward.function=no.such.module:good"], "cannot be imported"),
    ("ppo", ["reward.function=good"], "reward.function"),
    ("ppo", ["reward.function={folder}/judges.py:raises"], "judges.py:6: the reward function"),
    ("ppo", ["reward.function={folder}/judges.py:nan"], "is not finite"),
    ("ppo", ["reward.function={folder}/judges.py:one_short"], "one number a sample; expected 2 numbers, found 1"),
    ("ppo", ["reward.function={folder}/judges.py:words"], "is not a number"),
    ("ppo", ["evaluation.function={folder}/judges.py:raises"], "judges.py:6: the reward function"),
    ("rloo", ["rollout.samples_per_prompt=1"], "samples_per_prompt"),
    ("ppo", ["kl.beta"], "error: "),
    ("ppo", ["--beta=1"], "--beta"),
]


@pytest.mark.usefixtures("nothing_loads")
@pytest.mark.parametrize(("stage", "overrides", "says"), OVERRIDES, ids=lambda value: str(value)[:60])
def test_a_wrong_setting(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], stage: str, overrides: list[str], says: str
) -> None:
    path, before = config_file(place, stage, tmp_path / "run"), snapshot(place.sft)
    names = {"folder": place.folder, "sft": place.sft, "reward": place.reward, "model": place.files.model}
    names["headless"] = headless(place.reward / "export", tmp_path / "headless")
    refused(capsys, [*WORDS[stage], path, *(override.format(**names) for override in overrides)], says)
    assert not (tmp_path / "run").exists()
    assert snapshot(place.sft) == before


def headless(reward: Path, folder: Path) -> Path:
    """A copy of a reward model whose head was lost."""
    from safetensors.torch import load_file, save_file

    folder.mkdir()
    for file in (file for file in reward.iterdir() if file.is_file()):
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "LOCK"}


DATA = [
    ("ppo", rows('{"promt": "the cat"}', good=PROMPT), "rows.jsonl:7: ", "rename `promt` to `prompt`"),
    ("sft", rows('{"prompt": "the cat", "answer": "sat"}', good=DEMONSTRATION), "rows.jsonl:7: ", "`completion`"),
    ("rm", rows('{"prompt": "the cat", "chosen": "sat"}', good=PAIR), "rows.jsonl:7: ", "`rejected`"),
    ("dpo", rows('{"prompt": "the cat", "rejected": "sat"}', good=PAIR), "rows.jsonl:7: ", "`chosen`"),
    ("ppo", rows('{"prompt": "the cat"', good=PROMPT), "rows.jsonl:7: ", "broken JSON"),
    ("sft", rows("{'prompt': 'a'}", good=DEMONSTRATION), "rows.jsonl:7: ", "broken JSON"),
    ("rm", rows('{"prompt": "the cat", "chosen": "sat", ', good=PAIR), "rows.jsonl:7: ", "broken JSON"),
    ("sft", rows('{"prompt": "the cat", "completion": ""}', good=DEMONSTRATION), "rows.jsonl:7: ", "is empty"),
    ("rm", rows('{"prompt": "a", "chosen": "", "rejected": "b"}', good=PAIR), "rows.jsonl:7: ", "is empty"),
    ("dpo", rows('{"prompt": "a", "chosen": "b", "rejected": null}', good=PAIR), "rows.jsonl:7: ", "is null"),
    ("ppo", rows('{"prompt": ""}', good=PROMPT), "rows.jsonl:7: ", "is empty"),
    ("ppo", rows(json.dumps({"prompt": "cat " * 3000}), good=PROMPT), "rows.jsonl:7: ", "the prompt is too long"),
    ("sft", rows(json.dumps(DEMONSTRATION | {"prompt": "cat " * 70}), good=DEMONSTRATION), "rows.jsonl:7: ", "at most"),
    ("rm", rows(json.dumps(PAIR | {"prompt": "cat " * 70}), good=PAIR), "rows.jsonl:7: ", "at most"),
    ("ppo", "", "rows.jsonl: ", "no rows"),
]


@pytest.mark.usefixtures("nothing_loads")
@pytest.mark.parametrize(("stage", "content", "where", "says"), DATA, ids=lambda value: str(value)[-40:])
def test_a_wrong_row(
    place: Place,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    stage: str,
    content: str,
    where: str,
    says: str,
) -> None:
    path = config_file(place, stage, tmp_path / "run")
    (tmp_path / "rows.jsonl").write_text(content)
    data = [f"data.train={tmp_path}/rows.jsonl", "data.held_out=0"]
    probe = ["evaluation.prompts=0"] if stage == "ppo" else []
    refused(capsys, [*WORDS[stage], path, *data, *probe], f"error: {tmp_path}/{where}")
    refused(capsys, ["check", stage, path, *data, *probe], says)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("nothing_loads")
def test_a_missing_or_broken_config_file(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["ppo", tmp_path / "none.yaml"], "none.yaml")
    refused(capsys, ["ppo", tmp_path], str(tmp_path))
    (tmp_path / "broken.yaml").write_text("output: run\nmodel: [\n")
    refused(capsys, ["ppo", tmp_path / "broken.yaml"], "broken.yaml:")
    (tmp_path / "empty.yaml").write_text("")
    refused(capsys, ["ppo", tmp_path / "empty.yaml"], "empty.yaml")
    refused(capsys, ["sft", config_file(place, "ppo", tmp_path / "run")], "ppo")
    refused(capsys, ["ppo"], "error: ")


@pytest.mark.usefixtures("nothing_loads")
def test_resume_of_what_is_no_run(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["resume", tmp_path / "none"], "this is no run folder")
    refused(capsys, ["resume", place.files.model], "this is no run folder")
    refused(capsys, ["resume", place.folder / "judges.py"], "this is no run folder")
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("nothing_loads")
def test_resume_of_a_damaged_run(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "resolved.yaml").write_text("stage: ppo\noutput: 1\n")
    refused(capsys, ["resume", tmp_path / "damaged"], "resolved.yaml")


@pytest.mark.usefixtures("nothing_loads")
def test_wrong_words_of_the_other_commands(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, out, short = place.files.prompts, tmp_path / "answers.jsonl", ["--max-new-tokens", "4"]
    refused(capsys, ["generate", place.reward, prompts, "--output", out], "is a reward model, not a policy")
    refused(capsys, ["generate", tmp_path / "none", prompts, "--output", out], "no such model folder")
    refused(capsys, ["generate", place.sft, prompts, "--output", out, "--samples", "0"], "must be over 0")
    refused(capsys, ["generate", place.sft, tmp_path / "none.jsonl", "--output", out, *short], "no such data file")
    refused(capsys, ["rm", "score", place.sft, place.files.preferences], "not a reward model")
    refused(capsys, ["rm", "score", place.reward], "give a file, or --prompt and --response")
    refused(capsys, ["rm", "score", place.reward, tmp_path / "none.jsonl"], "no such data file")
    refused(capsys, ["rm", "score", place.reward, prompts, "--output", tmp_path / "no" / "scores"], "no such folder")
    refused(capsys, ["samples", tmp_path / "none"], "this is no run folder")
    assert not out.exists()


def test_what_only_the_run_itself_can_find_leaves_no_run_behind(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reward that fails on real responses, before the first checkpoint: the output folder is free again."""
    path = config_file(place, "ppo", tmp_path / "run")
    broken = f"reward.function={place.folder}/judges.py:breaks_later"
    refused(capsys, ["ppo", path, broken, "--quiet"], "is not finite", loaded=True)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("keep")
    broken_model = tmp_path / "model"
    broken_model.mkdir()
    for file in place.files.model.iterdir():
        (broken_model / file.name).write_bytes(file.read_bytes())
    weights = broken_model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused(capsys, ["ppo", path, f"model.name={broken_model}", "--quiet"], "the weights cannot be loaded", loaded=True)
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["mine.txt"]
    assert call(capsys, "ppo", path, "--quiet")[0] == 0


def test_the_installed_command_says_the_same(place: Place, tmp_path: Path) -> None:
    path = config_file(place, "ppo", tmp_path / "run")
    words = [
        sys.executable,
        "-m",
        "tightrope.cli.main",
        "ppo",
        str(path),
        "reward.function=null",
        f"reward.model={place.sft}",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and done.stdout == ""
    assert len(lines) == 1 and lines[0].startswith("error: ") and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
