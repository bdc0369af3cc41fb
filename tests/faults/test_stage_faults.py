"""Faults that only a whole stage shows: real stages over tiny models, one test an entry of docs/faults.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from tests.commands import call
from tests.invariance.test_resume import STEPS, interrupted_and_resumed
from tests.runs import Files, run_quietly, tiny_config, tiny_files
from tests.tiny import tiny_gpt2, tiny_llama
from tightrope.algorithms.options import PPOConfig, RLOOConfig
from tightrope.assemble.fanout import Nobody
from tightrope.assemble.inputs import read_inputs
from tightrope.assemble.online import build_online
from tightrope.assemble.parts import Assembled, Outputs
from tightrope.assemble.stage import Finished, start
from tightrope.config.errors import TightropeError
from tightrope.config.schema import DataSection, ModelSection
from tightrope.data.preferences import load_preferences
from tightrope.models.load import dtype_of, eos_ids, load_network, load_tokenizer
from tightrope.models.packed_forward import sequence_scores
from tightrope.models.roles import Role, load_reward
from tightrope.records import StepRecord
from tightrope.rollout.local_engine import LocalEngine
from tightrope.scoring.judge import LocalJudge
from tightrope.storage.checkpoints import CheckpointStore
from tightrope.storage.journal import Journal
from tightrope.storage.metrics import MetricStore
from tightrope.training.step import train_step
from tightrope.types import Rollout, SampleKey, Sampling, Scores

RATIO_FP32 = 1e-5  # the same tokens in two orders of summation, float32
ONE_UPDATE = {"epochs": 1, "minibatches": 1}
TRAINING_STEP = 12
"""Responses of a training step; probe, self-test and preparation draw other numbers of them."""
Changes = Mapping[str, Mapping[str, Any]]


def zero(samples: object) -> list[float]:
    """A reward that prefers nothing."""
    assert isinstance(samples, list)
    return [0.0] * len(samples)


def records(run: Path, stage: str) -> list[StepRecord]:
    store = MetricStore(run / "run.db", read_only=True)
    try:
        return store.rows(stage)
    finally:
        store.close()


def run_of(stage: str, files: Files, output: Path, **options: Any) -> tuple[Finished, list[StepRecord]]:
    done = run_quietly(stage, tiny_config(stage, files, output, **options))
    assert done.outcome == "finished"
    return done, records(output, stage)


def built_online(config: PPOConfig | RLOOConfig, folder: Path) -> Assembled:
    """The run before its first step, for tests that look at its parts."""
    folder.mkdir()
    silent = Nobody()
    outputs = Outputs(CheckpointStore(folder / "checkpoints", 2, {}), Journal(folder / "events.jsonl"), silent, silent)
    return build_online(config, read_inputs(config), outputs)


@pytest.mark.parametrize("tiny", [tiny_llama, tiny_gpt2])
def test_b13_sft_learns_to_stop(tmp_path: Path, tiny: Any) -> None:
    """With a tokenizer whose pad token is its end token, as GPT-2's and SmolLM's."""
    files = tiny_files(tmp_path, tiny(tmp_path / "model", pad_is_eos=True), rows=20)
    changes: Changes = {
        "optimizer": {"learning_rate": 1e-2},
        "sft": {"batch_size": 20},
        "data": {"held_out": 0},
        "training": {"steps": 50},
    }
    done, _ = run_of("sft", files, tmp_path / "run", changes=changes)
    assert done.export is not None
    tokenizer = load_tokenizer(done.export)
    policy = Role("policy", load_network(done.export, ModelSection(name=done.export)), None, None)
    prompts = read_inputs(tiny_config("ppo", files, tmp_path / "x", changes={"data": {"held_out": 0}})).data
    sampling = Sampling(1.0, 48, eos_ids(done.export, tokenizer))
    rollout = LocalEngine(policy, tokenizer, lambda: 0).generate(prompts.train, 10, sampling, SampleKey(0, 0, 0))  # type: ignore[union-attr]
    demonstrations = [json.loads(line) for line in files.demonstrations.read_text().splitlines()]
    assert float(rollout.stopped.double().mean()) >= 0.95
    longest = max(len(row["completion"].split()) for row in demonstrations) + 1
    assert float(rollout.rows.action_counts.double().mean()) <= longest


def test_b15_b18_every_end_token_of_the_model_is_a_stop_and_costs_nothing(tmp_path: Path) -> None:
    """An end token that only generation_config names: recorded by the sampler, so the missing-EOS rule sees it."""
    files = tiny_files(tmp_path)
    words = list(range(3, 40))
    (files.model / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, *words]}))
    changes: Changes = {"reward": {"missing_eos": {"mode": "subtract", "value": 1.0}}, "training": {"steps": 1}}
    _, (with_list,) = run_of("ppo", files, tmp_path / "list", changes=changes)
    (files.model / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    _, (without,) = run_of("ppo", files, tmp_path / "one", changes=changes)
    assert with_list.metrics["stopped_share"] > 0.8 > 0.5 > without.metrics["stopped_share"]
    assert with_list.metrics["response_tokens"] < without.metrics["response_tokens"]
    for record in (with_list, without):
        assert record.metrics["reward_missing_eos"] == pytest.approx(record.metrics["stopped_share"] - 1.0, abs=1e-6)


def test_b21_rm_score_equals_the_training_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tiny_files(tmp_path)
    done, _ = run_of("rm", files, tmp_path / "run")
    assert done.export is not None
    section = DataSection(train=files.preferences, held_out=0)
    pairs = load_preferences(section, load_tokenizer(done.export), context=64).train
    with torch.no_grad():
        trained = sequence_scores(load_reward(done.export), pairs.rows).tolist()
    code, out, _ = call(capsys, "rm", "score", tmp_path / "run", files.preferences)
    scores = [json.loads(line)["score"] for line in out.splitlines()]
    assert code == 0 and scores == pytest.approx(trained, abs=1e-5)
    row = json.loads(files.preferences.read_text().splitlines()[0])
    one = ["--prompt", row["prompt"], "--response", row["chosen"]]
    _, out, _ = call(capsys, "rm", "score", tmp_path / "run", *one)
    assert json.loads(out)["score"] == pytest.approx(trained[0], abs=1e-5)


def test_b34_dropout_of_the_checkpoint_is_off(tmp_path: Path) -> None:
    """GPT-2 is published with dropout 0.1; the first update sees the policy that was sampled."""
    files = tiny_files(tmp_path, tiny_gpt2(tmp_path / "model"))
    _, done = run_of("rloo", files, tmp_path / "run", steps=2, changes={"rloo": ONE_UPDATE})
    for record in done:
        assert record.metrics["ratio_error"] < RATIO_FP32
        assert record.metrics["clip_fraction"] == 0.0
        assert record.metrics["approx_kl"] < RATIO_FP32


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_b35_the_first_dpo_step_is_at_ln_2_with_both_rewards_0(tmp_path: Path, lora: bool) -> None:
    files = tiny_files(tmp_path, tiny_gpt2(tmp_path / "model"))
    _, done = run_of("dpo", files, tmp_path / "run", lora=lora, steps=2)
    first = done[0].metrics
    assert first["loss"] == pytest.approx(math.log(2.0), abs=1e-6)
    assert first["reward_chosen"] == pytest.approx(0.0, abs=1e-5)
    assert first["reward_rejected"] == pytest.approx(0.0, abs=1e-5)
    assert done[1].metrics["loss"] != pytest.approx(math.log(2.0), abs=1e-6)


def test_b38_a_step_of_one_action_has_no_nan(tmp_path: Path) -> None:
    changes: Changes = {
        "rollout": {"prompts_per_step": 1, "samples_per_prompt": 1, "max_new_tokens": 1},
        "ppo": ONE_UPDATE,
    }
    _, done = run_of("ppo", tiny_files(tmp_path), tmp_path / "run", steps=4, changes=changes)
    for record in done:
        assert "nonfinite" not in record.metrics
        assert all(math.isfinite(value) for value in record.metrics.values())


@pytest.mark.parametrize("stage", ["sft", "rm", "dpo", "ppo", "rloo"])
def test_b39_the_token_budget_does_not_change_the_weights(tmp_path: Path, stage: str) -> None:
    """One sequence at a time, a few, or all at once: one step of plain size each, so that Adam cannot hide a factor
    (its first step divides the gradient's size away; the second does not)."""
    files, weights = tiny_files(tmp_path), []
    for budget in (1, 40, None):
        output = tmp_path / f"run-{budget}"
        done, _ = run_of(stage, files, output, steps=2, changes={"training": {"token_budget": budget, "steps": 2}})
        assert done.export is not None
        weights.append(load_file(done.export / "model.safetensors"))
    for other in weights[1:]:
        for name, tensor in weights[0].items():
            # Adam turns rounding of a gradient near 0 into moves up to a share of the rate of 1e-3.
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=5e-5)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_b54_the_reference_stays_behind(tmp_path: Path, lora: bool) -> None:
    changes: Changes = {"optimizer": {"learning_rate": 1e-2}}
    _, done = run_of("rloo", tiny_files(tmp_path), tmp_path / "run", lora=lora, steps=6, changes=changes)
    assert abs(done[0].metrics["kl_seq"]) < RATIO_FP32
    # Estimated from a few responses, so either sign can come out; a reference that is the policy gives 0.
    assert abs(done[-1].metrics["kl_seq"]) > 0.01


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_b56_the_critic_is_in_the_checkpoint(tmp_path: Path, lora: bool) -> None:
    options: Changes = {"ppo": {"critic": "separate", **ONE_UPDATE}}
    done, _ = run_of("ppo", tiny_files(tmp_path), tmp_path / "run", lora=lora, steps=4, changes=options)
    loaded = CheckpointStore(done.folder / "checkpoints", 2, {}).load_latest()
    assert loaded is not None and loaded[0] == 4
    critic = loaded[1]["weights"]["critic"]
    assert bool(critic["head.weight"].any()) and len(critic) > 2
    assert set(loaded[1]["learner"]["optimizers"]) == {"policy", "critic"}


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_b57_the_sampler_has_the_newest_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: bool) -> None:
    """RLOO takes the sampler's log-probs as the old ones: a stale sampler would show as a ratio beside 1."""
    versions, right = list[int](), LocalJudge.score

    def seen(self: LocalJudge, rollout: Rollout) -> Scores:
        if rollout.n_sequences == TRAINING_STEP:
            versions.append(rollout.policy_version)
        return right(self, rollout)

    monkeypatch.setattr(LocalJudge, "score", seen)
    changes: Changes = {"optimizer": {"learning_rate": 3e-2}, "rloo": ONE_UPDATE | {"target_kl": None}}
    _, done = run_of("rloo", tiny_files(tmp_path), tmp_path / "run", lora=lora, steps=5, changes=changes)
    assert versions == [0, 1, 2, 3, 4]
    assert done[-1].metrics["kl_seq"] > 0.1, "the policy moved too little for the test to see a stale sampler"
    assert all(record.metrics["ratio_error"] < 1e-4 for record in done)


