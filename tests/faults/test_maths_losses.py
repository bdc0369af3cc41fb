"""Faults of losses and counts: clips, KL gradients, global counts, preference pairs. One test an entry."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from tests.tensors import f64
from tightrope.maths.advantages import token_rewards
from tightrope.maths.diagnostics import pair_outcomes
from tightrope.maths.kl import k1, k2, k3
from tightrope.maths.logprobs import chunked_logprobs, logprobs_and_entropy
from tightrope.maths.policy_losses import ppo_clip
from tightrope.maths.preference_losses import bradley_terry, dpo
from tightrope.maths.ragged import segment_sum
from tightrope.maths.value_losses import clipped_value_loss
from tightrope.training.learner import scaled_total
from tightrope.types import Loss, LossTerm


def test_b24_margin_does_not_broadcast() -> None:
    """Margin broadcasting [B,1] -> [B,B]."""
    chosen, rejected, margin = f64(1, 2), f64(0, 2), f64(0.1, 1.0)
    assert float(bradley_terry(chosen, rejected, margin).mean()) == pytest.approx(0.8272077811251553, abs=1e-12)
    assert torch.equal(bradley_terry(chosen, rejected, f64(0, 0)), bradley_terry(chosen, rejected))
    with pytest.raises(ValueError, match=r"margin \[2, 1\]"):
        bradley_terry(chosen, rejected, margin[:, None])


def test_b25_ties_and_unstable_logsigmoid() -> None:
    """Ties and unstable logsigmoid."""
    losses = bradley_terry(f64(-2, 0, 0.5, 1, 2, 50, -1000), torch.zeros(7).double())
    expected = [2.126928011043, math.log(2), 0.47407698418, 0.313261687518, 0.126928011043, 1.9287e-22, 1000.0]
    assert losses.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-30)
    assert losses[:5].tolist() == pytest.approx(expected[:5], abs=1e-10)
    assert pair_outcomes(f64(1, 1), f64(1, 0)).accuracy == 0.75


def test_b26_identical_answers_teach_nothing() -> None:
    """Identical chosen==rejected rows (often only after truncation)."""
    weight = f64(0.7).requires_grad_()
    loss = bradley_terry(weight * 2.0, weight * 2.0)
    (gradient,) = torch.autograd.grad(loss.sum(), weight)
    assert loss.item() == pytest.approx(math.log(2), abs=1e-12)
    assert gradient.item() == 0.0


def test_b27_reward_losses_are_float32_or_wider() -> None:
    """RM fp16 NaN."""
    scores = torch.tensor([40000.0, -40000.0], dtype=torch.float16)
    losses = bradley_terry(scores, -scores)
    assert losses.dtype == torch.float32
    assert losses.tolist() == [0.0, 80000.0]


def test_b28_kl_of_the_distribution_that_was_sampled() -> None:
    """Negative KL because sampling was altered (top_k/top_p/temperature/min_length/repetition_penalty/forced eos)."""
    policy, reference = f64(0.6, 0.3, 0.1), f64(0.7, 0.2, 0.1)
    estimate = k1(policy.log(), reference.log())
    assert float((policy * estimate).sum()) == pytest.approx(0.029149, abs=1e-6)
    assert float(estimate[0]) == pytest.approx(-0.154151, abs=1e-6)  # what greedy sampling would show


def test_b29_temperature_in_the_logprobs() -> None:
    """Temperature used to sample but not in log-probs."""
    logits, tokens = f64(2, 1, 0).expand(3, 3), torch.arange(3)
    expected = [-0.2601184026, -1.6886898312, -3.1172612598]
    for logprobs, _ in (
        logprobs_and_entropy(logits, tokens, 0.7),
        chunked_logprobs(logits, torch.eye(3).double(), None, tokens, 0.7),
    ):
        assert logprobs.tolist() == pytest.approx(expected, abs=1e-9)
    forgotten, _ = logprobs_and_entropy(logits, tokens, 1.0)
    ratio = (forgotten - f64(*expected)).exp()
    assert ratio.tolist()[0] == pytest.approx(0.86287, abs=1e-5)
    assert ratio.tolist()[2] == pytest.approx(2.03329, abs=1e-5)


def test_b30_gradient_of_each_kl_estimator() -> None:
    """KL estimator correct in value, wrong in gradient."""
    p, q = f64(0.7, 0.2, 0.1), f64(0.5, 0.3, 0.2)
    logits = p.log().requires_grad_()
    policy, reference = logits.log_softmax(0), q.log()
    ratio = (policy - policy.detach()).exp()

    def slope(per_action: torch.Tensor) -> list[float]:
        return torch.autograd.grad((p * per_action).sum(), logits, retain_graph=True)[0].tolist()

    for estimator, value in ((k1, 0.0851228259572216), (k2, 0.0800875942), (k3, 0.0851228259572216)):
        assert (p * estimator(policy, reference)).sum().item() == pytest.approx(value, abs=1e-9)
    assert (q * k1(reference, policy)).sum().item() == pytest.approx(0.0920328502, abs=1e-9)
    true = [0.1759445875, -0.0981175868, -0.0778270007]
    assert slope(k1(policy, reference)) == pytest.approx([0, 0, 0], abs=1e-9)
    assert slope(k2(policy, reference)) == pytest.approx(true, abs=1e-9)
    assert slope(k3(policy, reference)) == pytest.approx([0.2, -0.1, -0.1], abs=1e-9)
    assert slope(ratio * k1(policy, reference)) == pytest.approx(true, abs=1e-9)
    assert slope(ratio * k3(policy, reference)) == pytest.approx(true, abs=1e-9)


CLIPS = [(0.5, 1, -0.5), (0.5, -1, 0.8), (0.9, 1, -0.9), (0.9, -1, 0.9), (1.5, 1, -1.2), (1.5, -1, 1.5)]


@pytest.mark.parametrize(("ratio", "advantage", "loss"), [*CLIPS, (3.0, 1, -1.2), (3.0, -1, 3.0)])
def test_b36_clip_table(ratio, advantage, loss) -> None:
    """Clip table."""
    found = ppo_clip(f64(ratio).log(), f64(0.0), f64(advantage), 0.2, 0.2).losses
    assert found.item() == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize(
    ("value", "old", "target", "loss"), [(1, 5, 10, 40.5), (5, 1, 10, 38.72), (0.9, 0.5, 1, 0.045)]
)
def test_b37_value_clip_is_pessimistic_and_around_the_old_value(value, old, target, loss) -> None:
    """Value clip min instead of max, or clip around the new value."""
    found = clipped_value_loss(f64(value), f64(old), f64(target), 0.2).losses
    assert found.item() == pytest.approx(loss, abs=1e-12)


def accumulated(pieces: list[tuple[float, int]], global_count: int) -> float:
    terms = [Loss({"policy": LossTerm(torch.tensor(total), count)}) for total, count in pieces]
    return sum(float(scaled_total(loss, {"policy": global_count})) for loss in terms)


def test_b39_mean_of_means_under_accumulation() -> None:
    """Mean of means under gradient accumulation / ranks."""
    assert accumulated([(8.0, 8), (6.0, 2)], 10) == pytest.approx(1.4)


def test_b40_empty_row_adds_nothing_to_the_denominator() -> None:
    """Fully-masked sample adds 1 to the denominator (clamp_min(1) per row)."""
    assert accumulated([(4.0, 4), (0.0, 0)], 4) == pytest.approx(1.0)
    assert accumulated([(0.0, 0)], 0) == 0.0


def test_b42_entropy_carries_a_gradient() -> None:
    """Entropy bonus computed but never added / detached."""
    hidden = nn.Parameter(torch.tensor([[6.0, 0.0]]))
    optimizer = torch.optim.SGD([hidden], lr=0.5)
    seen = []
    for _ in range(20):
        _, entropy = chunked_logprobs(hidden, torch.eye(2), None, torch.tensor([0]), 1.0)
        assert entropy is not None
        seen.append(float(entropy.detach()))
        optimizer.zero_grad()
        (-entropy.sum()).backward()
        optimizer.step()
    assert all(after > before for before, after in pairwise(seen))


def test_b35_dpo_starts_at_exactly_ln_2() -> None:
    """Dropout left on in policy (DPO/PPO/LoRA dropout)."""
    pairs = dpo(f64(-10.0), f64(-12.0), f64(-10.0), f64(-12.0), beta=0.1)
    assert pairs.losses.item() == 0.6931471805599453
    assert pairs.chosen_rewards.item() == pairs.rejected_rewards.item() == 0.0


@pytest.mark.parametrize(
    ("chosen", "rejected", "loss", "rewards"),
    [(-9.0, -14.0, 0.5543552445, (0.1, -0.2)), (-15.0, -30.0, 0.2410084538, (-0.5, -1.8))],
)
def test_b48_both_logprobs_may_fall_while_dpo_improves(chosen, rejected, loss, rewards) -> None:
    """Both log-probs falling."""
    pairs = dpo(f64(chosen), f64(rejected), f64(-10.0), f64(-12.0), beta=0.1)
    assert pairs.losses.item() == pytest.approx(loss, abs=1e-9)
    assert (pairs.chosen_rewards.item(), pairs.rejected_rewards.item()) == pytest.approx(rewards, abs=1e-12)


def test_b72_bf16_logprobs_and_sums() -> None:
    """Bf16 log-probs/KL noise."""
    assert float(torch.tensor(-1.234567, dtype=torch.bfloat16)) == -1.234375  # why nothing is kept in bfloat16
    small = torch.full((2048,), -0.011)
    assert float(segment_sum(small, torch.tensor([0, 2048]))) == pytest.approx(-22.528, abs=1e-5)
    make = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(4, 32_000, generator=make)).to(torch.bfloat16)
    tokens = torch.randint(32_000, (4,), generator=make)
    logprobs, entropy = logprobs_and_entropy(logits, tokens, 1.0)
    assert logprobs.dtype == entropy.dtype == torch.float32
    exact, _ = logprobs_and_entropy(logits.double(), tokens, 1.0)
    torch.testing.assert_close(logprobs.double(), exact, rtol=0, atol=1e-5)


def test_b85_invalid_pairs_do_not_contribute_ln_2() -> None:
    """Masked/over-long DPO pairs contribute ln2."""
    assert accumulated([(0.2 + 0.4, 2)], 2) == pytest.approx(0.3)


def test_b86_kl_falls_when_it_is_the_only_reward() -> None:
    """KL-in-loss with the wrong sign (KL maximised).

    Reward 0, beta 1, a policy that starts off the reference; exact expected gradient of the PPO loss.
    """
    logits = nn.Parameter(f64(2.0, 0.0, -1.0))
    reference = f64(0.0, 0.5, 0.0).log_softmax(0)
    optimizer = torch.optim.SGD([logits], lr=0.5)
    seen = []
    for _ in range(20):
        policy = logits.log_softmax(0)
        kl = k1(policy.detach(), reference)
        seen.append(float((policy.detach().exp() * kl).sum()))
        rewards = token_rewards(torch.zeros(3).double(), kl, 1.0, torch.arange(4))
        losses = ppo_clip(policy, policy.detach(), rewards, 0.2, 0.2).losses
        optimizer.zero_grad()
        (policy.detach().exp() * losses).sum().backward()
        optimizer.step()
    assert seen[0] > 0.5
    assert seen[-1] < 0.01
    assert all(after < before for before, after in pairwise(seen))


def test_b91_losses_of_bfloat16_inputs_are_float32() -> None:
    """PPO NaN only in PPO with bf16/fp16 (SFT, RM fine)."""
    x = torch.tensor([0.5], dtype=torch.bfloat16)
    assert ppo_clip(x, x.float(), x.float(), 0.2, 0.2).losses.dtype == torch.float32
    assert clipped_value_loss(x, x.float(), x.float(), 0.2).losses.dtype == torch.float32
