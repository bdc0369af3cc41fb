"""Does the guardian hold a real run, from the command line, and is nothing broken ever learned or saved?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.commands import call
from tests.runs import tiny_config, tiny_files
from tightrope.algorithms.ppo import PPO
from tightrope.algorithms.sft import SFT
from tightrope.config.load import save_resolved
from tightrope.records import StepRecord
from tightrope.scoring.judge import LocalJudge
from tightrope.storage.checkpoints import CheckpointStore, read_state, verify
from tightrope.storage.journal import Event, read_events
from tightrope.storage.manifest_file import CheckpointManifest
from tightrope.storage.metrics import MetricStore
from tightrope.training.optimisers import NamedAdamW

STEP = 12
"""Responses of one training step; preparation, self-test and probe draw other numbers of them."""
JUDGE = """
import os
steps = [0]
def judge(samples):
    steps[0] += len(samples) == 12
    rewards = [float(len(set(sample.response.split()))) for sample in samples]
    {trouble}
    return rewards
"""


def prepared(tmp_path: Path, stage: str = "ppo", trouble: str = "pass", steps: int = 6) -> Path:
    """A config whose reward runs ``trouble`` at each call; checkpoints at step 0 and at the end alone."""
    files = tiny_files(tmp_path)
    config = tiny_config(stage, files, tmp_path / "run", steps=steps, changes={"checkpoint": {"every": 100}})
    if stage == "ppo":
        (tmp_path / "judge.py").write_text(JUDGE.format(trouble=trouble))
        content = config.model_dump(exclude_unset=True)
        content["reward"]["function"] = f"{tmp_path}/judge.py:judge"
        content["evaluation"].pop("function")
        config = type(config).model_validate(content)
    save_resolved(stage, config, tmp_path / "config.yaml")
    return tmp_path / "run"


def records(run: Path) -> list[StepRecord]:
    store = MetricStore(run / "run.db", read_only=True)
    try:
        return store.rows("ppo") or store.rows("sft")
    finally:
        store.close()


def events(run: Path) -> list[Event]:
    return read_events(run / "events.jsonl")


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    place = run / "checkpoints" / f"iter-{step:06d}"
    manifest = verify(place)
    assert isinstance(manifest, CheckpointManifest)
    found: dict[str, torch.Tensor] = {}
    for group, parameters in read_state(place, manifest)["weights"].items():
        found |= {f"{group}/{name}": tensor for name, tensor in parameters.items()}
    return found


def newest(run: Path) -> int:
    loaded = CheckpointStore(run / "checkpoints", 2, {}).load_latest()
    assert loaded is not None
    return loaded[0]


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    assert left and left.keys() == right.keys()
    return all(torch.equal(left[name], right[name]) for name in left)


def test_kl_over_the_limit_keeps_a_checkpoint_raises_beta_and_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = prepared(tmp_path, steps=20)
    strong = ["optimizer.learning_rate=0.03", "ppo.value_warmup_steps=0", "ppo.target_kl=null", "kl.mode=fixed"]
    limits = ["guardian.kl_limit=0.001", "guardian.patience=3", "optimizer.schedule=constant"]
    code, _, err = call(capsys, "ppo", tmp_path / "config.yaml", *strong, *limits, "--quiet")
    done = records(run)
    assert code == 76 and len(done) < 20, err
    assert "stopped by the guardian" in err and "is over the limit of 0.001" in err and f"tightrope resume {run}" in err
    seen = [event.kind for event in events(run) if event.source == "guardian"]
    assert seen[:3] == ["alarm:kl_limit", "checkpoint", "raise_beta"] and seen[-1] == "stop"
    raises = [event for event in events(run) if event.kind == "raise_beta"]
    betas = [record.controls["beta"] for record in done]
    assert betas[0] == 0.05 and betas[-1] == pytest.approx(0.05 * 2 ** len(raises))
    assert betas[raises[0].step + 1] == pytest.approx(0.1)
    assert newest(run) == done[-1].step + 1
    code, _, err = call(capsys, "resume", run, "--quiet")
    assert code in (0, 76) and "error" not in err
    assert len(records(run)) > len(done)


def nan_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PPO.loss

    def broken(self: PPO, output, batch):
        loss = right(self, output, batch)
        term = loss.terms["policy"]
        return replace(loss, terms={**loss.terms, "policy": replace(term, sum=term.sum * math.nan)})

    monkeypatch.setattr(PPO, "loss", broken)


def first_gradient(optimizer: NamedAdamW) -> torch.Tensor:
    return next(p.grad for p in optimizer.parameters.values() if p.grad is not None)


def nan_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    right = NamedAdamW.clip_gradients

    def broken(self: NamedAdamW) -> float:
        first_gradient(self).view(-1)[0] = math.inf
        return right(self)

    monkeypatch.setattr(NamedAdamW, "clip_gradients", broken)


def huge_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gradient is a number, the sum of their squares is not."""
    right = NamedAdamW.clip_gradients

    def broken(self: NamedAdamW) -> float:
        first_gradient(self).fill_(1e30)
        return right(self)

    monkeypatch.setattr(NamedAdamW, "clip_gradients", broken)


