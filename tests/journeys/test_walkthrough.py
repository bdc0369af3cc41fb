"""Does the teaching page compute what the library computes?"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tightrope.algorithms.options import PPOOptions
from tightrope.algorithms.ppo import PPO
from tightrope.types import PolicyOutput, Prompt, Rollout, Scores, TokenRows

PAGE = Path(__file__).parents[2] / "docs" / "walkthrough" / "ppo_in_one_page.py"
EPOCHS = 2


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("ppo_in_one_page", PAGE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def numbers(page):
    return page.ppo_step(EPOCHS)


def rollout_of(page):
    """The page's two responses in the library's type."""
    policy, _, _ = page.start()
    prompts = (Prompt(0, (1,), "film", {"prompt": "film"}), Prompt(1, (1,), "film", {"prompt": "film"}))
    return Rollout(
        rows=TokenRows.of([([1], [2, 2, 0]), ([1], [3, 0])]),
        behaviour_logprobs=page.logprobs_of(policy).detach(),
        finish_reason=("stop", "stop"),
        responses=("good good", "bad"),
        prompts=prompts,
        prompt_index=torch.tensor([0, 1]),
        sample_index=torch.tensor([0, 0]),
        policy_version=0,
        temperature=1.0,
    )


def library(page):
    """PPO with the page's settings, and its experience of the page's rollout."""
    _, reference, critic = page.start()
    options = PPOOptions(
        gamma=page.GAMMA,
        lam=page.LAM,
        clip_range=page.CLIP_RANGE,
        value_clip=page.VALUE_CLIP,
        value_coef=page.VALUE_COEF,
    )
    ppo = PPO(options, beta=lambda: page.BETA)
    scores = Scores(
        reward=torch.tensor(page.SCORES).double(),
        parts={},
        ref_logprobs=page.logprobs_of(reference),
        values=critic[page.PREVIOUS].detach(),
    )
    return ppo, ppo.credit(rollout_of(page), scores)


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-12)


def test_rewards_advantages_and_returns_are_the_librarys(page, numbers):
    _, experience = library(page)
    same(numbers["rewards"], experience.rewards)
    same(numbers["advantages"], experience.advantages)
    same(numbers["returns"], experience.returns)
    same(numbers["raw_advantages"], experience.returns - experience.values)


@pytest.mark.parametrize("epoch", range(EPOCHS))
def test_ratios_losses_and_gradients_are_the_librarys(page, numbers, epoch):
    ppo, experience = library(page)
    policy, _, critic = page.start()
    with torch.no_grad():  # as the page's own steps left them
        for earlier in range(epoch):
            policy -= page.LEARNING_RATE * numbers[f"epoch {earlier}: policy gradient"]
            critic -= page.LEARNING_RATE * numbers[f"epoch {earlier}: critic gradient"]
    output = PolicyOutput(page.logprobs_of(policy), values=critic[page.PREVIOUS])
    loss = ppo.loss(output, experience)
    total = sum(term.weight * term.sum / term.count for term in loss.terms.values())
    same(numbers[f"epoch {epoch}: loss"], total.detach())
    gradients = torch.autograd.grad(total, (policy, critic))
    same(numbers[f"epoch {epoch}: policy gradient"], gradients[0])
    same(numbers[f"epoch {epoch}: critic gradient"], gradients[1])
    ratio = numbers[f"epoch {epoch}: ratio"]
    assert float(ratio.sum()) == pytest.approx(loss.stats["ratio"][0], abs=1e-12)
    assert loss.stats["clip_fraction"] == ((0.0, 5) if epoch == 0 else (2.0, 5))  # the second epoch shows the clip


def test_the_page_runs_by_itself():
    done = subprocess.run([sys.executable, str(PAGE)], capture_output=True, text=True, check=True)
    assert "rewards" in done.stdout and "epoch 1: loss" in done.stdout
