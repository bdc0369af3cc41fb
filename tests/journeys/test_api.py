"""Does Tightrope from Python do what the command line does, and does a run show itself safely?"""

from __future__ import annotations

import html.parser

import pytest

from tests.journeys.test_trackers import records
from tests.runs import run_quietly, tiny_config, tiny_files
from tightrope import api
from tightrope.records import StepRecord
from tightrope.storage.report import run_html
from tightrope.storage.samples import StoredSample


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
