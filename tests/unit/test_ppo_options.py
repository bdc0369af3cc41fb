"""Does each option of PPO, the reward, the KL and the rollout change what it should? (Runs: test_ppo_option_runs.)"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.rollouts import engine_of, prompts_of
from tests.runs import Files, built_run, run_quietly, tiny_config, tiny_files
from tests.unit.test_training_algorithms import BETA, REF, ROWS, SAMPLED, output, ppo, rollout, scores
from tightrope.algorithms.options import PPOOptions, RLOOOptions, warnings_of
from tightrope.algorithms.ppo import PPO
from tightrope.algorithms.rloo import RLOO
from tightrope.config.schedule import Schedule
from tightrope.config.schema import KLSection, LengthSection, RewardSection
from tightrope.maths.advantages import gae, whiten
from tightrope.maths.policy_losses import ppo_clip
from tightrope.scoring.normaliser import RewardNormaliser, RunningScale
from tightrope.scoring.shaping import shape_rewards
from tightrope.storage.metrics import MetricStore
from tightrope.training.learner import scaled_total
from tightrope.types import PolicyOutput, SampleKey, Sampling

VALUES = torch.linspace(-1, 1, 8)
AGGREGATIONS = ("token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "token_sum_const")


def test_the_critic_may_have_a_lambda_of_its_own() -> None:
    both = ppo(lam=0.5, critic_lam=1.0, whiten_advantages=False).credit(rollout(), scores(values=VALUES))
    low, _ = gae(both.rewards, VALUES, ROWS.action_offsets, 1.0, 0.5)
    _, high = gae(both.rewards, VALUES, ROWS.action_offsets, 1.0, 1.0)
    assert torch.equal(both.advantages, low) and both.returns is not None and torch.equal(both.returns, high)


def test_lambda_grows_with_the_length_of_the_response() -> None:
    long = ppo(lam_alpha=0.5, whiten_advantages=False).credit(rollout(), scores(values=VALUES))
    lam = torch.tensor([0.0, 1 / 3, 0.0, 0.0]).double()
    torch.testing.assert_close(long.advantages, gae(long.rewards, VALUES, ROWS.action_offsets, 1.0, lam)[0])


def test_the_value_after_a_cut_response_is_part_of_its_return() -> None:
    ends = torch.tensor([0.0, 5.0, 0.0, 0.0])
    plain, cut = (ppo(lam=1.0).credit(rollout(), scores(values=VALUES, end_values=e)) for e in (None, ends))
    assert plain.returns is not None and cut.returns is not None
    assert (cut.returns - plain.returns).tolist() == pytest.approx([0, 0, 5, 5, 5, 0, 0, 0], abs=1e-6)


def test_advantages_and_token_rewards_may_be_bounded_and_whitened() -> None:
    clipped = ppo(advantage_clip=0.5).credit(rollout(), scores()).advantages
    plain = ppo().credit(rollout(), scores())
    assert torch.equal(clipped, plain.advantages.clamp(-0.5, 0.5)) and float(clipped.abs().max()) == 0.5
    white = ppo(whiten_rewards=True).credit(rollout(), scores()).rewards
    assert torch.equal(white, whiten(plain.rewards, shift_mean=False))
    assert float(white.mean()) == pytest.approx(float(plain.rewards.mean()), abs=1e-6)


def test_the_upper_side_of_the_clip_may_be_wider() -> None:
    experience = ppo(clip_range_high=0.5).credit(rollout(), scores())
    moved = SAMPLED + 0.3  # ratio 1.35
    assert ppo(clip_range_high=0.5).loss(output(moved, VALUES), experience).stats["clip_fraction"][0] == 0
    assert ppo().loss(output(moved, VALUES), experience).stats["clip_fraction"][0] > 0


def test_the_dual_clip_bounds_bad_actions_only_and_takes_their_gradient() -> None:
    new = torch.tensor([2.0, 2.0, 0.5]).requires_grad_()
    loss = ppo_clip(new, torch.zeros(3), torch.tensor([-1.0, 1.0, -1.0]), 0.2, 0.2, 3.0)
    loss.losses.sum().backward()
    assert loss.losses.tolist() == pytest.approx([3.0, -1.2, 1.6487213])
    assert loss.dual_clipped.tolist() == [True, False, False]
    assert new.grad is not None and new.grad.tolist() == pytest.approx([0.0, 0.0, 1.6487213])
    with pytest.raises(ValueError, match="dual_clip"):
        ppo_clip(new, torch.zeros(3), torch.ones(3), 0.2, 0.2, 1.0)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_micro_batches_change_no_aggregation(aggregation) -> None:
    """The whole at once and one response at a time have the same gradient, entropy and KL terms included."""
    kl = KLSection(placement="loss", estimator="k2")
    algorithm = PPO(PPOOptions(loss_aggregation=aggregation, entropy_coef=0.1), lambda: BETA, kl, max_tokens=6)
    experience = algorithm.credit(rollout(), scores())
    counts = algorithm.counts(experience)

    def gradient(groups: list[list[int]]) -> torch.Tensor:
        new = (SAMPLED + torch.linspace(-0.4, 0.4, 8)).requires_grad_()
        for group in groups:
            spans = [torch.arange(int(ROWS.action_offsets[i]), int(ROWS.action_offsets[i + 1])) for i in group]
            mine = torch.cat(spans)
            found = PolicyOutput(new[mine], -new[mine].exp() * new[mine], torch.zeros(len(mine)))
            scaled_total(algorithm.loss(found, experience.select(group)), counts).backward()
        assert new.grad is not None
        return new.grad

    whole = gradient([[0, 1, 2, 3]])
    assert float(whole.abs().sum()) > 0
    torch.testing.assert_close(gradient([[0], [1], [2], [3]]), whole, rtol=0, atol=1e-6)


def test_entropy_is_paid_for_and_kl_may_stand_in_the_loss() -> None:
    kl = KLSection(placement="loss", estimator="k2")
    algorithm = PPO(PPOOptions(entropy_coef=0.25), lambda: BETA, kl)
    experience = algorithm.credit(rollout(), scores())
    assert experience.rewards.tolist() == [0, 1, 0, 0, 2, 0, 0, 3]  # no KL in the reward then
    terms = algorithm.loss(output(SAMPLED.clone(), VALUES), experience).terms
    assert float(terms["entropy"].sum) == pytest.approx(-0.5 * 8) and terms["entropy"].weight == 0.25
    assert (
        float(terms["kl"].sum) == pytest.approx(float((SAMPLED - REF).square().sum() / 2))
        and terms["kl"].weight == BETA
    )


def test_a_nat_of_a_response_costs_rloo_beta_in_the_loss_as_in_the_reward() -> None:
    """Averaged over tokens the KL would weigh less by the length of a response: 0.39 of a known optimum, not 0.9."""
    algorithm = RLOO(RLOOOptions(), lambda: BETA, KLSection(placement="loss", estimator="k2"))
    experience, logprobs = algorithm.credit(rollout(), scores()), SAMPLED.clone().requires_grad_()
    term = algorithm.loss(output(logprobs, VALUES), experience).terms["kl"]
    (term.weight * term.sum / algorithm.counts(experience)["kl"]).backward()
    assert term.count == len(experience) == 4
    torch.testing.assert_close(logprobs.grad, BETA * (SAMPLED - REF) / 4)


def test_a_value_clip_in_units_of_the_returns() -> None:
    experience = ppo().credit(rollout(), scores(values=VALUES))
    unit = experience.stats["return_std"]
    relative = ppo(value_clip=0.1, value_clip_unit="return_std").loss(output(SAMPLED, VALUES + 1), experience)
    absolute = ppo(value_clip=0.1 * unit).loss(output(SAMPLED, VALUES + 1), experience)
    assert float(relative.terms["value"].sum) == pytest.approx(float(absolute.terms["value"].sum))
    assert unit != pytest.approx(1.0)


def test_coefficients_follow_the_step() -> None:
    step = [0]
    options = PPOOptions(value_coef=Schedule(first=0.4, last=0.2), clip_range=Schedule(first=0.5, last=0.1))

    def now(coefficient: float | Schedule) -> float:
        return coefficient if isinstance(coefficient, float) else (coefficient.first, coefficient.last)[step[0]]

    algorithm = PPO(options, lambda: BETA, now=now)
    experience = algorithm.credit(rollout(), scores())
    clipped = []
    for step[0] in (0, 1):
        loss = algorithm.loss(output(SAMPLED + 0.3, VALUES), experience)
        clipped.append(loss.stats["clip_fraction"][0])
        assert loss.terms["value"].weight == (0.4, 0.2)[step[0]]
    assert clipped[0] == 0 < clipped[1]


def test_rewards_are_scaled_then_clipped_then_charged() -> None:
    scale = RunningScale()
    scale.see(torch.tensor([1.0, 5.0]))
    scale.see(torch.tensor([9.0]))
    assert scale.seen.std == pytest.approx((32 / 3) ** 0.5)
    section = RewardSection(function="m:f", normalise="off", clip=1.0, length_cost=0.1)
    reward, parts = shape_rewards(
        torch.tensor([9.0, 1.0]), torch.tensor([2, 3]), torch.tensor([True, True]), RewardNormaliser(), section, scale
    )
    std = (32 / 3) ** 0.5
    assert parts["scaled"].tolist() == pytest.approx([9 / std, 1 / std])
    assert reward.tolist() == pytest.approx([1.0 - 0.2, 1 / std - 0.3])
    torch.testing.assert_close(sum(parts[n] for n in ("scaled", "clip", "length_cost", "missing_eos")), reward)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        ({"kind": "over_budget", "cost": 0.5, "budget": 3}, [1.0, 0.0, -1.0]),
        ({"kind": "soft_overlong", "cost": 1.0, "budget": 6, "buffer": 4}, [1.0, 0.25, 0.0]),
        ({"kind": "stop_properly", "cost": 0.5}, [1.0, 1.0, 0.5]),
    ],
)
def test_each_penalty_on_length(length, expected) -> None:
    section = RewardSection(
        function="m:f",
        normalise="off",
        missing_eos={"mode": "off"},
        length=LengthSection(**length),  # type: ignore[arg-type]
    )
    reward, parts = shape_rewards(
        torch.ones(3), torch.tensor([2, 5, 7]), torch.tensor([True, True, False]), RewardNormaliser(), section
    )
    assert reward.tolist() == pytest.approx(expected) and "length" in parts


@pytest.mark.parametrize("after", [0, 2])
def test_a_response_ends_at_a_token_from_a_position_on(tmp_path: Path, after: int) -> None:
    files = tiny_files(tmp_path)
    engine, prompts = engine_of(files.model), prompts_of(files.model)
    key, ends = SampleKey(0, 0, 0), (1,)
    free = engine.generate(prompts, 2, Sampling(1.0, 8, ends), key)
    stop = int(free.rows.actions(0)[0])
    cut = engine.generate(prompts, 2, Sampling(1.0, 8, ends, (stop,), after), key)
    seen = 0
    for i in range(free.n_sequences):
        ids = free.rows.actions(i).tolist()
        hits = [at for at, token in enumerate(ids) if token == stop and at >= after]
        assert cut.rows.actions(i).tolist() == (ids[: hits[0] + 1] if hits else ids)
        if hits:
            seen += 1
            assert cut.finish_reason[i] == "stop" and cut.responses[i].split()
            assert len(cut.responses[i].split()) >= 1
    assert seen >= (1 if after == 0 else 0)


def changed_config(files: Files, folder: Path, changes, steps: int):
    given = {section: dict(values) for section, values in changes.items()}
    given["ppo"] = {"epochs": 2, "minibatches": 2, "value_warmup_steps": 0} | given.get("ppo", {})
    return tiny_config("ppo", files, folder, steps=steps, changes=given)


def test_a_cosine_holds_the_learning_rate_longer(tmp_path: Path) -> None:
    changes = {"optimizer": {"learning_rate": 1e-3, "schedule": "cosine"}}
    run = run_quietly("ppo", changed_config(tiny_files(tmp_path), tmp_path / "run", changes, 3))
    assert run.latest["ppo"].controls["learning_rate_factor"] == pytest.approx(0.25)  # linear: 1/3


def test_scheduled_values_stand_in_the_record(tmp_path: Path) -> None:
    changes = {
        "ppo": {"clip_range": {"from": 0.01, "to": 0.005}},
        "kl": {"mode": "fixed", "beta": {"from": 1.0, "to": 0.0}},
    }
    run = run_quietly("ppo", changed_config(tiny_files(tmp_path), tmp_path / "run", changes, 3))
    store = MetricStore(run.folder / "run.db", read_only=True)
    controls = [row.controls for row in store.rows() if row.stage == "ppo"]
    store.close()
    assert [c["ppo.clip_range"] for c in controls] == pytest.approx([0.01, 0.0075, 0.005])
    assert [c["beta"] for c in controls] == pytest.approx([1.0, 0.5, 0.0])


def test_beta_stands_still_while_the_critic_has_its_head_start(tmp_path: Path) -> None:
    """KL is 0 because nothing moves the policy: a controller that believed it would give the rope away."""
    changes = {"ppo": {"value_warmup_steps": 3}, "kl": {"beta": 0.1, "target": 2.0}}
    run = run_quietly("ppo", changed_config(tiny_files(tmp_path), tmp_path / "run", changes, 5))
    store = MetricStore(run.folder / "run.db", read_only=True)
    betas = [row.controls["beta"] for row in store.rows() if row.stage == "ppo"]
    store.close()
    assert betas[:4] == [0.1] * 4 and betas[4] < 0.1


def test_b42_an_entropy_bonus_alone_raises_entropy(tmp_path: Path) -> None:
    """No advantage, no KL: over 20 updates of one batch only the bonus moves the policy, and entropy only rises."""
    changes = {"ppo": {"entropy_coef": 1.0, "epochs": 1, "minibatches": 1, "target_kl": None}}
    config = changed_config(tiny_files(tmp_path), tmp_path / "run", changes, 20)
    built = built_run(config, tmp_path / "built")
    built.prepare()
    run = built.run
    batch = run.prompts.next_batch()  # type: ignore[union-attr]
    drawn = run.engine.generate(batch, 2, run.sampling, run.key())  # type: ignore[union-attr]
    experience = run.algorithm.credit(drawn, run.judge.score(drawn))  # type: ignore[union-attr]
    experience.advantages.zero_()
    seen = [run.learner.update(experience).metrics["entropy_tok"] for _ in range(20)]
    assert all(later > earlier for earlier, later in pairwise(seen))


@pytest.mark.parametrize("estimator", ["k2", "k3", "ratio_k3"])
def test_a_kl_loss_says_what_its_gradient_is(tmp_path: Path, estimator: str) -> None:
    config = changed_config(
        tiny_files(tmp_path), tmp_path / "r", {"kl": {"placement": "loss", "estimator": estimator}}, 2
    )
    assert any(f"kl.estimator: {estimator}" in warning for warning in warnings_of(config))


def test_multiplying_a_normalised_reward_is_told(tmp_path: Path) -> None:
    files = tiny_files(tmp_path)

    def told(normalise: str) -> bool:
        reward = {"function": "m:f", "normalise": normalise, "length": {"kind": "stop_properly"}}
        config = tiny_config("ppo", files, tmp_path / "r", changes={"reward": reward})
        return any("stop_properly multiplies" in warning for warning in warnings_of(config))

    assert told("samples") and not told("off")
