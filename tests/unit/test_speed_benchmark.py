"""Does the speed benchmark measure the workload that its page tells, count right, and survive being stopped?"""

from __future__ import annotations

import ast
import json
import sys
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.speed import our_stages, ours
from benchmarks.speed.contests import OURS, PEER, Command, Contest, command_of
from benchmarks.speed.floor import Weights, operations, weights_of
from benchmarks.speed.material import material
from benchmarks.speed.page import PAGE, RESULT, filled
from benchmarks.speed.results import SUMMARY, figures_of, growth, summary, table
from benchmarks.speed.series import Series, begin, play
from benchmarks.speed.sizes import M, S, Shape, Size
from benchmarks.speed.turns import MARK, Turns
from tightrope.data.chat_format import ChatFormat
from tightrope.models.load import load_tokenizer

TINY = Size("T", 4, 3, 6, 6, 2, 2, 1e-3, Shape(64, 32, 64, 2, 4, 2, 64), hazard=0.3, pretraining_steps=2)
SCRIPT = """
import sys
from benchmarks.speed.turns import Turns
turns = Turns({"stage": "ppo", "size": "S", "side": sys.argv[1]}, None)
while turns.wait():
    print("a library's chatter")
    turns.give({}, {"tokens": 10})
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TIGHTROPE_CACHE", str(tmp_path))
    return tmp_path


def rows_in(text: str) -> list[dict]:
    return [json.loads(line.removeprefix(MARK)) for line in text.splitlines() if line.startswith(MARK)]


def test_the_workload_is_the_one_of_the_page():
    assert S.shape == Shape(vocabulary=4096, hidden=256, inner=688, layers=6, heads=8, kv_heads=4, context=1024)
    assert (S.prompts, S.shortest, S.longest, S.new_tokens, S.minibatch, S.minibatches, S.epochs) == (
        32, 8, 64, 64, 8, 4, 4,
    )  # fmt: skip
    assert M.shape is None
    assert (M.prompts, M.new_tokens, M.minibatch, M.minibatches, M.epochs) == (16, 64, 4, 4, 4)


def test_both_sides_read_the_same_prompts(cache):
    made = material(TINY)
    rows = [json.loads(line) for line in made.prompts.read_text().splitlines()]
    chat = ChatFormat(load_tokenizer(made.model))
    assert len(rows) == TINY.prompts
    for row in rows:  # the peer takes the ids, the product the text
        assert list(chat.prompt(row)[1]) == row["ids"] and 3 <= len(row["ids"]) <= 6
    answers = [json.loads(line) for line in made.answers.read_text().splitlines()]
    assert all(list(chat.answer_ids(row["chosen"], end=True)) == row["chosen_ids"] for row in answers)


@pytest.mark.parametrize("side", OURS)
def test_a_step_of_ours_is_a_row_with_its_phases_and_real_tokens(side, cache, capsys):
    config = ours.config_of(TINY, ours.mathematics_of(side, TINY))
    ours.walk(TINY, config, Turns({"stage": "ppo", "size": "T", "side": side}, 2))
    rows = rows_in(capsys.readouterr().out)
    prompts = [json.loads(line) for line in material(TINY).prompts.read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1]
    for row in rows:  # every step answers all the prompts
        assert row["tokens"] - row["response_tokens"] == sum(len(prompt["ids"]) for prompt in prompts)
        assert TINY.prompts <= row["response_tokens"] <= TINY.prompts * TINY.new_tokens
        assert 0 < row["rollout"] + row["score"] + row["update"] <= row["cpu"] + 0.001


def test_same_mathematics_trains_two_whole_models_and_the_default_adapters(cache):
    from tightrope.assemble.inputs import read_inputs
    from tightrope.assemble.online import roles_of

    trained = {}
    for side in OURS:
        config = ours.config_of(TINY, ours.mathematics_of(side, TINY))
        roles = roles_of(config, read_inputs(config))
        trained[side] = {name: sum(p.numel() for p in group.values()) for name, group in roles.parameters.items()}
        assert roles.reference is not None and roles.reward is not None
    assert TINY.shape is not None
    assert trained["default"]["critic"] == TINY.shape.hidden + 1 < trained["same_maths"]["critic"]
    assert trained["default"]["policy"] < trained["same_maths"]["policy"]


@pytest.mark.parametrize("stage", ["sft", "reward"])
def test_a_step_of_a_stage_counts_the_tokens_of_its_batch(stage, cache, capsys):
    config = our_stages.config_of(stage, TINY, ours.mathematics_of("same_maths", TINY))
    our_stages.walk(config, Turns({"stage": stage, "size": "T", "side": "same_maths"}, 1))
    (row,) = rows_in(capsys.readouterr().out)
    rows = TINY.minibatch * (1 if stage == "sft" else 2)
    assert rows * (3 + 2) <= row["tokens"] <= rows * (6 + TINY.new_tokens)


def test_a_stopped_series_goes_on_and_counts_nothing_twice(tmp_path):
    contest, sides, path = Contest("ppo", "S", steps=2, warm=1), ("a", "b"), tmp_path / "rows.jsonl"

    def command(each: Contest, side: str) -> Command:
        return Command([sys.executable, "-c", SCRIPT, side], {})

    first = play(Series(path, {"commit": "1"}), contest, sides, command)
    taken = [row["side"] for row in islice(first, 3)]
    first.close()
    assert taken == ["a", "b", "a"]
    with path.open("a") as file:
        file.write('{"stage": "ppo", "si')  # killed while it wrote
    again = Series(path, {"commit": "1"})
    assert again.missing(contest, sides) == ["a", "b"] and len(again.counted(contest, "a")) == 1
    sides_of = [row["side"] for row in play(again, contest, sides, command)]
    assert sides_of == ["a", "b", "a", "b", "b"]  # warm-ups, then a needs one more and b two
    whole = Series(path, {"commit": "1"})
    assert whole.rows == again.rows and not whole.missing(contest, sides)
    begin(whole, [contest, Contest("sft", "S", 1)], sides)  # something is missing: nothing is forgotten
    assert whole.rows == again.rows
    begin(whole, [contest], sides)
    assert whole.rows == Series(path, {"commit": "1"}).rows == []


def test_rows_of_another_commit_are_not_mixed_in(tmp_path):
    path = tmp_path / "rows.jsonl"
    Series(path, {"commit": "1"}).append({"stage": "ppo", "size": "S", "side": "a", "step": 1})
    assert len(Series(path, {"commit": "1", "date": "later"}).rows) == 1
    assert Series(path, {"commit": "2"}).rows == []


def test_a_side_that_fails_says_why(tmp_path):
    series = Series(tmp_path / "rows.jsonl", {})
    failing = Command([sys.executable, "-c", "raise SystemExit('no such model')"], {})
    with pytest.raises(RuntimeError, match="no such model"):
        list(play(series, Contest("ppo", "S", 1, apart=True, warm=0), ["a"], lambda contest, side: failing))
    assert series.rows == []


def row(cpu: float, tokens: int, rss: float = 1.0) -> dict:
    return {"cpu": cpu, "wall": 2 * cpu, "tokens": tokens, "rss_gb": rss, "rollout": 0.5, "score": 0.5, "update": 1.0}


def test_a_ratio_is_cost_of_a_real_token_over_cost_of_a_real_token():
    found = figures_of({PEER: [row(20.0, 1000), row(30.0, 1000), row(24.0, 1000)], "default": [row(6.0, 2000)]})
    assert found["default"]["ratio"] == pytest.approx(8.0)  # 0.024 s a token over 0.003
    assert found[PEER]["ratio"] == 1.0 and found[PEER]["cpu"] == 24.0
    assert found["default"]["tokens_per_cpu_second"] == pytest.approx(1000 / 3)


def test_the_last_line_has_its_keys_and_null_where_nothing_was_measured():
    ppo = figures_of({PEER: [row(24.0, 1000, 7.0)], "same_maths": [row(8.0, 1000)], "default": [row(3.0, 1000, 1.4)]})
    line = summary({"ppo_M": ppo})
    assert set(SUMMARY) <= set(line)
    assert (line["same_maths_M"], line["default_M"], line["peak_rss_gb_M"], line["peer_rss_gb_M"]) == (
        3.0,
        8.0,
        1.4,
        7.0,
    )
    assert line["same_maths_S"] is None and line["sft_S"] is None and line["cached_M"] is None
    assert json.loads(json.dumps(line)) == line
    assert table({"ppo_M": ppo}).count("\n") == 4


def test_without_the_peer_there_is_no_ratio():
    assert figures_of({"default": [row(3.0, 1000)]})["default"]["ratio"] is None


def test_growth_is_over_the_first_scale():
    found = {"batch": figures_of({"x1": [row(2.0, 100)], "x2": [row(5.0, 200)]})}
    assert growth(found) == {"batch_x1": 1.0, "batch_x2": 1.25}


@pytest.mark.parametrize("name", ["peer_ppo", "peer_stages", "peer_models", "sizes", "turns"])
def test_what_runs_in_the_peers_environment_imports_nothing_of_ours(name):
    source = (Path(ours.__file__).parent / f"{name}.py").read_text()
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert not [each for each in names if each and each.split(".")[0] == "tightrope"]
    own = {each for each in names if each and each.startswith("benchmarks")}
    assert own <= {f"benchmarks.speed.{each}" for each in ("peer_models", "sizes", "turns")} | {"benchmarks.speed"}


def test_each_side_runs_on_one_thread(tmp_path):
    for side in (PEER, *OURS):
        for stage in ("ppo", "sft"):
            command = command_of(Contest(stage, "S", 1), side, tmp_path)
            assert command.environment["OMP_NUM_THREADS"] == "1" and "S" in command.words


def test_the_page_shows_what_was_measured():
    results = json.loads(RESULT.read_text())
    assert filled(PAGE.read_text(), results) == PAGE.read_text()
    assert set(SUMMARY) <= set(results["contests"]["summary"])


def test_the_floor_counts_the_weights_that_are_multiplied(cache):
    shape = TINY.shape
    assert shape is not None
    layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64  # queries and output; keys and values of 2 heads of 8; three of 64
    assert weights_of(material(TINY).model) == Weights(2 * layer, 64 * 32, 4 * 32 * 2)
    # 10 tokens x 100 weights, 5 actions x 10: rollout 2 x 1050, score 2 x 2050, an epoch of adapters 4 x 1050
    assert operations(Weights(100, 10), 10, 5, 3, "adapters") == 2100 + 4100 + 3 * 4200
    # half of the trunk in scores and epochs: 2 x 1050, 4 x 550
    assert operations(Weights(100, 10), 10, 5, 3, "adapters in the upper half") == 2100 + 2100 + 3 * 2200
