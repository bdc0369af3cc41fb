"""Does what an installed package offers work under its name, and does a broken one break only who asks for it?"""

from __future__ import annotations

import json
import sys

import pytest

from tests.commands import call
from tests.runs import tiny_files
from tightrope import api
from tightrope.guardian.plugins import PluginDetector
from tightrope.records import StepRecord

CODE = '''
from typing import ClassVar
from tightrope.algorithms.options import RLOOOptions, UpdateOptions
from tightrope.algorithms.plugins import AlgorithmPlugin
from tightrope.config.schema import OnlineConfig
from tightrope.records import Finding


class MineOptions(UpdateOptions):
    floor: float = 0.0
    """Rewards under this count as this."""


class MineConfig(OnlineConfig):
    stage: ClassVar[str] = "mine"
    mine: MineOptions = MineOptions()
    """An algorithm of our own."""


def make(config, beta):
    from tightrope.algorithms.rloo import RLOO
    return RLOO(RLOOOptions(epochs=config.mine.epochs), beta)


MINE = AlgorithmPlugin(MineConfig, update=lambda config: config.mine, make=make)


def brevity(samples):
    return [-float(sample.n_tokens) for sample in samples]


class Always:
    name = "always"

    def review(self, history):
        return [Finding("always", "alarm", history[-1].step, "seen")]


class Breaks:
    name = "breaks"

    def review(self, history):
        raise ZeroDivisionError("no")


def told(run):
    return Told(run.folder)


class Told:
    def __init__(self, folder):
        self.folder = folder

    def log(self, step, metrics):
        (self.folder / f"{step}").touch()

    def table(self, step, name, rows):
        pass

    def close(self):
        (self.folder / "closed").touch()
'''
ENTRY_POINTS = """
[tightrope.rewards]
brevity = their_package:brevity
broken = their_broken_package:reward
[tightrope.detectors]
always = their_package:Always
breaks = their_package:Breaks
broken = their_broken_package:Detector
[tightrope.algorithms]
mine = their_package:MINE
broken = their_broken_package:BROKEN
not-one = their_package:brevity
[tightrope.trackers]
told = their_package:told
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A distribution as pip leaves it on the search path."""
    site = tmp_path / "site"
    info = site / "their_package-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (site / "their_package.py").write_text(CODE)
    (site / "their_broken_package.py").write_text("import no_such_module_anywhere\n")
    monkeypatch.syspath_prepend(site)
    yield
    for name in ("their_package", "their_broken_package"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tiny_files(tmp_path_factory.mktemp("files"))


def config(files, tmp_path, stage="mine", **changes):
    content = {
        "output": str(tmp_path / "run"),
        "model": {"name": str(files.model)},
        "data": {"train": str(files.prompts), "held_out": 4},
        "training": {"steps": 2},
        "checkpoint": {"every": 1},
        "rollout": {"prompts_per_step": 4, "samples_per_prompt": 2, "max_new_tokens": 4},
        "reward": {"function": "brevity", "normalise_samples": 8},
        "evaluation": {"prompts": 0},
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"stage": stage} | content | changes))
    return path


def test_an_algorithm_of_a_package_is_checked_trained_and_resumed(package, files, tmp_path, capsys):
    path = config(files, tmp_path, mine={"floor": -1.0}, trackers=["told"])
    code, out, err = call(capsys, "check", "mine", path)
    assert (code, err) == (0, "") and "valid for `mine`" in out
    code, out, err = call(capsys, "train", path, "--quiet")
    assert code == 0, err
    view = api.read(tmp_path / "run")
    assert [record.step for record in view.records("mine")] == [0, 1]
    assert view.config.model_dump()["mine"]["floor"] == -1.0
    assert {file.name for file in (tmp_path / "run/trackers/told").iterdir()} == {"0", "1", "closed"}
    max((tmp_path / "run/checkpoints").glob("iter-*")).rename(tmp_path / "gone")
    code, out, err = call(capsys, "resume", tmp_path / "run", "--quiet")
    assert code == 0, err
    assert [record.step for record in view.records("mine")] == [0, 1]


def test_a_slip_in_a_plugin_s_section_is_told_as_any_other(package, files, tmp_path, capsys):
    code, _, err = call(capsys, "train", config(files, tmp_path, mine={"flor": 1.0}))
    assert code == 2 and "unknown key `mine.flor`" in err and "did you mean `mine.floor`?" in err


@pytest.mark.parametrize(
    ("stage", "changes", "says"),
    [
        ("ppo", {"reward": {"function": "broken"}}, ["reward function broken of their-package", "no_such_module"]),
        ("ppo", {"reward": {"function": "brevty"}}, ["no reward function 'brevty'", "brevity"]),
        ("ppo", {"guardian": {"detectors": ["broken"]}}, ["detector broken of their-package", "no_such_module"]),
        ("ppo", {"guardian": {"detectors": ["json:loads"]}}, ["detector json:loads cannot be made"]),
        ("ppo", {"guardian": {"detectors": ["sys:exit"]}}, ["detector sys:exit cannot be made", "SystemExit"]),
        ("broken", {}, ["algorithm broken of their-package", "no_such_module"]),
        ("not-one", {}, ["algorithm not-one is no AlgorithmPlugin"]),
        ("mien", {}, ['Did you mean "mine"?']),
    ],
)
def test_a_broken_plugin_is_one_line_that_names_it(stage, changes, says, package, files, tmp_path, capsys):
    code, out, err = call(capsys, "train", config(files, tmp_path, stage, **changes))
    assert code == 2 and out == "" and err.count("\n") == 1
    assert not [part for part in says if part not in err], err
    assert not (tmp_path / "run").exists()


def test_broken_plugins_that_nobody_names_break_nothing(package, files, tmp_path, capsys):
    code, _, _ = call(capsys, "check", "ppo", config(files, tmp_path, "ppo"))
    assert code == 0 and "their_broken_package" not in sys.modules


def test_a_detector_that_finds_no_findings_is_left_out():
    class Wordy:
        name = "wordy"

        def review(self, history):
            return ["something is odd"]

    watched = PluginDetector("wordy", Wordy())
    history = [StepRecord(stage="ppo", step=0, attempt=0, metrics={})]
    (finding,) = watched.review(history)
    assert "'something is odd' is no Finding" in finding.message and watched.review(history) == []


def test_detectors_are_heard_and_one_that_raises_is_left_out(package, files, tmp_path, capsys):
    path = config(files, tmp_path, "ppo", guardian={"detectors": ["always", "breaks"]}, ppo={"minibatches": 1})
    code, _, err = call(capsys, "train", path, "--quiet")
    assert code == 0, err
    events = [(e.step, e.kind, e.reason) for e in api.read(tmp_path / "run").events() if e.kind.startswith("alarm:")]
    assert [event for event in events if event[1] == "alarm:always"] == [
        (0, "alarm:always", "seen"),
        (1, "alarm:always", "seen"),
    ]
    broken = [event for event in events if event[1] == "alarm:breaks"]
    assert len(broken) == 1 and "ZeroDivisionError" in broken[0][2]
