"""PPO on a language model, in one page of plain torch: one rollout, one update, every number printed.

    python docs/walkthrough/ppo_in_one_page.py

The "model" is a table: the next token depends on the token before, and nothing else. Everything after it is the real
thing, and ``tests/journeys/test_walkthrough.py`` holds it against the library: rewards, advantages, returns, ratios,
losses and gradients are equal. What a large model adds is only another way to compute ``logprobs`` and ``values``.

Vocabulary    0 the end token, 1 "film", 2 "good", 3 "bad".
Axes          one entry an action (a sampled token), responses back to back; ``ENDS`` are the last actions.
"""

from __future__ import annotations

import torch
from torch import Tensor

BETA = 0.1  # reward for each nat that the policy leaves the reference
GAMMA, LAM = 1.0, 0.95
CLIP_RANGE, VALUE_CLIP, VALUE_COEF = 0.2, 0.2, 0.1
LEARNING_RATE = 1.0

# A rollout: the policy was at "film" twice; it answered "good good <end>" and "bad <end>".
PREVIOUS = torch.tensor([1, 2, 2, 1, 3])  # the state of each action: the token before it
ACTIONS = torch.tensor([2, 2, 0, 3, 0])  # the token that was sampled there
STARTS, ENDS = (0, 3), (2, 4)
SCORES = (1.0, -1.0)  # what the reward model says about each response


def start() -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the policy (row: token before, column: token), those of the frozen reference, and the critic's values.

    The policy has moved a little from its reference already, so that there is a KL to pay.
    """
    reference = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.1, 0.0, 0.6, 0.7], [1.0, 0.2, 0.3, 0.0], [1.2, 0.1, 0.0, 0.4]])
    policy = reference + torch.tensor([[0.0] * 4, [0.0, 0.0, 0.3, -0.1], [0.0, 0.0, 0.2, 0.0], [0.1, 0.0, 0.0, -0.3]])
    values = torch.tensor([0.0, 0.1, 0.4, -0.5])
    return policy.double().requires_grad_(), reference.double(), values.double().requires_grad_()


def logprobs_of(logits: Tensor) -> Tensor:
    """log π(action | token before), one an action. The only line that knows what the model is."""
    return logits[PREVIOUS].log_softmax(-1).gather(1, ACTIONS[:, None]).squeeze(1)


def rewards_of(old_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Each action pays for its KL; the score of a response arrives with its last action.

    log π − log π_ref of the sampled token is an unbiased estimate (k1) of the KL, in nats.
    """
    rewards = -BETA * (old_logprobs - ref_logprobs)
    for end, score in zip(ENDS, SCORES, strict=True):
        rewards[end] += score
    return rewards


def advantages_of(rewards: Tensor, values: Tensor) -> Tensor:
    """GAE: how much better it went than the critic thought, backwards through each response.

    δ = r + γ V(next) − V        A = δ + γ λ A(next)        after the last action both are 0
    """
    advantages = torch.zeros_like(rewards)
    for first, end in zip(STARTS, ENDS, strict=True):
        next_value = next_advantage = 0.0
        for i in range(end, first - 1, -1):
            delta = rewards[i] + GAMMA * next_value - values[i]
            advantages[i] = delta + GAMMA * LAM * next_advantage
            next_value, next_advantage = float(values[i]), float(advantages[i])
    return advantages


def policy_losses_of(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
    """The clipped surrogate: a move of the ratio beyond 1 ± clip_range earns nothing more. Returns (losses, ratio)."""
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - CLIP_RANGE, 1 + CLIP_RANGE)
    return -torch.minimum(ratio * advantages, clipped * advantages), ratio


def value_losses_of(values: Tensor, old_values: Tensor, returns: Tensor) -> Tensor:
    """½ (V − R)², and the worse of that and the same with V held near its old value."""
    near = old_values + (values - old_values).clamp(-VALUE_CLIP, VALUE_CLIP)
    return torch.maximum((values - returns) ** 2, (near - returns) ** 2) / 2


def ppo_step(epochs: int = 2) -> dict[str, Tensor]:
    """One rollout and its update, each epoch one gradient step over all actions."""
    policy, reference, critic = start()

    # What was true when the rollout was sampled; none of it changes during the update.
    with torch.no_grad():
        old_logprobs, ref_logprobs, old_values = logprobs_of(policy), logprobs_of(reference), critic[PREVIOUS]
        rewards = rewards_of(old_logprobs, ref_logprobs)
        raw = advantages_of(rewards, old_values)
        returns = raw + old_values  # what the critic is trained towards
        advantages = (raw - raw.mean()) / (raw.var(correction=0) + 1e-8).sqrt()

    numbers = {"rewards": rewards, "raw_advantages": raw, "returns": returns, "advantages": advantages}
    for epoch in range(epochs):
        logprobs, values = logprobs_of(policy), critic[PREVIOUS]
        policy_losses, ratio = policy_losses_of(logprobs, old_logprobs, advantages)
        value_losses = value_losses_of(values, old_values, returns)
        loss = policy_losses.mean() + VALUE_COEF * value_losses.mean()
        gradients = torch.autograd.grad(loss, (policy, critic))
        numbers |= {f"epoch {epoch}: ratio": ratio.detach(), f"epoch {epoch}: logprobs": logprobs.detach()}
        numbers |= {f"epoch {epoch}: values": values.detach(), f"epoch {epoch}: loss": loss.detach()}
        numbers |= {f"epoch {epoch}: policy gradient": gradients[0], f"epoch {epoch}: critic gradient": gradients[1]}
        with torch.no_grad():
            for table, gradient in zip((policy, critic), gradients, strict=True):
                table -= LEARNING_RATE * gradient
    return numbers


if __name__ == "__main__":
    torch.set_printoptions(precision=4, sci_mode=False)
    for name, number in ppo_step().items():
        print(f"{name:26}", str(number.tolist() if number.dim() == 0 else number).removeprefix("tensor"))