def test_b62_b63_a_resumed_run_goes_on_in_the_data_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, right = list[int](), LocalJudge.score

    def seen(self: LocalJudge, rollout: Rollout) -> Scores:
        if rollout.n_sequences == TRAINING_STEP:
            drawn.extend(prompt.index for prompt in rollout.prompts)
        return right(self, rollout)

    monkeypatch.setattr(LocalJudge, "score", seen)
    files = tiny_files(tmp_path, rows=40)
    run_of("ppo", files, tmp_path / "whole", steps=STEPS)
    whole = drawn.copy()
    drawn.clear()
    interrupted_and_resumed("ppo", tiny_config("ppo", files, tmp_path / "halves", steps=STEPS))
    assert drawn == whole
    assert len(set(whole)) == len(whole) == 6 * STEPS


def test_b73_half_precision_is_chosen_only_where_it_works(tmp_path: Path) -> None:
    section = ModelSection(name=tmp_path)
    assert dtype_of(section, torch.device("cpu")) == torch.float32
    with pytest.raises(ValidationError, match="dtype"):
        ModelSection.model_validate({"name": tmp_path, "dtype": "float16"})


@pytest.mark.slow
def test_b80_memory_does_not_grow_with_the_steps(tmp_path: Path) -> None:
    """Less than 1 MB in 100 steps after warming up."""
    sizes, process = list[int](), psutil.Process()

    class Weighing(Nobody):
        def write(self, record: StepRecord) -> None:
            if record.stage == "ppo":
                sizes.append(process.memory_info().rss)

    changes: Changes = {"evaluation": {"every": 1000}, "checkpoint": {"every": 1000}}
    config = tiny_config("ppo", tiny_files(tmp_path), tmp_path / "run", steps=400, changes=changes)
    start("ppo", config, lambda name, settings: Weighing())
    second, last = sum(sizes[200:220]) / 20, sum(sizes[380:400]) / 20
    assert (last - second) / 1.8 < 1e6


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_b86_kl_falls_when_it_is_all_that_counts(tmp_path: Path, lora: bool) -> None:
    """Reward 0, a large beta, and a policy that starts off its reference."""
    changes: Changes = {
        "reward": {
            "normalise": "off",
            "missing_eos": {"mode": "off"},
            "function": "tests.faults.test_stage_faults:zero",
        },
        "kl": {"beta": 1.0, "mode": "fixed"},
        "rollout": {"prompts_per_step": 16, "samples_per_prompt": 8, "fixed_prompts": True},
        "optimizer": {"learning_rate": 5e-3 if lora else 1e-2, "schedule": "constant"},
        "training": {"steps": 20, "token_budget": None},
        "rloo": {"epochs": 4 if lora else 2, "minibatches": 1, "target_kl": None},
    }
    config = tiny_config("rloo", tiny_files(tmp_path), tmp_path / "run", lora=lora, changes=changes)
    assert isinstance(config, RLOOConfig)
    built = built_online(config, tmp_path / "out")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in built.roles.parameters["policy"].values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    kl = [train_step(built.run).metrics["kl_seq"] for _ in range(20)]  # type: ignore[arg-type]
    assert kl[0] > 1.0
    assert sum(kl[-5:]) < 0.75 * sum(kl[:5])  # one batch of responses scatters by a tenth


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_b89_a_step_moves_policy_and_critic_and_no_byte_of_the_others(tmp_path: Path, critic: str) -> None:
    files = tiny_files(tmp_path)
    reward = run_quietly("rm", tiny_config("rm", files, tmp_path / "rm", lora=True, steps=2)).folder
    changes: Changes = {"ppo": {"critic": critic, "value_warmup_steps": 0}}
    config = tiny_config("ppo", files, tmp_path / "run", lora=True, reward_model=reward, changes=changes)
    assert isinstance(config, PPOConfig)
    built = built_online(config, tmp_path / "out")
    frozen = built.roles.frozen_hashes()
    before = {name: clones(group) for name, group in built.roles.parameters.items()}
    for _ in range(2):  # the A of an adapter moves only once its B is not zero
        train_step(built.run)  # type: ignore[arg-type]
    assert {"backbone", "reference", "reward"} <= set(frozen)
    assert built.roles.frozen_hashes() == frozen
    assert set(before) == {"policy", "critic"}
    for group, old in before.items():
        still = [name for name, tensor in built.roles.parameters[group].items() if torch.equal(tensor, old[name])]
        assert not still


