"""PPO on a language model, in one page of plain torch.

    python docs/walkthrough/ppo_in_one_page.py

Four networks take part: the policy writes, the reference is a frozen copy of where the policy started, the reward model
scores whole responses, and the critic guesses, at each token, what the response will have earned at its end. A step is

    1  rollout   the policy answers, and its own log-probs are kept
    2  score     reward model, reference and critic read the answers; nobody learns
    3  credit    which token earned it: token rewards, advantages, returns
    4  update    a few epochs over these answers, never far from the policy that wrote them

Here each network is a table: the next token depends on the one before it and on nothing else. A large model changes how
``logprobs_of`` and ``values_of`` are computed, and no line below them. ``tests/journeys/test_walkthrough.py`` runs the
library beside this page: every number of every step is the same.

Axes     [actions] one entry a token that the policy chose, responses back to back, nothing padded;
         response j is bounds[j] : bounds[j + 1]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

END, FILM, GOOD, BAD = range(4)  # the vocabulary; "film" is the prompt
RESPONSES, LONGEST = 64, 8
EPOCHS, LEARNING_RATE, CRITIC_FACTOR, MAX_GRAD_NORM = 4, 0.1, 5.0, 1.0
GAMMA, LAM = 1.0, 0.95
CLIP_RANGE, VALUE_CLIP, VALUE_COEF = 0.2, 0.2, 0.1
APPROX_KL_LIMIT = 0.01  # nats a token: epochs end once an update has moved the policy further
BETA, KL_TARGET = 0.1, 1.2  # reward for a nat; nats a response that the policy is let to leave its reference
GAIN, MAX_STEP, LOOKAHEAD, SMOOTHING = 0.1, 0.2, 20.0, 0.2  # how beta follows: size, limit, steps ahead, memory


@dataclass(frozen=True)
class Rollout:
    previous: Tensor  # what each action was chosen after: the token before it
    actions: Tensor
    bounds: list[int]


def start() -> tuple[Tensor, Tensor]:
    """Logits of the policy (row: token before, column: next token), and the critic's value after each token."""
    logits = [[0.0, 0.0, 0.0, 0.0], [-0.5, -2.0, 0.6, 0.9], [1.0, -1.0, 0.3, 0.0], [1.2, -1.0, 0.0, 0.4]]
    return torch.tensor(logits).double(), torch.zeros(4).double()


def logprobs_of(logits: Tensor, rollout: Rollout) -> Tensor:
    """log π(action | token before). Whatever sampled the action must be what is scored: same temperature, no top-k."""
    return logits[rollout.previous].log_softmax(-1).gather(1, rollout.actions[:, None]).squeeze(1)


def values_of(critic: Tensor, rollout: Rollout) -> Tensor:
    """V, read where the action is about to be chosen: one position before its token."""
    return critic[rollout.previous]


# 1  rollout


def generate(policy: Tensor, draw: torch.Generator) -> Rollout:
    """The end token is an action like any other; a response that does not choose it is cut."""
    previous, actions, bounds = [], [], [0]
    for _ in range(RESPONSES):
        token = FILM
        for _ in range(LONGEST):
            previous.append(token)
            token = int(torch.multinomial(policy[token].detach().softmax(-1), 1, generator=draw))
            actions.append(token)
            if token == END:
                break
        bounds.append(len(actions))
    return Rollout(torch.tensor(previous), torch.tensor(actions), bounds)


# 2  score


def reward_model(rollout: Rollout) -> Tensor:
    """One number a response, [responses]: the share of "good" less that of "bad", and a point less if it was cut."""
    texts = [rollout.actions[a:b].tolist() for a, b in pairwise(rollout.bounds)]
    return torch.tensor([(t.count(GOOD) - t.count(BAD)) / len(t) - (t[-1] != END) for t in texts]).double()


# 3  credit


def token_rewards_of(scores: Tensor, kl: Tensor, beta: float, bounds: list[int]) -> Tensor:
    """Each action pays for its KL; the score of a response arrives with its last action.

    log π − log π_ref of the sampled token is an unbiased estimate (k1) of the KL. In the reward, an action also answers
    for the KL of the tokens that it leads to; as a loss it would not.
    """
    rewards = -beta * kl
    for end, score in zip(bounds[1:], scores, strict=True):
        rewards[end - 1] += score
    return rewards


def gae(rewards: Tensor, values: Tensor, bounds: list[int]) -> Tensor:
    """How much better did it go than the critic thought, backwards through each response.

    δ = r + γ V(next) − V        A = δ + γ λ A(next)        after the last action both V and A are 0
    """
    advantages = torch.zeros_like(rewards)
    for first, end in pairwise(bounds):
        next_value = next_advantage = 0.0
        for i in reversed(range(first, end)):
            delta = float(rewards[i]) + GAMMA * next_value - float(values[i])
            next_value, next_advantage = float(values[i]), delta + GAMMA * LAM * next_advantage
            advantages[i] = next_advantage
    return advantages