def nan_values(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LocalJudge.score

    def broken(self: LocalJudge, rollout):
        scores = right(self, rollout)
        assert scores.values is not None
        return scores if rollout.n_sequences != STEP else replace(scores, values=scores.values * math.nan)

    monkeypatch.setattr(LocalJudge, "score", broken)


def nan_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LocalJudge.score

    def broken(self: LocalJudge, rollout):
        scores = right(self, rollout)
        assert scores.ref_logprobs is not None
        return scores if rollout.n_sequences != STEP else replace(scores, ref_logprobs=scores.ref_logprobs * math.nan)

    monkeypatch.setattr(LocalJudge, "score", broken)


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reward itself is broken."""


@pytest.mark.parametrize(
    ("inject", "trouble", "named"),
    [
        (nan_loss, "pass", "policy loss"),
        (nan_gradient, "pass", "gradient of "),
        (huge_gradient, "pass", "gradient norm of "),
        (nan_values, "pass", "loss"),
        (nan_reference, "pass", "loss"),
        (nothing, "rewards[-1] = float('nan') if len(samples) == 12 else 0.0", "reward function"),
        (nothing, "rewards[-1] = float('-inf') if len(samples) == 12 else 0.0", "sample 11"),
    ],
)
def test_what_is_not_a_number_is_never_learned(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    inject: Callable[[pytest.MonkeyPatch], None],
    trouble: str,
    named: str,
) -> None:
    run = prepared(tmp_path, trouble=trouble)
    with monkeypatch.context() as patch:
        inject(patch)
        code, _, err = call(capsys, "ppo", tmp_path / "config.yaml", "--quiet", "guardian.max_nonfinite=3")
    assert code == 76, err
    assert "3 steps in a row could not be used" in err and named in err
    done = records(run)
    assert [record.step for record in done] == [0, 1, 2]
    assert all(named in record.notes["nonfinite"] and record.metrics["nonfinite"] >= 1 for record in done)
    assert [event.kind for event in events(run)].count("alarm:nonfinite") == 3
    assert newest(run) == 3 and same(weights(run, 0), weights(run, 3))
    if inject is not nothing:  # the cause is gone: the run goes on to its end
        code, _, err = call(capsys, "resume", run, "--quiet")
        assert code == 0, err
        assert len(records(run)) == 6 and not same(weights(run, 3), weights(run, 6))


def test_one_bad_step_is_skipped_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = prepared(tmp_path, trouble="rewards[0] = float('nan') if steps[0] == 2 and len(samples) == 12 else 1.0")
    code, _, err = call(capsys, "ppo", tmp_path / "config.yaml", "--quiet")
    assert code == 0, err
    done = records(run)
    assert [record.step for record in done if "nonfinite" in record.metrics] == [1]
    assert not same(weights(run, 0), weights(run, 6))
    assert all(bool(tensor.isfinite().all()) for tensor in weights(run, 6).values())


def test_offline_stages_are_guarded_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, right = prepared(tmp_path, "sft"), SFT.loss

    def broken(self: SFT, batch):
        loss = right(self, batch)
        return replace(loss, terms={name: replace(term, sum=term.sum * math.nan) for name, term in loss.terms.items()})

    monkeypatch.setattr(SFT, "loss", broken)
    code, _, err = call(capsys, "sft", tmp_path / "config.yaml", "--quiet", "guardian.max_nonfinite=2")
    assert code == 76 and "nll loss" in err
    assert newest(run) == 2 and same(weights(run, 0), weights(run, 2))


def test_a_policy_that_gives_no_numbers_stops_without_replacing_the_last_good_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, right = prepared(tmp_path), NamedAdamW.step

    def destroys(self: NamedAdamW, rate_factor: float) -> None:
        """At the first step of the policy, which is the run's third: until then the critic trains alone."""
        right(self, rate_factor)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if "embed" in name:
                    parameter.fill_(math.nan)

    with monkeypatch.context() as patch:
        patch.setattr(NamedAdamW, "step", destroys)
        code, out, err = call(capsys, "ppo", tmp_path / "config.yaml", "--quiet", "checkpoint.every=2")
    assert code == 76, err
    assert "the policy's logits are not finite numbers" in err and f"tightrope resume {run}" in err
    assert out == "" and "Traceback" not in err
    assert newest(run) == 2 and all(bool(tensor.isfinite().all()) for tensor in weights(run, newest(run)).values())
    code, _, err = call(capsys, "resume", run, "--quiet")
    assert code == 0, err
    assert all(bool(tensor.isfinite().all()) for tensor in weights(run, 6).values())


def test_a_judge_without_a_number_costs_the_probe_and_not_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = prepared(tmp_path, trouble="rewards[0] = float('nan') if len(samples) == 4 else 1.0")
    code, _, err = call(capsys, "ppo", tmp_path / "config.yaml", "--quiet")
    assert code == 0, err
    assert "warning: no probe at step 2: reward function" in err
    assert [event.kind for event in events(run)].count("probe_missed") == 4
    assert [record.step for record in records(run)] == list(range(6))


def test_a_reward_that_raises_in_the_middle_is_one_line_and_keeps_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = prepared(tmp_path, trouble="rewards[0] /= steps[0] < 3")
    code, out, err = call(capsys, "ppo", tmp_path / "config.yaml", "--quiet", "checkpoint.every=1")
    lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert code == 2 and out == ""
    assert len(lines) == 1 and "judge.py:7: the reward function" in lines[0] and "ZeroDivisionError" in lines[0]
    assert newest(run) == 2
    (tmp_path / "judge.py").write_text(JUDGE.format(trouble="pass"))
    assert call(capsys, "resume", run, "--quiet")[0] == 0


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_saves_and_tells_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str], number: str) -> None:
    kill = f"import signal; len(samples) == 12 and steps[0] == 3 and os.kill(os.getpid(), signal.{number})"
    run = prepared(tmp_path, trouble=kill)
    code, _, err = call(capsys, "ppo", tmp_path / "config.yaml", "--quiet")
    assert code == 75
    assert f"interrupted after step 3, everything is saved; go on with: tightrope resume {run}" in err
    assert newest(run) == 3
    (tmp_path / "judge.py").write_text(JUDGE.format(trouble="pass"))
    code, out, err = call(capsys, "resume", run, "--quiet")
    assert code == 0 and "ppo finished after 6 steps" in out
    assert [record.step for record in records(run)] == list(range(6))
