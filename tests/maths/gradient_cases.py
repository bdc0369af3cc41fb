"""Which functions of ``maths/`` carry a gradient, and what is it?

A case sees its function as a map from a flat list of trained numbers to one number an item, in three ways that share
no code:

items    the library's; torch derives it
by_hand  its derivative worked out on paper, as a loop: row i is d itemᵢ / dx
value    the formula in mpmath. The golden numbers of test_gradients.py are its derivative d/dx Σ (i + 1) · itemᵢ at
         ``at``, taken with 40 digits:

    python -m tests.maths.gradient_cases
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from mpmath import mp
from torch import Tensor

from tests.tensors import f64
from tightrope.maths import kl, penalties, ragged
from tightrope.maths.logprobs import LogitRule, chunked_logprobs, logprobs_and_entropy
from tightrope.maths.policy_losses import ppo_clip, sequence_clip
from tightrope.maths.preference_losses import bradley_terry, centering, dpo
from tightrope.maths.ranking_losses import best_of_n, kwise, plackett_luce
from tightrope.maths.value_losses import clipped_value_loss

Numbers = Sequence[Any]
Jacobian = list[list[float]]


@dataclass(frozen=True)
class Case:
    at: Sequence[float]
    items: Callable[[Tensor], Tensor]
    value: Callable[[Numbers], list[Any]]
    by_hand: Callable[[Sequence[float]], Jacobian]


def each(trained: int, formula: Callable[..., Any], *data: Sequence[float]) -> Callable[[Numbers], list[Any]]:
    """``formula(x, y, ..., datum, ...)`` of each item; x holds ``trained`` columns, one after the other."""

    def over(x: Numbers) -> list[Any]:
        size = len(x) // trained
        columns = [x[k * size : (k + 1) * size] for k in range(trained)]
        return [formula(*row) for row in zip(*columns, *data, strict=True)]

    return over


def diagonal(
    trained: int, slopes: Callable[..., tuple[float, ...]], *data: Sequence[float]
) -> Callable[[Sequence[float]], Jacobian]:
    """Item i depends on its own numbers alone: ``slopes`` are its derivatives, one a column."""

    def jacobian(x: Sequence[float]) -> Jacobian:
        rows = each(trained, slopes, *data)(x)
        size = len(rows)
        return [[row[j // size] if j % size == i else 0.0 for j in range(len(x))] for i, row in enumerate(rows)]

    return jacobian


def clamp(x: Any, low: float, high: float) -> Any:
    return min(max(x, low), high)


# The clipped surrogate: L = max(−ρA, −clip(ρ)A). Where the first is the larger, dL/d log π = −ρA, as dρ/d log π = ρ;
# else L is a constant.

OLD = [-1.0, -0.5, -2.0, -1.5, -0.75, -1.25]
NEW = [-0.9, -0.15, -2.4, -2.0, -0.35, -1.25]  # ratio 1.1, 1.4, 0.7, 0.6, 1.5, 1
ADVANTAGES = [1.0, -1.0, 0.5, -2.0, 1.5, -0.5]  # inside; bad and over; good and under; bad and under; good and over


def surrogate(new: Any, old: Any, advantage: Any, high: float = 0.2, dual: float | None = None) -> Any:
    ratio = mp.exp(new - old)
    loss = max(-ratio * advantage, -clamp(ratio, 0.8, 1 + high) * advantage)
    return min(loss, -dual * advantage) if dual is not None and advantage < 0 else loss


def surrogate_slope(
    new: float, old: float, advantage: float, high: float = 0.2, dual: float | None = None
) -> tuple[float]:
    ratio = math.exp(new - old)
    earns_nothing = (advantage > 0 and ratio > 1 + high) or (advantage < 0 and ratio < 0.8)
    bounded = dual is not None and advantage < 0 and ratio > dual
    return (0.0 if earns_nothing or bounded else -ratio * advantage,)


# The same on the product of a response's ratios: every action of response j has the slope −Aⱼ ρⱼ, or none.

BOUNDS = [0, 2, 2, 5, 6]
SHIFTS = [0.05, 0.1, -0.2, 0.05, -0.15, 0.4]  # ratio 1.16, none, 0.74, 1.49
RESPONSE_ADVANTAGES = [1.0, 9.0, 0.5, 2.0]  # the last is good and over


def responses(x: Numbers) -> list[Numbers]:
    return [x[a:b] for a, b in pairwise(BOUNDS)]


def sequence_surrogate(x: Numbers) -> list[Any]:
    pairs = zip(responses(x), RESPONSE_ADVANTAGES, strict=True)
    return [surrogate(mp.fsum(part), 0, a, 0.3) if len(part) else mp.mpf(0) for part, a in pairs]


def sequence_jacobian(x: Sequence[float]) -> Jacobian:
    rows = []
    for j, advantage in enumerate(RESPONSE_ADVANTAGES):
        (slope,) = surrogate_slope(sum(x[BOUNDS[j] : BOUNDS[j + 1]]), 0.0, advantage, 0.3)
        rows.append([slope if BOUNDS[j] <= i < BOUNDS[j + 1] else 0.0 for i in range(len(x))])
    return rows


# The value loss: ½ max((V − R)², (near − R)²) with near = V held within ±c of its old value. Inside both are the same,
# outside near does not move: V − R where the first is the larger, else 0.

OLD_VALUES = [0.5, 1.0, 5.0, -1.0, 0.0]
VALUES = [0.55, 5.0, 1.0, -0.9, -0.7]  # inside; far towards the return; far away from it; inside; away, below
RETURNS = [1.0, 10.0, 10.0, -2.0, 0.4]


def value_loss(value: Any, old: Any, target: Any) -> Any:
    return max((value - target) ** 2, (old + clamp(value - old, -0.2, 0.2) - target) ** 2) / 2


def value_slope(value: float, old: float, target: float) -> tuple[float]:
    if abs(value - old) < 0.2:
        return (value - target,)
    near = old + math.copysign(0.2, value - old)
    return (value - target if abs(value - target) > abs(near - target) else 0.0,)


# KL from samples, d = log π − log π_ref, ρ = π / π_old:
#   k1 = d: 1        k2 = d²/2: d        k3 = e⁻ᵈ − 1 + d: 1 − e⁻ᵈ        ρ k3: ρ (k3 + 1 − e⁻ᵈ), as dρ/d log π = ρ

REF = [-1.0, -0.5, -2.0, -1.5]
POLICY = [-2.5, -0.7, -1.3, -0.25]  # d = -1.5, -0.2, 0.7, 1.25
SAMPLER = [-2.0, -0.75, -1.25, -0.5]


def k3(policy: Any, ref: Any) -> Any:
    return mp.exp(ref - policy) - 1 + policy - ref


def ratio_k3_slope(policy: float, ref: float, old: float) -> tuple[float]:
    d, ratio = policy - ref, math.exp(policy - old)
    return (ratio * (math.exp(-d) - 1 + d) + ratio * (1 - math.exp(-d)),)


# Preferences: L = −(1 − ε) log σ(d) − ε log σ(−d): dL/dd = −(1 − ε) σ(−d) + ε σ(d) = σ(d) − (1 − ε).

CHOSEN, REJECTED = [1.0, -0.5, 2.0], [0.25, 0.5, -1.0]
MARGINS = [0.1, 1.0, 0.0]
DPO_POLICY, DPO_REF = [-9.0, -15.0, -14.0, -30.0], ([-10.0, -10.0], [-12.0, -12.0])  # both chosen, both rejected
BETA = 0.1


def sigmoid(d: float) -> float:
    return 1.0 / (1.0 + math.exp(-d))


def preference(d: Any, smoothing: float = 0.0) -> Any:
    return (1 - mp.mpf(smoothing)) * mp.log(1 + mp.exp(-d)) + mp.mpf(smoothing) * mp.log(1 + mp.exp(d))


def bt_slopes(chosen: float, rejected: float, margin: float = 0.0, smoothing: float = 0.0) -> tuple[float, float]:
    slope = sigmoid(chosen - rejected - margin) - (1 - smoothing)
    return slope, -slope


# Rankings: four answers to one prompt (two of them tied) and two to another. Pairs are listed by hand; a choice is the
# answer taken and those it was taken from, so that both sides of a softmax are written out.

RANKED, ANSWERS = [0.3, -0.6, 1.1, 0.2, -0.4, 0.5], [0, 4, 6]
RANKS, STRICT = [2, 3, 1, 2, 1, 2], [2, 4, 1, 3, 1, 2]
PAIRS = [[(2, 0), (2, 1), (2, 3), (0, 1), (3, 1)], [(4, 5)]]  # better, worse
Choices = list[list[tuple[int, list[int]]]]
ORDERS: Choices = [[(2, [0, 1, 2, 3]), (0, [0, 1, 3]), (3, [1, 3])], [(4, [4, 5])]]
BESTS: Choices = [[(2, [0, 1, 2, 3])], [(4, [4, 5])]]


def kwise_value(x: Numbers, smoothing: float) -> list[Any]:
    return [mp.fsum(preference(x[a] - x[b], smoothing) for a, b in pairs) / len(pairs) for pairs in PAIRS]


def kwise_jacobian(x: Sequence[float], smoothing: float) -> Jacobian:
    rows = [[0.0] * len(x) for _ in PAIRS]
    for row, pairs in zip(rows, PAIRS, strict=True):
        for better, worse in pairs:
            up, down = bt_slopes(x[better], x[worse], smoothing=smoothing)
            row[better] += up / len(pairs)
            row[worse] += down / len(pairs)
    return rows


def chosen_one_by_one(x: Numbers, prompts: Choices) -> list[Any]:
    return [mp.fsum(mp.log(mp.fsum(mp.exp(x[j]) for j in of)) - x[i] for i, of in choices) for choices in prompts]


def choices_jacobian(x: Sequence[float], prompts: Choices) -> Jacobian:
    rows = [[0.0] * len(x) for _ in prompts]
    for row, choices in zip(rows, prompts, strict=True):
        for taken, of in choices:
            total = sum(math.exp(x[j]) for j in of)
            for j in of:
                row[j] += math.exp(x[j]) / total - (j == taken)
    return rows


def dpo_value(chosen: Any, rejected: Any, ref_chosen: Any, ref_rejected: Any, smoothing: float = 0.0) -> Any:
    return preference(mp.mpf(BETA) * ((chosen - ref_chosen) - (rejected - ref_rejected)), smoothing)


def dpo_slopes(
    chosen: float, rejected: float, ref_chosen: float, ref_rejected: float, smoothing: float = 0.0
) -> tuple[float, float]:
    slope = BETA * (sigmoid(BETA * ((chosen - ref_chosen) - (rejected - ref_rejected))) - (1 - smoothing))
    return slope, -slope


def dpo_items(x: Tensor, smoothing: float) -> Tensor:
    chosen, rejected = x.chunk(2)
    return dpo(chosen, rejected, f64(*DPO_REF[0]), f64(*DPO_REF[1]), beta=BETA, label_smoothing=smoothing).losses


# Penalties: the score passes through, times a factor or not at all where the response was cut.

SCORES, STOPPED, LENGTHS = [2.0, -3.0, 1.0], [True, False, False], [40, 50, 70]


def penalty(items: Callable[[Tensor], Tensor], value: Callable[..., Any], slopes: list[float]) -> Case:
    columns = (STOPPED, LENGTHS)
    return Case(SCORES, items, each(1, value, *columns), diagonal(1, lambda _, slope: (slope,), slopes))


def missing_eos(mode: Literal["subtract", "replace", "off"]) -> Callable[[Tensor], Tensor]:
    return lambda x: penalties.missing_eos(x, torch.tensor(STOPPED), 1.5, mode)


# Log-probs: y = s (h·W + b), z = c tanh(y / c) / T, log π = z − log Σ eᶻ, H = −Σ π log π.
#   d log π(a) / dz_v = [v = a] − π_v        dH / dz_v = −π_v (log π_v + H)        dz/dy = (1 − tanh²(y / c)) / T

TEMPERATURE = 0.7
LOGITS, LOGIT_TOKENS = [2.0, 1.0, 0.0, -1.5, 0.5, 0.25], [2, 0]  # [2 actions x 3 tokens]
ROWS, WIDTH, WORDS = 3, 2, 4
HIDDEN, WEIGHT, BIAS = (
    [0.5, -1.0, 1.5, 0.25, -0.75, 2.0],
    [1.0, -0.5, 0.25, 2.0, -1.5, 0.5, 0.75, -1.0],
    [0.1, -0.2, 0.3, 0],
)
MATRIX = [*HIDDEN, *WEIGHT, *BIAS]
MATRIX_TOKENS = [3, 0, 1]
SCALE, CAP = 0.5, 1.5


def with_entropy(rows: list[list[Any]], tokens: list[int]) -> list[Any]:
    """Log-prob of each row's token, then the entropy of each row, in mpmath."""
    logprobs, entropies = [], []
    for z, token in zip(rows, tokens, strict=True):
        total = mp.log(mp.fsum(mp.exp(x) for x in z))
        logprobs.append(z[token] - total)
        entropies.append(-mp.fsum(mp.exp(x - total) * (x - total) for x in z))
    return logprobs + entropies


