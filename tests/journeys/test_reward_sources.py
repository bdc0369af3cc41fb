"""Several reward sources: is the sum what it says, and does a run that one of them stopped go on exactly?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.commands import call
from tests.failing_rewards import FAULT_FILE
from tests.invariance.test_resume import differing, logged
from tests.runs import Files, run_quietly, tiny_config, tiny_files
from tightrope.algorithms.options import PPOConfig
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.reward_sources import FACTORIES
from tightrope.assemble.stage import resume, start
from tightrope.cli.stages import finish
from tightrope.config.errors import TightropeError
from tightrope.config.load import load_config
from tightrope.config.reward_sources import KINDS, SourceSection
from tightrope.config.schema import RewardSection
from tightrope.records import StepRecord
from tightrope.scoring.composite import CompositeReward, WeightedSource
from tightrope.scoring.normaliser import RewardNormaliser, RunningScale
from tightrope.scoring.sources import SafeSource
from tightrope.storage.samples import SampleStore
from tightrope.types import Prompt, Sample

PATIENT = 0.5
FLAKY = {"name": "flaky", "function": "tests.failing_rewards:share_of_a", "retries": 1, "retry_wait": 0.0}
WORDS = {"name": "words", "function": "tests.runs:word_share", "weight": 0.5, "scale": "running_std", "clip": 3.0}
GATED = FLAKY | {"gate": {"below": 0.05, "cap": -2.0}}
SAYS = {
    "raises": "raised ConnectionError: the service went away",
    "sleeps": "no answer within 0.5 s",
    "short": "(2 attempts): a reward must return one number a sample; expected 12 numbers, found 11",
    "nan": "sample 0 (data row ",
    "inf": "is not finite; expected a finite number within float32, found inf",
    "text": "is not a number; expected a number, found str 'good'",
}


class FaultAfter(Nobody):
    """The source breaks once this step is done."""

    def __init__(self, fault: Path, kind: str, step: int) -> None:
        self._fault, self._kind, self._step = fault, kind, step

    def write(self, record: StepRecord) -> None:
        if record.stage == "ppo" and record.step == self._step:
            self._fault.write_text(self._kind)


@pytest.fixture
def fault(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(FAULT_FILE, str(tmp_path / "fault"))
    return tmp_path / "fault"


@pytest.fixture
def files(tmp_path) -> Files:
    return tiny_files(tmp_path)


def config_of(files: Files, output: Path, *sources: dict[str, Any], **reward: Any) -> PPOConfig:
    section = {"function": None, "sources": tuple(sources), "order": "normalise_then_sum", **reward}
    config = tiny_config("ppo", files, output, changes={"reward": section})
    assert isinstance(config, PPOConfig)
    return config


@pytest.mark.parametrize(("kind", "step"), [(kind, 0) for kind in SAYS] + [("raises", 1), ("nan", 2)])
def test_a_source_that_fails_pauses_the_run_and_it_goes_on_bit_for_bit(files, fault, tmp_path, capsys, kind, step):
    """After step 1 a probe meets the fault, after the others a step does."""
    sources = GATED | ({"deadline": PATIENT} if kind == "sleeps" else {}), WORDS
    whole = run_quietly("ppo", config_of(files, tmp_path / "whole", *sources))
    config = config_of(files, tmp_path / "halves", *sources)
    paused = start("ppo", config, lambda name, settings: FaultAfter(fault, kind, step))
    assert (paused.outcome, paused.steps) == ("paused", step + 1)
    assert paused.stop_reason is not None
    assert paused.stop_reason.startswith("reward source `flaky` (function) gave no rewards")
    assert SAYS[kind] in paused.stop_reason
    with pytest.raises(SystemExit) as left:
        finish(paused, False)
    assert left.value.code == 77
    told = capsys.readouterr().err.splitlines()
    assert told[-1].endswith(f"tightrope resume {config.output}") and len(told) == 2
    code, _, err = call(capsys, "resume", config.output)  # it is not back yet
    assert code == 77 and "still paused: reward source `flaky`" in err
    fault.unlink()
    resumed = resume(config.output, lambda name, settings: Nobody())
    assert resumed.outcome == whole.outcome == "finished"
    assert logged(whole.folder) == logged(resumed.folder)
    assert differing(whole.folder, resumed.folder) == []


def test_one_failure_is_only_a_retry(files, fault, tmp_path, monkeypatch):
    calls = []
    section = SourceSection.model_validate_json(
        '{"name": "a", "function": "tests.failing_rewards:share_of_a", "retries": 2, "retry_wait": 1.0}'
    )

    class Twice:
        def score(self, samples):
            calls.append(1)
            if len(calls) < 3:
                raise OSError("busy")
            return [1.0]

    waits: list[float] = []
    assert SafeSource(Twice(), section, sleep=waits.append).score([SAMPLE]) == [1.0]
    assert (len(calls), waits) == (3, [1.0, 2.0])


SAMPLE = Sample(Prompt(0, (), "a", {}), "b", "stop", 1)


def section(**values: Any) -> SourceSection:
    return SourceSection.model_validate({"function": "m:f", **values})


class Says:
    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def score(self, samples):
        return self.values


def test_the_sum_is_the_documented_one():
    scale = RunningScale()
    scale.see(torch.tensor([0.0, 4.0]))  # std 2
    composite = CompositeReward(
        [
            WeightedSource(section(name="a", weight=3.0, clip=1.5), Says(2.0, 8.0), RewardNormaliser(0.5, -1.0), scale),
            WeightedSource(section(name="b", weight=-1.0), Says(1.0, 5.0), RewardNormaliser()),
            WeightedSource(
                section(name="c", weight=0.0, gate={"below": 0.5, "cap": -4.0}), Says(0.0, 0.5), RewardNormaliser()
            ),
        ]
    )
    verdict = composite.judged([SAMPLE, SAMPLE])
    assert verdict.raw.tolist() == [3 * 0.0 - 1.0, 3 * 1.5 - 5.0]
    assert verdict.cap is not None and verdict.cap.tolist() == [-4.0, float("inf")]
    assert verdict.parts["source/a"].tolist() == [2.0, 8.0]


def test_a_failed_call_leaves_no_trace_in_a_scale():
    class Broken:
        def score(self, samples):
            raise TightropeError("broken")

    scale = RunningScale()
    ours = WeightedSource(section(name="a"), Says(1.0, 2.0), RewardNormaliser(), scale)
    theirs = WeightedSource(section(name="b"), Broken(), RewardNormaliser())
    with pytest.raises(TightropeError):
        CompositeReward([ours, theirs]).judged([SAMPLE, SAMPLE], learns_scale=True)
    assert scale.seen.count == 0


@pytest.mark.parametrize("normalise", ["samples", "off"])
def test_one_plain_source_trains_as_the_short_form(files, fault, tmp_path, normalise):
    short = tiny_config("ppo", files, tmp_path / "short", changes={"reward": {"normalise": normalise}})
    one = {"name": "words", "function": "tests.runs:word_share"}
    listed = config_of(files, tmp_path / "listed", one, normalise=normalise, order="sum_then_normalise")
    assert differing(run_quietly("ppo", short).folder, run_quietly("ppo", listed).folder) == []


def test_every_sample_keeps_each_sources_own_value_and_a_gate_caps_the_reward(files, fault, tmp_path):
    done = run_quietly("ppo", config_of(files, tmp_path / "run", GATED, WORDS))
    metrics = done.latest["ppo"].metrics
    assert {"reward/source/flaky", "reward/source/words", "reward_gate"} <= metrics.keys()
    store = SampleStore(done.folder / "run.db", read_only=True)
    samples = [sample for step in store.steps("train") for sample in store.read(step, "train")]
    store.close()
    gated = [sample for sample in samples if sample.parts["source/flaky"] < 0.05]
    assert gated and len(gated) < len(samples)
    assert all(sample.reward is not None and sample.reward <= -2.0 for sample in gated)


BASE = "output: x\nmodel: {name: base}\ndata: {train: a.jsonl}\nreward:\n  sources:\n"


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ("    - name: a\n      function: m:f\n      wieght: 2\n    - {name: b, function: m:f}\n",
         ":8: unknown key `reward.sources.wieght`; did you mean `reward.sources.weight`?"),
        ("    - {name: a, function: m:f}\n    - name: b\n      function: m:f\n      weight: much\n",
         ":9: wrong value of `reward.sources.weight`; expected number, found 'much'"),
        ("    - {name: a}\n", ":6: reward source `a` has none of them, and needs one of model, function"),
        ("    - {name: a, function: m:f, model: r}\n", ":6: reward source `a` has model and function"),
        ("    - {name: a, function: m:f}\n    - {name: a, function: m:g}\n", "two reward sources are called `a`"),
        ("    - {name: a, model: m, deadline: 3}\n", "a model has no deadline"),
        ("    - {name: a, model: m}\n    - {name: b, model: n}\n", "more than one reward source is a model"),
        ("    - {name: a, function: m:f}\n  function: m:g\n", "both reward.function and reward.sources are set"),
        ("    - {name: a, function: m:f}\n  normalise: manifest\n", "reward.sources are of several kinds"),
        ("    - {name: a, function: m:f, weight: 0}\n", "every reward source has weight 0"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_entry_is_told_at_its_line(tmp_path, entries, says):
    path = tmp_path / "run.yaml"
    path.write_text(BASE + entries)
    with pytest.raises(TightropeError) as caught:
        load_config(path, [], PPOConfig)
    assert says in str(caught.value)


def test_every_kind_has_a_factory_and_a_key():
    assert {*FACTORIES, "model"} == set(KINDS) <= set(SourceSection.model_fields)
    assert RewardSection(model="m").models == ["m"]
