"""What does each form of the KL teach in expectation: the true KL, the other direction, or nothing?

A policy over few tokens, so the expectation over its samples is a sum: every token is an action, weighted by π.
Gradients go to the logits, through the log-probs at a temperature T. Worked by hand, with d = log π − log π_ref:

    KL(π ‖ ref) = Σ π d          d/dz_v = π_v (d_v − KL) / T
    KL(ref ‖ π)                  d/dz_v = (π_v − ref_v) / T
    H = −Σ π log π               d/dz_v = −π_v (log π_v + H) / T
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.tensors import f64
from tightrope.maths.kl import k1, k2, k3, ratio_k3
from tightrope.maths.logprobs import logprobs_and_entropy
from tightrope.maths.policy_losses import ppo_clip

LOGITS, REF_LOGITS = [0.7, -0.4, 0.1, -1.2, 0.9], [0.2, 0.3, -0.6, -0.5, 0.4]
TEMPERATURES = [0.5, 1.0, 2.0]


def softmax(logits: list[float], temperature: float) -> list[float]:
    weights = [math.exp(x / temperature) for x in logits]
    return [w / sum(weights) for w in weights]


def true_kl(p: list[float], q: list[float], temperature: float) -> list[float]:
    d = [math.log(a / b) for a, b in zip(p, q, strict=True)]
    kl = sum(a * x for a, x in zip(p, d, strict=True))
    return [a * (x - kl) / temperature for a, x in zip(p, d, strict=True)]


def other_direction(p: list[float], q: list[float], temperature: float) -> list[float]:
    return [(a - b) / temperature for a, b in zip(p, q, strict=True)]


def nothing(p: list[float], q: list[float], temperature: float) -> list[float]:
    return [0.0] * len(p)


def reinforced(policy: Tensor, ref: Tensor, old: Tensor) -> Tensor:
    """k1 in the reward: what PPO does at the first minibatch, with advantage −k1."""
    return ppo_clip(policy, old, -k1(old, ref), 0.2, 0.2).losses


FORMS = {
    "k1 in the reward": (reinforced, true_kl),
    "k1 as a loss": (lambda policy, ref, old: k1(policy, ref), nothing),
    "k2 as a loss": (lambda policy, ref, old: k2(policy, ref), true_kl),
    "k3 as a loss": (lambda policy, ref, old: k3(policy, ref), other_direction),
    "ratio x k3 as a loss": (lambda policy, ref, old: ratio_k3(policy, ref, old), true_kl),
}


def all_tokens(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    n = len(logits)
    return logprobs_and_entropy(logits.expand(n, n), torch.arange(n), temperature)


def gradient(objective: Tensor, logits: Tensor) -> list[float]:
    return torch.autograd.grad(objective, logits)[0].tolist()


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("form", FORMS)
def test_what_each_form_of_the_kl_teaches(form, temperature) -> None:
    losses, expected = FORMS[form]
    logits = f64(*LOGITS).requires_grad_()
    policy, _ = all_tokens(logits, temperature)
    ref, _ = all_tokens(f64(*REF_LOGITS), temperature)
    old = policy.detach()
    found = gradient((old.exp() * losses(policy, ref, old)).sum(), logits)
    p, q = softmax(LOGITS, temperature), softmax(REF_LOGITS, temperature)
    assert found == pytest.approx(expected(p, q, temperature), abs=1e-9)


def test_the_three_answers_are_different() -> None:
    """Else the test above could not tell one form from another."""
    p, q = softmax(LOGITS, 1.0), softmax(REF_LOGITS, 1.0)
    answers = [answer(p, q, 1.0) for answer in (true_kl, other_direction, nothing)]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert max(abs(a - b) for a, b in zip(answers[i], answers[j], strict=True)) > 0.04


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_entropy_pushes_towards_even_odds(temperature) -> None:
    """Descending −H makes likely tokens less likely; the temperature divides the slope and is inside the softmax."""
    logits = f64(*LOGITS).requires_grad_()
    _, entropy = all_tokens(logits, temperature)
    p = softmax(LOGITS, temperature)
    h = -sum(x * math.log(x) for x in p)
    found = gradient(entropy[0], logits)
    assert found == pytest.approx([-x * (math.log(x) + h) / temperature for x in p], abs=1e-9)
    likeliest, rarest = p.index(max(p)), p.index(min(p))
    assert found[likeliest] < 0 < found[rarest]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("advantage", [1.0, -2.0])
def test_the_policy_gradient_moves_the_chosen_token_by_its_advantage(temperature, advantage) -> None:
    """−A d log π(a) / dz_v = −A ([v = a] − π_v) / T at ratio 1."""
    logits = f64(*LOGITS).requires_grad_()
    token = 2
    logprob, _ = logprobs_and_entropy(logits[None], torch.tensor([token]), temperature)
    found = gradient(ppo_clip(logprob, logprob.detach(), f64(advantage), 0.2, 0.2).losses.sum(), logits)
    p = softmax(LOGITS, temperature)
    expected = [-advantage * ((1.0 if v == token else 0.0) - x) / temperature for v, x in enumerate(p)]
    assert found == pytest.approx(expected, abs=1e-9)