def softmax_slopes(z: list[float], token: int) -> tuple[list[float], list[float]]:
    """d log π(token) / dz and dH / dz of one row."""
    total = math.log(sum(math.exp(x) for x in z))
    logp = [x - total for x in z]
    entropy = -sum(math.exp(x) * x for x in logp)
    on_token = [(1.0 if v == token else 0.0) - math.exp(x) for v, x in enumerate(logp)]
    return on_token, [-math.exp(x) * (x + entropy) for x in logp]


def logit_rows(x: Numbers) -> list[list[Any]]:
    return [[logit / TEMPERATURE for logit in x[i : i + 3]] for i in (0, 3)]


def logits_jacobian(x: Sequence[float]) -> Jacobian:
    pairs = [softmax_slopes(z, token) for z, token in zip(logit_rows(x), LOGIT_TOKENS, strict=True)]
    rows = [[0.0] * len(x) for _ in range(4)]
    for i, (on_token, on_entropy) in enumerate(pairs):
        rows[i][3 * i : 3 * i + 3] = [slope / TEMPERATURE for slope in on_token]
        rows[2 + i][3 * i : 3 * i + 3] = [slope / TEMPERATURE for slope in on_entropy]
    return rows


def matrix_parts(x: Any) -> tuple[Any, Any, Any]:
    """Hidden states, output matrix and bias, flat."""
    hidden, weight = ROWS * WIDTH, WORDS * WIDTH
    return x[:hidden], x[hidden : hidden + weight], x[hidden + weight :]