def whiten(x: Tensor) -> Tensor:
    """Mean 0, deviation 1 over all actions of the rollout, so that the step size does not depend on the reward's."""
    return (x - x.mean()) / (x.var(correction=0) + 1e-8).sqrt()


# 4  update


def policy_losses_of(ratio: Tensor, advantages: Tensor) -> Tensor:
    """−min(ρA, clip(ρ)A): moving an action's ratio ρ = π / π_old beyond 1 ± clip_range earns nothing more."""
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP_RANGE, 1 + CLIP_RANGE) * advantages)


def value_losses_of(values: Tensor, old_values: Tensor, returns: Tensor) -> Tensor:
    """½ (V − R)², or the same with V held near its old value where that is worse."""
    near = values.clamp(old_values - VALUE_CLIP, old_values + VALUE_CLIP)
    return torch.maximum((values - returns) ** 2, (near - returns) ** 2) / 2


def next_beta(beta: float, kl_seq: float, smooth: float) -> tuple[float, float]:
    """The leash: beta rises while the KL of a response, as it is going, will be over its target, and falls otherwise.

    The way that the KL differs from its smoothed self is its slope; a leash that waits for the target is too late.
    """
    slope = SMOOTHING * (kl_seq - smooth)
    move = GAIN * ((kl_seq + LOOKAHEAD * slope) / KL_TARGET - 1)
    return beta * math.exp(min(max(move, -MAX_STEP), MAX_STEP)), smooth + slope


def train(steps: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yields every number of each step."""
    policy, critic = (table.requires_grad_() for table in start())
    reference, beta, draw = policy.detach().clone(), BETA, torch.Generator().manual_seed(seed)
    smooth = 0.0  # the policy starts as its reference
    groups = [{"params": [policy]}, {"params": [critic], "lr": CRITIC_FACTOR * LEARNING_RATE}]
    optimizer = torch.optim.Adam(groups, lr=LEARNING_RATE, eps=1e-5)
    for _ in range(steps):
        with torch.no_grad():  # what was true when the responses were drawn; no epoch changes it
            rollout = generate(policy, draw)  # 1
            old_logprobs, old_values = logprobs_of(policy, rollout), values_of(critic, rollout)
            kl = old_logprobs - logprobs_of(reference, rollout)
            scores = reward_model(rollout)  # 2
            rewards = token_rewards_of(scores, kl, beta, rollout.bounds)  # 3
            raw = gae(rewards, old_values, rollout.bounds)
            returns, advantages = raw + old_values, whiten(raw)  # returns: what the critic should have said
        epochs: list[dict[str, Any]] = []
        for _ in range(EPOCHS):  # 4
            ratio = (logprobs_of(policy, rollout) - old_logprobs).exp()
            policy_loss = policy_losses_of(ratio, advantages).mean()
            value_loss = value_losses_of(values_of(critic, rollout), old_values, returns).mean()
            optimizer.zero_grad()
            (policy_loss + VALUE_COEF * value_loss).backward()
            approx_kl = float((ratio - 1 - ratio.log()).detach().mean())
            gradients = [policy.grad.clone(), critic.grad.clone()]
            for table in (policy, critic):
                torch.nn.utils.clip_grad_norm_([table], MAX_GRAD_NORM)
            optimizer.step()
            epochs.append({"ratio": ratio, "policy_loss": policy_loss, "value_loss": value_loss})
            epochs[-1] |= {"approx_kl": approx_kl, "gradients": gradients}
            if approx_kl > APPROX_KL_LIMIT:  # the policy is no longer the one that wrote: let it write again
                break
        numbers = {"rollout": rollout, "scores": scores, "rewards": rewards, "advantages": advantages}
        numbers |= {"returns": returns, "epochs": epochs, "beta": beta, "kl_seq": float(kl.sum()) / RESPONSES}
        beta, smooth = next_beta(beta, float(kl.sum()) / RESPONSES, smooth)
        yield numbers | {"next_beta": beta, "policy": policy.detach().clone(), "critic": critic.detach().clone()}


if __name__ == "__main__":
    print("step  score  KL/response   beta  epochs  P(good | film)")
    for step, numbers in enumerate(train(steps=40)):
        score, good = float(numbers["scores"].mean()), float(numbers["policy"][FILM].softmax(-1)[GOOD])
        line = f"{step:4}  {score:5.2f}  {numbers['kl_seq']:11.2f}  {numbers['beta']:.3f}"
        print(f"{line}  {len(numbers['epochs']):6}  {good:8.2f}")