def clones(group: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in group.items()}


@pytest.mark.parametrize("stage", ["sft", "ppo"])
def test_b92_saving_is_proven_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """A run that could not save says so at once, and not after its last step."""

    def refuses(self: CheckpointStore, step: int, state: object) -> Path:
        raise TightropeError("no checkpoint can be written", where=str(self.folder))

    monkeypatch.setattr(CheckpointStore, "save", refuses)
    seen = list[StepRecord]()

    class Watching(Nobody):
        def write(self, record: StepRecord) -> None:
            seen.append(record)

    config = tiny_config(stage, tiny_files(tmp_path), tmp_path / "run")
    with pytest.raises(TightropeError, match="no checkpoint can be written"):
        start(stage, config, lambda name, settings: Watching())
    assert seen == [] and not (tmp_path / "run").exists()


def test_b92_what_is_not_read_back_as_it_was_saved_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = CheckpointStore.load_latest

    def forgets(self: CheckpointStore) -> Any:
        loaded = right(self)
        if loaded is None:
            return None
        step, state = loaded
        return step, {name: part for name, part in state.items() if name != "learner"}

    monkeypatch.setattr(CheckpointStore, "load_latest", forgets)
    with pytest.raises(TightropeError, match="self-test 'checkpoint' failed"):
        run_quietly("ppo", tiny_config("ppo", tiny_files(tmp_path), tmp_path / "run"))


def test_a_failed_self_test_cannot_be_resumed_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is saved before the self-test has passed."""
    right = LocalJudge.score

    def other_reference(self: LocalJudge, rollout: Rollout) -> Scores:
        scores = right(self, rollout)
        assert scores.ref_logprobs is not None
        return replace(scores, ref_logprobs=scores.ref_logprobs + 0.1)

    monkeypatch.setattr(LocalJudge, "score", other_reference)
    with pytest.raises(TightropeError, match="self-test 'reference' failed"):
        run_quietly("ppo", tiny_config("ppo", tiny_files(tmp_path), tmp_path / "run"))
    assert not (tmp_path / "run").exists()