def scaled_logits(x: Numbers) -> list[list[Any]]:
    hidden, weight, bias = matrix_parts(x)
    return [
        [SCALE * (sum(hidden[i * WIDTH + k] * weight[v * WIDTH + k] for k in range(WIDTH)) + bias[v]) for v in range(4)]
        for i in range(ROWS)
    ]


def matrix_value(x: Numbers) -> list[Any]:
    rows = [[CAP * mp.tanh(y / CAP) / TEMPERATURE for y in row] for row in scaled_logits(x)]
    return with_entropy(rows, MATRIX_TOKENS)


def matrix_items(x: Tensor) -> Tensor:
    hidden, weight, bias = matrix_parts(x)
    logprobs, entropy = chunked_logprobs(
        hidden.reshape(ROWS, WIDTH),
        weight.reshape(WORDS, WIDTH),
        bias,
        torch.tensor(MATRIX_TOKENS),
        TEMPERATURE,
        rule=LogitRule(SCALE, CAP),
        chunk_size=2,
    )
    assert entropy is not None
    return torch.cat([logprobs, entropy])


def matrix_jacobian(x: Sequence[float]) -> Jacobian:
    hidden, weight, _ = matrix_parts(x)
    rows = [[0.0] * len(x) for _ in range(2 * ROWS)]
    for i, ys in enumerate(scaled_logits(x)):
        z = [CAP * math.tanh(y / CAP) / TEMPERATURE for y in ys]
        for row, slopes in zip((rows[i], rows[ROWS + i]), softmax_slopes(z, MATRIX_TOKENS[i]), strict=True):
            for v in range(WORDS):
                slope = slopes[v] * SCALE * (1 - math.tanh(ys[v] / CAP) ** 2) / TEMPERATURE
                row[len(x) - WORDS + v] = slope
                for k in range(WIDTH):
                    row[i * WIDTH + k] += slope * weight[v * WIDTH + k]
                    row[ROWS * WIDTH + v * WIDTH + k] = slope * hidden[i * WIDTH + k]
    return rows


