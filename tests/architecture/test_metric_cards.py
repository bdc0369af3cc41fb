"""Has every metric that a run can tell a card, and every card a metric? The numbers are really produced here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tightrope.algorithms import dpo, reward_modelling, sft
from tightrope.algorithms.options import DPOOptions, PPOOptions, RewardModelOptions, RLOOOptions
from tightrope.algorithms.ppo import PPO
from tightrope.algorithms.rloo import RLOO
from tightrope.config.schedule import at_start
from tightrope.config.schema import GuardianSection, KLSection, PTXSection, RewardSection
from tightrope.guardian.guardian import StepGuardian
from tightrope.guardian.metric_cards import CARDS
from tightrope.records import StepRecord
from tightrope.scoring.judge import capped
from tightrope.scoring.normaliser import RewardNormaliser, RunningScale
from tightrope.scoring.shaping import shape_rewards
from tightrope.training import mixing
from tightrope.training.describe import rollout_metrics, score_metrics, update_metrics
from tightrope.types import (
    Demonstrations,
    Loss,
    PolicyOutput,
    Preferences,
    Prompt,
    Rollout,
    Scores,
    TokenRows,
    UpdateReport,
)

ROOT = Path(__file__).parents[2]
ROWS = TokenRows.of([([1], [2, 3]), ([1], [2, 4]), ([5], [6]), ([5], [7, 8])])
LOGPROBS = -torch.arange(1.0, 8.0)
# read from the code of the loop, the learner, the probe and the records: written where no tensor is at hand
ELSEWHERE = {"held_out", "rows", "batch_rows", "beta", "kl_target", "learning_rate_factor", "stopped_in_epoch"} | {
    "grad_share_ptx",
    "grad_cosine_ptx",
    "text_perplexity",
}


def rollout() -> Rollout:
    prompts = tuple(Prompt(i, (1,), "text", {}) for i in range(2))
    return Rollout(
        rows=ROWS,
        behaviour_logprobs=LOGPROBS,
        finish_reason=("stop", "length", "stop", "stop"),
        responses=("a b c d", "a b c", "a", "b c d e"),
        prompts=prompts,
        prompt_index=torch.tensor([0, 0, 1, 1]),
        sample_index=torch.tensor([0, 1, 0, 1]),
        policy_version=0,
        temperature=1.0,
    )


def scores() -> Scores:
    section = RewardSection.model_validate_json(
        '{"function": "m:f", "length_cost": 0.1, "missing_eos": {"value": 1.0}, "clip": 5.0,'
        ' "length": {"kind": "stop_properly"}}'
    )
    raw = torch.tensor([1.0, 2.0, 3.0, 5.0])
    reward, parts = shape_rewards(
        raw, ROWS.action_counts, rollout().stopped, RewardNormaliser(), section, RunningScale()
    )
    reward, parts["gate"] = capped(reward, torch.full_like(reward, 0.5))
    return Scores(reward, parts, ref_logprobs=LOGPROBS - 0.1, values=torch.zeros(7))


def learned(loss: Loss, groups: tuple[str, ...]) -> set[str]:
    """What the learner makes of a loss: its statistics, the mean of each term, a gradient norm for each group."""
    return set(loss.stats) | {f"loss_{name}" for name in loss.terms} | {f"grad_norm_{group}" for group in groups}


def online_names() -> set[str]:
    names = set(rollout_metrics(rollout())) | set(score_metrics(rollout(), scores()))
    every = PPO(PPOOptions(dual_clip=3.0, entropy_coef=0.1), lambda: 0.1, KLSection(placement="loss", estimator="k2"))
    for algorithm in (every, RLOO(RLOOOptions(), lambda: 0.1)):
        experience = algorithm.credit(rollout(), scores())
        output = PolicyOutput(LOGPROBS.clone().requires_grad_(), torch.ones(7), torch.zeros(7))
        names |= set(experience.stats) | learned(algorithm.loss(output, experience), ("policy", "critic"))
    return names


def both(step: int) -> tuple[str, ...]:
    return ("policy", "critic")


def offline_names(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    def logprobs(role, rows, temperature) -> PolicyOutput:
        return PolicyOutput(LOGPROBS[: rows.n_actions])

    monkeypatch.setattr(sft, "token_logprobs", logprobs)
    monkeypatch.setattr(dpo, "token_logprobs", logprobs)
    monkeypatch.setattr(mixing, "token_logprobs", logprobs)
    monkeypatch.setattr(reward_modelling, "sequence_scores", lambda role, rows: torch.arange(4.0))
    mix = mixing.PretrainingMix(PTXSection(corpus="builtin"), None, None, {}, at_start, both)  # type: ignore[arg-type]
    pairs = Preferences(ROWS, torch.zeros(4))
    return (
        learned(sft.SFT(None).loss(Demonstrations(ROWS)), ("policy",))  # type: ignore[arg-type]
        | learned(mix.loss(Demonstrations(ROWS)), ())
        | learned(dpo.DPO(None, DPOOptions()).loss(pairs), ("policy",))  # type: ignore[arg-type]
        | learned(reward_modelling.RewardModelling(None, RewardModelOptions()).loss(pairs), ("reward",))  # type: ignore[arg-type]
    )


def every_name(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    refused = UpdateReport({}, 0, skipped_steps=1, nonfinite=("step 0: policy loss",))
    return online_names() | offline_names(monkeypatch) | set(update_metrics(refused)) | ELSEWHERE


def test_every_metric_has_a_card(monkeypatch) -> None:
    assert every_name(monkeypatch) - set(CARDS) == set()


def test_every_card_has_a_metric(monkeypatch) -> None:
    assert set(CARDS) - every_name(monkeypatch) == set()


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_a_name_written_elsewhere_is_still_in_the_code(name) -> None:
    texts = (path.read_text() for path in (ROOT / "src/tightrope/training").glob("*.py"))
    assert any(f'"{name}"' in text for text in texts)


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_a_card_is_complete(card) -> None:
    assert all((card.unit, card.formula, card.healthy, card.what_to_do))
    assert re.fullmatch(r"[a-z][a-z0-9_]*", card.name)


def test_the_guardian_speaks_of_metrics_that_have_cards() -> None:
    """Evidence of its findings is named like the metrics, besides limits."""
    record = StepRecord("ppo", 3, 0, {"kl_seq": 1000.0, "nonfinite": 1.0}, {"kl_target": 5.0})
    findings, _ = StepGuardian(GuardianSection()).review(record)
    assert {finding.detector for finding in findings} == {"nonfinite", "kl_limit"}
    evidence = {name for finding in findings for name in finding.evidence}
    assert {name for name in evidence if not name.endswith("_limit")} <= set(CARDS)
