"""Does Tightrope from Python do what the command line does, and does a run show itself safely?"""

from __future__ import annotations

import html.parser
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.journeys.test_trackers import records
from tests.runs import run_quietly, tiny_config, tiny_files
from tightrope import api
from tightrope.records import StepRecord
from tightrope.storage.report import run_html
from tightrope.storage.samples import StoredSample

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tiny_files(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("stage", ["ppo", "sft"])
def test_a_run_left_and_resumed_step_by_step_is_the_command_s(stage, files, tmp_path):
    whole = run_quietly(stage, tiny_config(stage, files, tmp_path / "whole"))
    config = tiny_config(stage, files, tmp_path / "left")
    with api.start(config) as run:
        for record in run.steps():
            if record.step == 0:
                break
    with api.resume(config.output) as run:
        assert [record.step for record in run.steps()] == [1, 2, 3]
    view = api.read(config.output)
    assert records(view.folder) == records(whole.folder)
    assert (
        view.export is not None
        and (view.export / "model.safetensors").read_bytes() == (whole.export / "model.safetensors").read_bytes()
    )
    assert view.config == config and stage in repr(view)


def test_stop_saves_and_ends_the_loop(files, tmp_path):
    config = tiny_config("ppo", files, tmp_path / "run")
    with api.start(config) as run:
        for record in run.steps():
            assert run.samples(record.step)
            run.stop()
    assert run.outcome == "interrupted" and len(run.view.records("ppo")) == 1
    assert (tmp_path / "run/checkpoints/iter-000001").is_dir()


def test_a_run_that_ended_has_no_more_steps_and_a_closed_one_says_so(files, tmp_path):
    config = tiny_config("ppo", files, tmp_path / "run", steps=2)
    with api.start(config) as run:
        kept = run.steps()
        next(kept)
        run.stop()
        assert list(kept) == [] and list(run.steps()) == [] and run.outcome == "interrupted"
    with api.resume(config.output) as run:
        assert len(list(run.steps())) == 1 and list(run.steps()) == [] and run.outcome == "finished"
    left = tiny_config("ppo", files, tmp_path / "left", steps=3)
    with api.start(left) as again:
        kept = again.steps()
        next(kept)
    for late in (lambda: next(kept), lambda: list(again.steps()), again.save, run.save):
        with pytest.raises(api.TightropeError, match="this run is closed"):
            late()
    assert len(api.read(left.output).records("ppo")) == 1


def test_a_run_without_a_number_yet_can_be_looked_at(tmp_path):
    (tmp_path / "resolved.yaml").write_text("")
    view = api.read(tmp_path)
    assert "no step yet" in repr(view) and view.records() == view.samples() == []
    assert "<div" in view._repr_html_()


ALLOWED = {"div", "b", "br", "small", "svg", "polyline", "table", "tr", "th", "td", "style", "width", "height"}
ALLOWED |= {"viewbox", "points", "fill", "stroke", "stroke-width"}


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.seen |= {name for name, _ in attrs}


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</td><iframe>"])
def test_hostile_text_stays_text(text):
    sample = StoredSample(0, "train", 0, 0, 0, 0, text, text, "stop", 3, 1.0, {}, None)
    page = Tags()
    page.feed(run_html(text, [StepRecord(text, 0, 0, {"reward": 1.0})], [sample]))
    assert page.seen <= ALLOWED


def test_the_own_loop_of_the_examples_gives_the_numbers_of_the_command(files, tmp_path, capsys):
    config = tiny_config("ppo", files, tmp_path / "run", changes={"ppo": {"value_warmup_steps": 0}})
    done = run_quietly("ppo", config)
    example = runpy.run_path(str(ROOT / "examples/own_loop.py"))
    capsys.readouterr()
    example["train"](config)
    told = [numbers(line) for line in capsys.readouterr().out.splitlines()]
    metrics = [record.metrics for record in api.read(done.folder).records("ppo")]
    written = [f"{m['reward']:+.3f} {m['kl_seq']:.3f} {m['loss_policy']:+.4f}" for m in metrics]
    assert told == [[float(step), *numbers(line)] for step, line in enumerate(written)]


def numbers(line):
    return [float(number) for number in re.findall(r"[+-]?\d[\d.]*", line)]


def test_the_own_loop_runs_as_its_first_lines_say(files, tmp_path, monkeypatch, capsys):
    example = str(ROOT / "examples/own_loop.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [example, str(files.model), str(files.prompts), f"{example}:brevity"])
    runpy.run_path(example, run_name="__main__")
    assert capsys.readouterr().out.count("step ") == 4 and list(tmp_path.iterdir()) == []


def test_the_code_of_the_python_page_works(files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = {
        "stage": "ppo",
        "output": "runs/ppo",
        "model": {"name": str(files.model)},
        "data": {"train": str(files.prompts), "held_out": 4},
        "rollout": {"prompts_per_step": 4, "max_new_tokens": 4},
        "reward": {"function": "tests.runs:word_share", "normalise_samples": 8},
        "evaluation": {"prompts": 2, "every": 2},
    }
    (tmp_path / "ppo.yaml").write_text(json.dumps(settings))
    page = (ROOT / "docs/python.md").read_text()
    (tmp_path / "page.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    found = runpy.run_path("page.py")
    assert len(found["rewards"]) == 4 and found["probes"] and found["answers"]
    said = capsys.readouterr().out
    assert "interrupted" in said and "finished" in said and "<Tightrope run runs/ppo: ppo, 4 steps>" in said
