"""``tightrope rm audit`` from the command line: a tiny reward model, and everything a person can get wrong."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.commands import call
from tests.runs import run_quietly, tiny_config, tiny_files
from tests.tiny import WORDS


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A reward model with its run, and an SFT result; both tiny."""
    folder = tmp_path_factory.mktemp("audit")
    files = tiny_files(folder, rows=60)
    run_quietly("rm", tiny_config("rm", files, folder / "rm"))
    return folder


def rows(path: Path, count: int, **columns) -> Path:
    draw = random.Random(1)

    def text() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 7)))

    made = ({"prompt": text(), "chosen": text(), "rejected": text()} | columns for _ in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


def test_a_run_knows_its_own_pairs(made, tmp_path, capsys) -> None:
    code, out, err = call(capsys, "rm", "audit", made / "rm", "--short", "--json", "--output", tmp_path / "out")
    assert (code, err) == (0, "")
    found = json.loads(out.splitlines()[-1])
    manifest = json.loads((made / "rm/export/tightrope.json").read_text())
    assert (found["train_pairs"], found["held_out_pairs"]) == (56, 4)
    assert found["accuracy"]["estimate"] == manifest["accuracy"]
    assert found["unit"] == pytest.approx(manifest["reward_std"], rel=1e-4)
    assert json.loads((tmp_path / "out/audit.json").read_text()) == found
    assert "verdict: " in out and "not measured" in out


def test_the_same_seed_gives_the_same_audit(made, capsys) -> None:
    first, second, other = (
        call(capsys, "rm", "audit", made / "rm", "--short", "--json", "--seed", seed)[1].splitlines()[-1]
        for seed in ("3", "3", "4")
    )
    assert first == second != other


def test_everything_at_once(made, tmp_path, capsys) -> None:
    """Held-out file with grades, training file, a judge, votes, samples with their KL."""
    held_out = rows(tmp_path / "held_out.jsonl", 40, chosen_score=1.0, rejected_score=0.5)
    train = rows(tmp_path / "train.jsonl", 120)
    labels = tmp_path / "answers.jsonl"
    labels.write_text(json.dumps({"id": "1", "prompt": WORDS[0], "responses": [WORDS[1], WORDS[2]]}) + "\n")
    vote = {"event": "vote", "vote": "v", "item": "1", "pair": [0, 1], "order": [1, 0], "choice": "A", "seconds": 1.0}
    (tmp_path / "answers.jsonl.votes.jsonl").write_text(json.dumps(vote | {"annotator": "me", "time": 0.0}) + "\n")
    samples = tmp_path / "samples.jsonl"
    written = [{"prompt": WORDS[i // 2], "completion": f"{WORDS[i]} {WORDS[-i - 1]}", "kl": 0.5 * i} for i in range(12)]
    samples.write_text("".join(json.dumps(row) + "\n" for row in written))
    words = ["--train", train, "--judge", "tests.runs:word_share", "--votes", labels, "--samples", samples]
    code, out, err = call(capsys, "rm", "audit", made / "rm/export", held_out, *words, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out.splitlines()[-1])
    assert (found["train_pairs"], found["held_out_pairs"], found["votes"]["count"]) == (120, 40, 1)
    assert found["rank_against"] == found["judge"] == "tests.runs:word_share"
    assert found["policy"]["samples"] == 12 and found["policy"]["accuracy"]["count"] <= 6
    assert found["policy"]["drift"]["spearman"]["estimate"] is not None
    assert found["distance"]["beyond"]["count"] == 12
    assert found["flips"]["rate"]["low"] >= 0
    assert all(shift["judge"] is not None for shift in found["shifts"])


def test_columns_of_scores_are_ranked_against(made, tmp_path, capsys) -> None:
    held_out = rows(tmp_path / "held_out.jsonl", 12, chosen_score=1.0, rejected_score=0.5)
    _, out, _ = call(capsys, "rm", "audit", made / "rm/export", held_out, "--json")
    found = json.loads(out.splitlines()[-1])
    assert found["rank_against"] == "chosen_score, rejected_score"
    assert -1 <= found["rank"]["kendall"]["estimate"] <= 1


def test_samples_of_a_ppo_run(made, tmp_path, capsys) -> None:
    files = tiny_files(tmp_path)
    run_quietly("ppo", tiny_config("ppo", files, tmp_path / "ppo", reward_model=made / "rm", steps=2))
    code, out, _ = call(capsys, "rm", "audit", made / "rm", "--samples", tmp_path / "ppo", "--short", "--json")
    assert code == 0
    found = json.loads(out.splitlines()[-1])
    assert found["policy"]["samples"] > 12
    assert found["policy"]["drift"]["kl"] and found["policy"]["accuracy"] is None


@pytest.mark.parametrize(
    "row", [{"prompt": "a", "chosen": "b", "rejected": ""}, {"prompt": "a", "chosen": "b c", "rejected": "d"}]
)
def test_one_pair_is_enough_to_run_and_not_to_accuse(made, tmp_path, capsys, row) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(row) + "\n")
    code, out, err = call(capsys, "rm", "audit", made / "rm/export", path, "--json")
    if not row["rejected"]:
        assert code == 2 and "one.jsonl:1" in err
        return
    assert code == 0
    found = json.loads(out.splitlines()[-1])
    assert not [one for one in found["found"] if one["severity"] == "fault" and one["name"] != "constant"]


def broken(made: Path, tmp_path: Path, value: float) -> Path:
    """The reward model with one number in all of its head's places."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in (made / "rm/export").iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    weights["score.weight"] = torch.full_like(weights["score.weight"], value)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "tightrope.json").unlink()
    return folder


def test_all_ties_are_a_fault_and_no_crash(made, tmp_path, capsys) -> None:
    held_out = rows(tmp_path / "held_out.jsonl", 20)
    code, out, _ = call(capsys, "rm", "audit", broken(made, tmp_path, 0.0), held_out, "--json")
    assert code == 0
    found = json.loads(out.splitlines()[-1])
    assert found["verdict"] == "1 fault: constant" and found["unit"] == 0.0
    assert found["accuracy"]["estimate"] == 0.5 and found["shifts"] == []


def test_rewards_that_are_no_numbers_are_told(made, tmp_path, capsys) -> None:
    held_out = rows(tmp_path / "held_out.jsonl", 3)
    code, _, err = call(capsys, "rm", "audit", broken(made, tmp_path, float("nan")), held_out)
    assert code == 2 and "not finite" in err and err.count("\n") == 1


def test_without_held_out_pairs_it_says_so(made, tmp_path, capsys) -> None:
    files = tiny_files(tmp_path)
    run_quietly("rm", tiny_config("rm", files, tmp_path / "rm", changes={"data": {"held_out": 0}}, steps=1))
    code, out, _ = call(capsys, "rm", "audit", tmp_path / "rm", "--short")
    assert code == 0
    assert "no held-out pairs: this audit cannot say whether the reward model is right" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["{model}"], "not a reward model"),
        (["{folder}/nowhere"], "nowhere"),
        (["{folder}/rm/export"], "which pairs?"),
        (["{folder}/rm/export", "{folder}/none.jsonl"], "there is no such data file"),
        (["{folder}/rm", "--judge", "nobody"], "not a judge"),
        (["{folder}/rm", "--judge", "tests.runs:nobody"], "nobody"),
        (["{folder}/rm", "--votes", "{folder}/none.jsonl"], "the label file cannot be read"),
        (["{folder}/rm", "--samples", "{folder}/rm"], "this run sampled nothing"),
        (["{folder}/rm", "--samples", "{folder}/prompts.jsonl"], "no answer of the policy"),
        (["{folder}/rm", "--limit", "0"], "--limit"),
        (["{folder}/rm", "--output", "{folder}/prompts.jsonl/x"], "--output"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(made, capsys, words, told) -> None:
    filled = [word.format(folder=made, model=made / "model") for word in words]
    code, out, err = call(capsys, "rm", "audit", *filled)
    assert code == 2 and not out
    assert told in err and err.startswith("error: ") and err.count("\n") == 1


def test_a_label_file_without_votes_is_told(made, tmp_path, capsys) -> None:
    labels = tmp_path / "answers.jsonl"
    labels.write_text(json.dumps({"id": "1", "prompt": "a", "responses": ["b", "c"]}) + "\n")
    code, _, err = call(capsys, "rm", "audit", made / "rm", "--votes", labels)
    assert code == 2 and "nobody has voted yet" in err
