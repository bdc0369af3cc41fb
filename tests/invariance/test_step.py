"""Does a whole step give the same losses, gradients, metrics and weights however it is cut, ordered, packed or shared?

Each test goes through the run that the command line builds: rollout, scores, credit, update, in float32. What is
compared and how closely: whole_step.py. The errors that these checks find: test_step_errors.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.invariance import checks
from tests.invariance.whole_step import ONLINE, config_of, reward_adapter, step
from tests.runs import STAGES, Files, built_run, tiny_files
from tests.tiny import tiny_gpt2, tiny_llama
from tightrope.algorithms.ppo import PPO
from tightrope.algorithms.rloo import RLOO


@pytest.fixture(scope="module", params=[tiny_llama, tiny_gpt2], ids=["llama", "gpt2"])
def files(request, tmp_path_factory) -> Files:
    folder = tmp_path_factory.mktemp(request.param.__name__)
    return tiny_files(folder, request.param(folder / "model"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Files:
    """For what no network can change: the order of rows, the epochs."""
    return tiny_files(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def reward_folder(files, tmp_path_factory) -> Path:
    return reward_adapter(files, tmp_path_factory.mktemp("reward") / "export")


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("stage", STAGES)
def test_the_token_budget_changes_nothing(files, tmp_path, stage, lora):
    checks.token_budget(files, tmp_path, stage, lora=lora)


@pytest.mark.parametrize("stage", STAGES)
def test_the_order_of_rows_and_prompts_changes_nothing(llama, tmp_path, stage):
    checks.row_order(llama, tmp_path, stage)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("stage", STAGES)
def test_packed_rows_train_as_padded_rows_do(files, tmp_path, stage, lora):
    checks.packing(files, tmp_path, stage, lora=lora)


@pytest.mark.parametrize(("stage", "critic"), [("ppo", "shared"), ("ppo", "separate"), ("rloo", None), ("dpo", None)])
def test_one_shared_backbone_trains_as_separate_copies_do(files, reward_folder, tmp_path, stage, critic):
    checks.shared_backbone(files, tmp_path, stage, reward_folder, critic)


@pytest.mark.parametrize("stage", ONLINE)
def test_two_epochs_are_one_epoch_and_then_another_on_the_same_experience(llama, tmp_path, stage):
    checks.epochs_apart(llama, tmp_path, stage)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("budget", [None, 1], ids=["together", "one by one"])
@pytest.mark.parametrize("algorithm", [PPO, RLOO])
def test_the_first_minibatch_has_ratio_one(files, tmp_path, monkeypatch, algorithm, budget, lora):
    """Every action of it, not the mean; the first update moves the policy, so later minibatches differ."""
    errors: list[float] = []
    loss_of = algorithm.loss

    def watched(self, output, batch):
        errors.append(float(((output.logprobs.detach() - batch.old_logprobs).exp() - 1.0).abs().max()))
        return loss_of(self, output, batch)

    monkeypatch.setattr(algorithm, "loss", watched)
    stage = algorithm.__name__.lower()
    options = {"epochs": 1, "minibatches": 2}
    built = built_run(config_of(stage, files, budget=budget, lora=lora, options=options), tmp_path)
    built.prepare()
    step(built)
    first = errors[: len(errors) // 2]
    assert max(first) <= 1e-5
    assert max(errors[len(errors) // 2 :]) > 1e-4