CASES: dict[str, Case] = {
    "policy_losses.ppo_clip": Case(
        NEW,
        lambda x: ppo_clip(x, f64(*OLD), f64(*ADVANTAGES), 0.2, 0.2).losses,
        each(1, surrogate, OLD, ADVANTAGES),
        diagonal(1, surrogate_slope, OLD, ADVANTAGES),
    ),
    "policy_losses.ppo_clip: higher above, dual": Case(
        [-0.75, 1.0, -2.4, -2.0, -0.35, -1.25],  # ratio 1.284 under its bound 1.3; bad and 4.5
        lambda x: ppo_clip(x, f64(*OLD), f64(*ADVANTAGES), 0.2, 0.3, 3.0).losses,
        each(1, lambda *row: surrogate(*row, 0.3, 3.0), OLD, ADVANTAGES),
        diagonal(1, lambda *row: surrogate_slope(*row, 0.3, 3.0), OLD, ADVANTAGES),
    ),
    "policy_losses.sequence_clip": Case(
        SHIFTS,
        lambda x: sequence_clip(x, 0 * x.detach(), f64(*RESPONSE_ADVANTAGES), torch.tensor(BOUNDS), 0.2, 0.3).losses,
        sequence_surrogate,
        sequence_jacobian,
    ),
    "value_losses.clipped_value_loss": Case(
        VALUES,
        lambda x: clipped_value_loss(x, f64(*OLD_VALUES), f64(*RETURNS), 0.2).losses,
        each(1, value_loss, OLD_VALUES, RETURNS),
        diagonal(1, value_slope, OLD_VALUES, RETURNS),
    ),
    "value_losses.clipped_value_loss: no clip": Case(
        VALUES,
        lambda x: clipped_value_loss(x, f64(*OLD_VALUES), f64(*RETURNS), None).losses,
        each(1, lambda value, target: (value - target) ** 2 / 2, RETURNS),
        diagonal(1, lambda value, target: (value - target,), RETURNS),
    ),
    "kl.k1": Case(
        POLICY,
        lambda x: kl.k1(x, f64(*REF)),
        each(1, lambda policy, ref: policy - ref, REF),
        diagonal(1, lambda *_: (1.0,), REF),
    ),
    "kl.k2": Case(
        POLICY,
        lambda x: kl.k2(x, f64(*REF)),
        each(1, lambda policy, ref: (policy - ref) ** 2 / 2, REF),
        diagonal(1, lambda policy, ref: (policy - ref,), REF),
    ),
    "kl.k3": Case(
        POLICY,
        lambda x: kl.k3(x, f64(*REF)),
        each(1, k3, REF),
        diagonal(1, lambda policy, ref: (1 - math.exp(ref - policy),), REF),
    ),
    "kl.ratio_k3": Case(
        POLICY,
        lambda x: kl.ratio_k3(x, f64(*REF), f64(*SAMPLER)),
        each(1, lambda policy, ref, old: mp.exp(policy - old) * k3(policy, ref), REF, SAMPLER),
        diagonal(1, ratio_k3_slope, REF, SAMPLER),
    ),
    "kl.clamp_log_ratio": Case(
        [-25.0, -19.5, 0.5, 19.5, 25.0],
        kl.clamp_log_ratio,
        each(1, lambda d: clamp(d, -20, 20)),
        diagonal(1, lambda d: (1.0 if abs(d) < 20 else 0.0,)),
    ),
    "preference_losses.bradley_terry": Case(
        CHOSEN + REJECTED,
        lambda x: bradley_terry(*x.chunk(2)),
        each(2, lambda chosen, rejected: preference(chosen - rejected)),
        diagonal(2, bt_slopes),
    ),
    "preference_losses.bradley_terry: margin and smoothing": Case(
        CHOSEN + REJECTED,
        lambda x: bradley_terry(*x.chunk(2), f64(*MARGINS), 0.1),
        each(2, lambda chosen, rejected, margin: preference(chosen - rejected - margin, 0.1), MARGINS),
        diagonal(2, lambda *row: bt_slopes(*row, 0.1), MARGINS),
    ),
    "preference_losses.centering": Case(
        CHOSEN + REJECTED,
        lambda x: centering(*x.chunk(2)),
        each(2, lambda chosen, rejected: (chosen + rejected) ** 2),
        diagonal(2, lambda chosen, rejected: (2 * (chosen + rejected),) * 2),
    ),
    "preference_losses.dpo": Case(
        DPO_POLICY,
        lambda x: dpo_items(x, 0.0),
        each(2, dpo_value, *DPO_REF),
        diagonal(2, dpo_slopes, *DPO_REF),
    ),
    "preference_losses.dpo: smoothing": Case(
        DPO_POLICY,
        lambda x: dpo_items(x, 0.2),
        each(2, lambda *row: dpo_value(*row, 0.2), *DPO_REF),
        diagonal(2, lambda *row: dpo_slopes(*row, 0.2), *DPO_REF),
    ),
    "ranking_losses.kwise": Case(
        RANKED,
        lambda x: kwise(x, torch.tensor(RANKS), torch.tensor(ANSWERS)),
        lambda x: kwise_value(x, 0.0),
        lambda x: kwise_jacobian(x, 0.0),
    ),
    "ranking_losses.kwise: smoothing": Case(
        RANKED,
        lambda x: kwise(x, torch.tensor(RANKS), torch.tensor(ANSWERS), 0.1),
        lambda x: kwise_value(x, 0.1),
        lambda x: kwise_jacobian(x, 0.1),
    ),
    "ranking_losses.plackett_luce": Case(
        RANKED,
        lambda x: plackett_luce(x, torch.tensor(STRICT), torch.tensor(ANSWERS)),
        lambda x: chosen_one_by_one(x, ORDERS),
        lambda x: choices_jacobian(x, ORDERS),
    ),
    "ranking_losses.best_of_n": Case(
        RANKED,
        lambda x: best_of_n(x, torch.tensor([2, 0]), torch.tensor(ANSWERS)),
        lambda x: chosen_one_by_one(x, BESTS),
        lambda x: choices_jacobian(x, BESTS),
    ),
    "penalties.length_cost": penalty(
        lambda x: penalties.length_cost(x, torch.tensor(LENGTHS), 0.01),
        lambda score, _, length: score - 0.01 * length,
        [1.0, 1.0, 1.0],
    ),
    "penalties.over_budget": penalty(
        lambda x: penalties.over_budget(x, torch.tensor(LENGTHS), 0.01, 45),
        lambda score, _, length: score - 0.01 * max(0, length - 45),
        [1.0, 1.0, 1.0],
    ),
    "penalties.soft_overlong": penalty(
        lambda x: penalties.soft_overlong(x, torch.tensor(LENGTHS), 1.0, 60, 20),
        lambda score, _, length: score - clamp((length - 40) / 20, 0, 1),
        [1.0, 1.0, 1.0],
    ),
    "penalties.stop_properly": penalty(
        lambda x: penalties.stop_properly(x, torch.tensor(STOPPED), 0.25),
        lambda score, stopped, _: score if stopped else mp.mpf(0.25) * score,
        [1.0, 0.25, 0.25],
    ),
    "penalties.missing_eos: subtract": penalty(
        missing_eos("subtract"), lambda score, stopped, _: score if stopped else score - 1.5, [1.0, 1.0, 1.0]
    ),
    "penalties.missing_eos: replace": penalty(
        missing_eos("replace"), lambda score, stopped, _: score if stopped else mp.mpf(-1.5), [1.0, 0.0, 0.0]
    ),
    "penalties.missing_eos: off": penalty(missing_eos("off"), lambda score, *_: score, [1.0, 1.0, 1.0]),
    "ragged.segment_sum": Case(
        SHIFTS,
        lambda x: ragged.segment_sum(x, torch.tensor(BOUNDS)),
        lambda x: [mp.fsum(part) for part in responses(x)],
        lambda x: [[1.0 if a <= i < b else 0.0 for i in range(6)] for a, b in pairwise(BOUNDS)],
    ),
    "ragged.widen": Case(
        SHIFTS,
        ragged.widen,
        list,
        lambda x: [[1.0 if i == j else 0.0 for j in range(6)] for i in range(6)],
    ),
    "logprobs.logprobs_and_entropy": Case(
        LOGITS,
        lambda x: torch.cat(logprobs_and_entropy(x.reshape(2, 3), torch.tensor(LOGIT_TOKENS), TEMPERATURE)),
        lambda x: with_entropy(logit_rows(x), LOGIT_TOKENS),
        logits_jacobian,
    ),
    "logprobs.chunked_logprobs": Case(MATRIX, matrix_items, matrix_value, matrix_jacobian),
}


def derived(case: Case) -> list[float]:
    """The golden numbers again. ``value`` is smooth at ``at``: no case stands on a border."""

    def total(*x: Any) -> Any:
        return mp.fsum((i + 1) * item for i, item in enumerate(case.value(x)))

    with mp.workdps(40):
        point = [mp.mpf(x) for x in case.at]
        order = range(len(point))
        return [float(mp.diff(total, point, tuple(int(i == j) for j in order))) for i in order]


if __name__ == "__main__":
    for name, case in CASES.items():
        print(f'    "{name}": {derived(case)},')
