"""A problem so small that the best possible score is known exactly: J* = beta · log Z, and J of any policy.

A response is a walk over tokens. After prompt n, at step t, the policy takes a token a and earns ``rewards[n, t, a]``;
what it may take depends on the token before and on where it stands. J = E[score] − beta · KL(policy ‖ reference) of
whole responses, which is what PPO and RLOO are after. Everything here is float64 and plain numpy, by backward dynamic
programming over (step, token before); nothing of the library is used, so nothing in it can be wrong in the same way.

    reference  logits [prompts, positions, vocabulary, vocabulary]: prompt, position of the token before, it, the next
    rewards    [prompts, cap, vocabulary]
    end        the token that ends a response (None: all responses are cut at the cap, the fixed-length form)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightrope.types import Sample

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """``cut_penalty`` is subtracted from the score of a response that the cap ended; 0 where all are."""

    prompts: tuple[tuple[int, ...], ...]
    vocabulary: int
    end: int | None
    cap: int
    beta: float
    temperature: float
    cut_penalty: float
    reference: Array
    rewards: Array

    @property
    def positions(self) -> int:
        """Room for the longest prompt and response."""
        return max(map(len, self.prompts)) + self.cap


@dataclass(frozen=True)
class Scale:
    """score = gain · raw + bias (− the penalty of a cut response)."""

    gain: float = 1.0
    bias: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """Exact expectations over prompts and responses; ``kl`` in nats per response."""

    objective: float
    score: float
    kl: float


def fixed_length(seed: int = 4) -> Problem:
    """Length 8, vocabulary 12, random reference, additive random reward, beta 0.2, one prompt."""
    draw = np.random.default_rng(seed)
    return Problem(
        prompts=((0,),),
        vocabulary=12,
        end=None,
        cap=8,
        beta=0.2,
        temperature=1.0,
        cut_penalty=0.0,
        reference=draw.normal(size=(1, 9, 12, 12)),
        rewards=0.4 * draw.normal(size=(1, 8, 12)),
    )


def variable_length(seed: int = 4) -> Problem:
    """Three prompts of 1, 2 and 4 tokens, 8 words and an end token, at most 6 tokens, so that some responses end
    themselves and some are cut, which costs 1. The temperature is not 1, and rewards are of a size that the
    normaliser has to change: whoever forgets either shows."""
    draw = np.random.default_rng(seed)
    prompts, words, cap = ((0,), (1, 5), (2, 4, 4, 7)), 8, 6
    reference = draw.normal(size=(3, 4 + cap, words + 1, words + 1))
    reference[..., words] += 0.5  # ends after three or four tokens as it comes
    rewards = draw.normal(size=(3, cap, words + 1))
    rewards[..., words] = 0.0  # the end token is no text, so no reward function sees it
    return Problem(
        prompts=prompts,
        vocabulary=words + 1,
        end=words,
        cap=cap,
        beta=0.2,
        temperature=0.7,
        cut_penalty=1.0,
        reference=reference,
        rewards=rewards,
    )


def reward(samples: Sequence[Sample]) -> list[float]:
    """The reward function that the runs are given: it sees the response's words and the data row, as any other does."""
    return [
        sum(earned[int(word[1:])] for earned, word in zip(s.prompt.row["rewards"], s.response.split(), strict=False))
        for s in samples
    ]


def optimum(problem: Problem, scale: Scale) -> float:
    """J* = beta · log Z, the mean over prompts; Z(s) = Σ_a π_ref(a|s) · exp((r(a) + beta · log Z(next)) / beta)."""

    def best(log_reference: Array, worth: Array) -> Array:
        exponent = log_reference + worth / problem.beta
        highest = exponent.max(-1, keepdims=True)
        return problem.beta * (highest[..., 0] + np.log(np.exp(exponent - highest).sum(-1)))

    return _mean_over_prompts(
        problem, scale, lambda n, at, worth: best(logprobs_of(problem, problem.reference)[n, at], worth)
    )


def outcome(problem: Problem, logits: Array, scale: Scale) -> Outcome:
    """What the policy with these logits earns, and what its KL to the reference is."""
    logp, log_reference = logprobs_of(problem, logits), logprobs_of(problem, problem.reference)

    def expected(beta: float) -> float:
        def value(n: int, at: int, worth: Array) -> Array:
            return (np.exp(logp[n, at]) * (worth - beta * (logp[n, at] - log_reference[n, at]))).sum(-1)

        return _mean_over_prompts(problem, scale, value)

    score, objective = expected(0.0), expected(problem.beta)
    return Outcome(objective, score, (score - objective) / problem.beta)


def share_of_optimum(problem: Problem, logits: Array, scale: Scale) -> float:
    """(J − J_ref) / (J* − J_ref): 0 is the reference, 1 the best there is."""
    start = outcome(problem, problem.reference, scale).objective
    return (outcome(problem, logits, scale).objective - start) / (optimum(problem, scale) - start)


def _mean_over_prompts(problem: Problem, scale: Scale, value: Callable[[int, int, Array], Array]) -> float:
    """Backward through the steps. ``value(prompt, position, worth)`` maps what each next token is worth, [vocabulary],
    to the value of each token before, [vocabulary]."""
    values: list[float] = []
    for n, prompt in enumerate(problem.prompts):
        after = np.full(problem.vocabulary, -problem.cut_penalty)
        for step in reversed(range(problem.cap)):
            if problem.end is not None:
                after[problem.end] = 0.0
            after = value(n, len(prompt) - 1 + step, scale.gain * problem.rewards[n, step] + after)
        values.append(scale.bias + float(after[prompt[-1]]))
    return float(np.mean(values))


def logprobs_of(problem: Problem, logits: Array) -> Array:
    """At the problem's temperature."""
    shifted = logits / problem.temperature
    shifted = shifted - shifted.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
