"""Does a profile count what a run computed, and say the same on the screen and in the file?"""

from __future__ import annotations

import json

import pytest
import yaml

from tests.commands import call
from tests.runs import Nobody, built_run, tiny_config, tiny_files
from tightrope.assemble.profile import StepsMeasured
from tightrope.assemble.stage import start
from tightrope.models.work import Computed, products
from tightrope.training.loop import StopSignals
from tightrope.types import Rollout


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tiny_files(tmp_path_factory.mktemp("profile"))


@pytest.mark.parametrize(("lora", "critic"), [(False, "separate"), (True, "shared")])
def test_every_token_of_a_step_is_counted_once_for_each_pass(files, tmp_path, lora, critic) -> None:
    changes = {"ppo": {"epochs": 2, "critic": critic}, "evaluation": {"prompts": 0}, "data": {"held_out": 0}}
    built = built_run(
        tiny_config("ppo", files, tmp_path / "run", lora=lora, steps=1, changes=changes), tmp_path / "run"
    )
    seen: list[Rollout] = []
    kept = built.run.samples.keep

    def keep(step, attempt, rollout, *others):
        seen.append(rollout)
        kept(step, attempt, rollout, *others)

    object.__setattr__(built.run.samples, "keep", keep)
    measured = StepsMeasured(built)
    for _ in built.steps(StopSignals()):
        pass
    found = measured.profile()
    rows = seen[0].rows
    assert found.steps == 1 and len(seen) == 1
    assert found.phases["rollout"].computed.tokens == rows.n_tokens
    passes = 1 if critic == "shared" else 2
    policy = built.result.network
    trunk = sum(weight.numel() for weight in policy.trunk.parameters() if weight.dim() == 2)
    # The reference; the values of a critic that shares the policy's trunk came with the rollout.
    assert found.phases["score"].computed.tokens == passes * rows.n_tokens
    assert found.phases["update"].computed.tokens == 2 * passes * rows.n_tokens
    assert 0 < found.phases["update"].computed.filling < 16 * 2 * 2 * 12 * passes
    assert found.phases["update"].computed.recomputed == 0
    least = 2 * passes * rows.n_tokens * products(trunk // 2, backward=True, trained=not lora)
    assert found.phases["update"].computed.operations > least
    assert found.phases["credit"].floor_seconds is None
    for name in ("rollout", "score", "update"):
        phase = found.phases[name]
        assert phase.floor_seconds == pytest.approx(phase.computed.operations / found.operations_per_second)
        assert phase.spent.wall_seconds > 0 and phase.spent.peak_bytes > 0


def test_operations_of_a_frozen_trunk_under_an_adapter_are_counted_by_hand(files, tmp_path) -> None:
    run = built_run(tiny_config("ppo", files, tmp_path / "run", lora=True, steps=1), tmp_path / "run")
    network = run.result.network
    # tiny Llama: hidden 32, 2 key-value heads of 8, feed-forward 64, 2 layers; adapters of rank 4
    trunk = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    adapter = 2 * 4 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64))
    head = network.vocabulary * 32
    assert network.sampling_operations(10, 3, "policy") == 2 * (10 * (trunk + adapter) + 3 * head)
    assert network.sampling_operations(10, 3, None) == 2 * (10 * trunk + 3 * head)
    before = network.computed["trained"]
    with network.using("policy"):
        network.count(10, 6)
    network.count_logits(3)
    operations = 10 * (4 * trunk + 6 * adapter) + 4 * 3 * head
    assert network.computed["trained"] - before == Computed(10, 6, 0, operations)


def test_a_layer_that_is_computed_again_is_said(files, tmp_path) -> None:
    changes = {"model": {"gradient_checkpointing": True}, "evaluation": {"prompts": 0}}
    done = start("ppo", tiny_config("ppo", files, tmp_path / "run", steps=1, changes=changes), quiet, profile=True)
    update = json.loads((done.folder / "profile.json").read_text())["phases"]["update"]
    assert update["recomputed"] == update["tokens"] + update["filling"] > 0


def quiet(stage, config) -> Nobody:
    return Nobody()


def test_the_command_prints_a_table_and_writes_the_file(files, tmp_path, capsys) -> None:
    config = tiny_config("ppo", files, tmp_path / "run", steps=1)
    written = tmp_path / "ppo.yaml"
    written.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_defaults=True)))
    code, _, err = call(capsys, "ppo", str(written), "--quiet", "--profile")
    assert code == 0, err
    found = json.loads((tmp_path / "run/profile.json").read_text())
    table = err[err.index("profile of 1 steps") :].splitlines()
    assert [line.split()[0] for line in table[2:7]] == list(found["phases"])
    assert set(found["phases"]) == {"rollout", "score", "credit", "update", "rest"}
    (update,) = [line.split() for line in table if line.split()[0] == "update"]
    assert update[5:7] == [str(found["phases"]["update"][name]) for name in ("tokens", "filling")]


def test_without_being_asked_nothing_is_written(files, tmp_path) -> None:
    done = start("ppo", tiny_config("ppo", files, tmp_path / "run", steps=1), quiet)
    assert not (done.folder / "profile.json").exists()
