"""What does `tightrope eval` say about models whose answers are known?"""

from __future__ import annotations

import json

import pytest

from tests.commands import call
from tests.runs import run_quietly, tiny_config, tiny_files
from tests.tiny import tiny_gpt2

JUDGE = "tests.runs:word_share"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval")
    files = tiny_files(folder)
    tiny_gpt2(folder / "gpt2", seed=1)
    run_quietly("rm", tiny_config("rm", files, folder / "rm", steps=2))
    (folder / "judges.py").write_text(
        "def answered(samples):\n    return [float(len(s.prompt.row['answer'])) for s in samples]\n"
        "def leaves(samples):\n    raise SystemExit(3)\n"
    )
    return folder


def test_a_judge_may_read_the_columns_of_the_prompts(place, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"the {word}", "answer": word}) + "\n" for word in ("cat", "bird")))
    words = ["eval", place / "model", rows, "--judge", f"{place}/judges.py:answered", "--json"]
    code, out, err = call(capsys, *words)
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["means"][0][f"{place}/judges.py:answered"][0] == 3.5


def test_a_judge_has_no_name_of_a_measure(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    (place / "words").symlink_to(place / "rm")
    assert "write ./words" in call(capsys, "eval", "model", "prompts.jsonl", "--judge", "words")[2]
    out = call(capsys, "eval", "model", "prompts.jsonl", "--judge", "./words", "--limit", "2", "--json")[1]
    means = json.loads(out.splitlines()[-1])["means"][0]
    assert means["words"][0] == int(means["words"][0] * 2) / 2 and "./words" in means


def test_a_model_against_itself_is_a_tie(place, capsys):
    words = ["eval", place / "model", place / "prompts.jsonl", "--against", place / "model", "--judge", JUDGE]
    code, out, err = call(capsys, *words, "--samples", "2", "--reference", place / "model", "--json")
    assert code == 0, err
    told = json.loads(out.splitlines()[-1])
    assert (told["prompts"], told["answers"]) == (24, 48)
    assert told["against"][JUDGE]["difference"] == [0.0, 0.0, 0.0]
    assert told["against"][JUDGE]["win_rate"][0] == 0.5 and told["against"][JUDGE]["verdict"] == "undecided"
    assert abs(told["means"][0]["kl"][0]) < 1e-4
    assert "best by" in out


def test_two_bases_and_two_kinds_of_judge(place, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    words = ["eval", place / "model", place / "prompts.jsonl", "--against", place / "gpt2", "--judge", JUDGE]
    code, out, err = call(capsys, *words, "--judge", place / "rm", "--limit", "6", "--output", rows, "--json")
    assert code == 0, err
    told = json.loads(out.splitlines()[-1])
    assert {JUDGE, str(place / "rm"), "tokens", "stopped"} <= set(told["against"])
    written = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(written) == 12
    mean = sum(row["numbers"][JUDGE] for row in written[:6]) / 6
    assert told["means"][0][JUDGE][0] == pytest.approx(mean, abs=1e-9)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--judge", "nonsense"], "not a judge"),
        (["--judge", "rm:{place}/model"], "is not a reward model"),
        (["--samples", "0"], "--samples"),
        (["--against", "{place}/none"], "no such model"),
        (["--against", "{place}/rm"], "is a reward model, not a policy"),
        (["--output", "{place}/none/rows.jsonl"], "no such folder"),
        (["--output", "{place}"], "cannot be written; found Is a directory"),
        (["--seed", "-1"], "--seed"),
        (["--temperature", "1e-300"], "--temperature"),
        (["--temperature", "inf"], "--temperature"),
        (["--max-new-tokens", "64"], "--max-new-tokens: no room for a prompt is left"),
        (
            ["--max-new-tokens", "63"],
            "the prompt is too long; expected at most 1 tokens, found 3; shorten it, or lower",
        ),
        (["--judge", "{place}/judges.py:leaves"], "raised SystemExit"),
    ],
)
def test_wrong_input_is_one_line(place, capsys, words, says):
    words = [word.replace("{place}", str(place)) for word in words]
    code, out, err = call(capsys, "eval", place / "model", place / "prompts.jsonl", *words)
    assert (code, out) == (2, "") and err.count("\n") == 1 and says in err, err
