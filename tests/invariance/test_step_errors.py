"""Would the invariances of a whole step notice? Each error here is one that public code has had; each check must fail.

The errors are seeded into the live code path, and the very functions that test_step.py calls are asked.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.invariance import checks
from tests.invariance.checks import updated
from tests.invariance.test_resume import STEPS, differing, interrupted_and_resumed
from tests.invariance.whole_step import batch_of, reward_adapter
from tests.runs import Files, run_quietly, tiny_config, tiny_files
from tests.tiny import tiny_gpt2
from tightrope.models import load, packed_forward
from tightrope.models.backbone import Network
from tightrope.models.packed_forward import PackedLayout
from tightrope.scoring.judge import LocalJudge
from tightrope.training import learner
from tightrope.training.optimisers import NamedAdamW
from tightrope.training.policy_objective import PolicyObjective
from tightrope.types import Experience, Preferences


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return tiny_files(tmp_path_factory.mktemp("files"))


def noticed(what: str):
    """The check inside must fail on a number, and not by breaking down."""
    return pytest.raises(AssertionError, match=f"{what}.* differs by")


def test_a_mean_of_micro_batch_means_is_noticed(files, tmp_path, monkeypatch):
    """Each micro-batch divided by its own count, and by how many there are."""
    pieces, real = [1], Experience.microbatches

    def counted(self, budget):
        groups = list(real(self, budget))
        pieces[0] = len(groups)
        return iter(groups)

    def mean_of_means(loss, counts):
        return torch.stack([t.weight * t.sum / t.count / pieces[0] for t in loss.terms.values()]).sum()

    monkeypatch.setattr(Experience, "microbatches", counted)
    monkeypatch.setattr(learner, "scaled_total", mean_of_means)
    with noticed("token_budget"):
        checks.token_budget(files, tmp_path, "ppo")


def test_scores_put_back_in_another_order_are_noticed(files, tmp_path, monkeypatch):
    """The judge looks at its micro-batches from the last to the first."""
    real = LocalJudge._parts
    monkeypatch.setattr(LocalJudge, "_parts", lambda self, rows: reversed(list(real(self, rows))))
    with noticed("token_budget"):
        checks.token_budget(files, tmp_path, "ppo")


@pytest.mark.parametrize("stage", ["ppo", "rloo"])
def test_advantages_of_other_rows_are_noticed(files, tmp_path, monkeypatch, stage):
    """Rows are chosen, their advantages stay where they were."""
    real = Experience.select

    def misplaced(self, sequences):
        chosen = real(self, sequences)
        return replace(chosen, advantages=self.advantages[: len(chosen.advantages)])

    monkeypatch.setattr(Experience, "select", misplaced)
    with noticed("the order of rows"):
        checks.row_order(files, tmp_path, stage)


def test_pairs_that_swap_their_answers_are_noticed(files, tmp_path, monkeypatch):
    """A reversed batch turns the chosen answer into the rejected one."""

    def swapped(self, pairs):
        chosen = torch.as_tensor(pairs, dtype=torch.int64)
        sequences = torch.stack([2 * chosen, 2 * chosen + 1], dim=1).flatten()
        sequences = sequences if chosen.tolist() == sorted(chosen.tolist()) else sequences.flip(0)
        return Preferences(self.rows.select(sequences))

    monkeypatch.setattr(Preferences, "select", swapped)
    with noticed("the order of rows"):
        checks.row_order(files, tmp_path, "rm")


def test_rows_that_see_each_other_are_noticed(files, tmp_path, monkeypatch):
    """One causal row of all sequences. The probe of every network that is loaded would refuse it first."""
    monkeypatch.setattr(load, "probed", lambda network, where: network)
    monkeypatch.setattr(packed_forward, "PackedLayout", lambda offsets: PackedLayout(offsets[[0, -1]]))
    with noticed("packing"):
        checks.packing(files, tmp_path, "ppo")


def test_positions_that_run_on_from_row_to_row_are_noticed(tmp_path, monkeypatch):
    """Learned positions tell; rotary ones are relative, so to them it is no error."""
    files = tiny_files(tmp_path, tiny_gpt2(tmp_path / "gpt2"))
    real = packed_forward.network_states

    def running_on(network, rows):
        if not network.family.packed:
            return real(network, rows)
        return network.trunk(
            input_ids=rows.tokens[None],
            position_ids=torch.arange(rows.n_tokens)[None] % network.context_length,
            layout=PackedLayout(rows.sequence_offsets),
            use_cache=False,
        ).last_hidden_state[0]

    monkeypatch.setattr(packed_forward, "network_states", running_on)
    with noticed("packing"):
        checks.packing(files, tmp_path, "sft")


@pytest.mark.parametrize(
    ("stage", "critic", "wrong"),
    [
        ("ppo", "shared", "reference"),
        ("ppo", "separate", "critic"),
        ("ppo", "shared", "reward"),
        ("rloo", None, "reference"),
    ],
)
def test_an_adapter_that_is_not_switched_is_noticed(files, tmp_path, monkeypatch, stage, critic, wrong):
    """The role named reads through the policy's adapter instead of its own, or of none. (DPO asks its reference once,
    before the policy has moved, so there it would be no error.)"""
    real = Network.using
    meant = None if wrong == "reference" else wrong

    def stuck(self, adapter):
        return real(self, "policy" if adapter == meant and "policy" in self.adapters else adapter)

    reward = reward_adapter(files, tmp_path / "reward")
    monkeypatch.setattr(Network, "using", stuck)
    with noticed("sharing a backbone"):
        checks.shared_backbone(files, tmp_path, stage, reward, critic)


@pytest.mark.parametrize("stage", ["ppo", "rloo"])
def test_old_logprobs_that_are_taken_again_between_epochs_are_noticed(files, tmp_path, stage):
    """The ratio would be 1 at the start of each epoch, and nothing would hold the second one near the sampler."""

    def refreshed(built):
        batch = batch_of(built)
        updated(built, batch)
        with torch.no_grad():
            now = PolicyObjective(built.run.algorithm, built.roles).forward(batch)
        return updated(built, replace(batch, old_logprobs=now.logprobs))

    with noticed("an update for each epoch"):
        checks.epochs_apart(files, tmp_path, stage, refreshed)


def test_moments_that_are_fresh_after_a_resume_are_noticed(tmp_path: Path, monkeypatch):
    files = tiny_files(tmp_path)
    whole = run_quietly("rloo", tiny_config("rloo", files, tmp_path / "whole", steps=STEPS))
    monkeypatch.setattr(NamedAdamW, "load_state_dict", lambda self, state: None)
    halves = interrupted_and_resumed("rloo", tiny_config("rloo", files, tmp_path / "halves", steps=STEPS))
    assert differing(whole.folder, halves.folder)
