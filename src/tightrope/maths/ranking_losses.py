"""Learning from an order of several answers to one prompt: pairs of a ranking, Plackett-Luce, the best of n.

scores   [responses]    the answers of all prompts, those of a prompt back to back
ranks    [responses]    1 is the best of its prompt; equal ranks are a tie; gaps do not matter
offsets  [prompts + 1]  start of each prompt's answers and the end of the last

Every function returns one number per prompt, to be minimised: a prompt counts once however many answers it has.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from tightrope.maths.preference_losses import bradley_terry
from tightrope.maths.ragged import require_offsets, require_same_shape, segment_sum, widen

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def ranked_pairs(
    ranks: Int[Tensor, " responses"], offsets: Int[Tensor, " bounds"]
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"], Int[Tensor, " bounds"]]:
    """Index of the better and of the worse answer of every pair inside a prompt, and where each prompt's pairs start.

    Tied answers make no pair. Raises ValueError for a prompt without any pair: its mean does not exist.

    >>> better, worse, bounds = ranked_pairs(torch.tensor([2, 1, 2]), torch.tensor([0, 3]))
    >>> better.tolist(), worse.tolist(), bounds.tolist()
    ([1, 1], [0, 2], [0, 2])
    """
    require_offsets(ranks, offsets)
    rank, better, worse, bounds = _numbers(ranks), list[int](), list[int](), [0]
    for prompt, (start, end) in enumerate(pairwise(_numbers(offsets))):
        for i, j in combinations(range(start, end), 2):
            if rank[i] != rank[j]:
                better.append(i if rank[i] < rank[j] else j)
                worse.append(j if rank[i] < rank[j] else i)
        if len(better) == bounds[-1]:
            raise ValueError(f"the answers of prompt {prompt} make no pair: {rank[start:end]}")
        bounds.append(len(better))
    first, second, ends = (torch.tensor(x, dtype=torch.int64, device=ranks.device) for x in (better, worse, bounds))
    return first, second, ends


def kwise(
    scores: Float[Tensor, " responses"],
    ranks: Int[Tensor, " responses"],
    offsets: Int[Tensor, " bounds"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, " prompts"]:
    """L = mean over the pairs of a prompt of −(1 − ε) log σ(d) − ε log σ(−d), d = r_better − r_worse.

    Ouyang et al. 2022 (InstructGPT), eq. 1: K answers make K (K − 1) / 2 pairs, fewer with ties. Raises ValueError on
    shapes that differ, a prompt without a pair or ε outside [0, 0.5).

    >>> round(kwise(torch.tensor([1.0, 0.0]), torch.tensor([1, 2]), torch.tensor([0, 2])).item(), 6)
    0.313262
    """
    require_same_shape({"scores": scores, "ranks": ranks})
    better, worse, bounds = ranked_pairs(ranks, offsets)
    losses = bradley_terry(scores[better], scores[worse], label_smoothing=label_smoothing)
    return segment_sum(losses, bounds) / bounds.diff()


def plackett_luce(
    scores: Float[Tensor, " responses"], ranks: Int[Tensor, " responses"], offsets: Int[Tensor, " bounds"]
) -> Float[Tensor, " prompts"]:
    """L = Σₖ log Σ_{j ≥ k} exp(rⱼ) − rₖ over the answers of a prompt in order of rank: −log P(order).

    Plackett 1975; Luce 1959. The best is drawn first, then the best of the rest. Nats per prompt. Raises ValueError on
    shapes that differ, ties (they have no one order) or a prompt of fewer than two answers.

    >>> round(plackett_luce(torch.tensor([1.0, 0.0]), torch.tensor([1, 2]), torch.tensor([0, 2])).item(), 6)
    0.313262
    """
    require_same_shape({"scores": scores, "ranks": ranks})
    require_offsets(scores, offsets)
    losses: list[Tensor] = []
    for prompt, (start, end) in enumerate(pairwise(_numbers(offsets))):
        own = ranks[start:end]
        if end - start < 2 or len(set(_numbers(own))) < end - start:
            raise ValueError(f"prompt {prompt} has no strict order of two or more answers: ranks {_numbers(own)}")
        from_last = widen(scores[start:end])[own.argsort(descending=True)]
        losses.append((from_last.logcumsumexp(0) - from_last).sum())
    return torch.stack(losses)


def best_of_n(
    scores: Float[Tensor, " responses"], best: Int[Tensor, " prompts"], offsets: Int[Tensor, " bounds"]
) -> Float[Tensor, " prompts"]:
    """L = log Σⱼ exp(rⱼ) − r_best over the answers of a prompt. Ziegler et al. 2019, eq. 1 (best of four).

    ``best`` counts from 0 inside each prompt. Nats per prompt. Raises ValueError for one that is no answer of its
    prompt, one that is missing, or a prompt of fewer than two answers.

    >>> round(best_of_n(torch.tensor([0.0, 1.0]), torch.tensor([1]), torch.tensor([0, 2])).item(), 6)
    0.313262
    """
    require_offsets(scores, offsets)
    require_same_shape({"best": best, "prompts": offsets[1:]})
    losses: list[Tensor] = []
    for prompt, ((start, end), chosen) in enumerate(zip(pairwise(_numbers(offsets)), _numbers(best), strict=True)):
        if end - start < 2 or not 0 <= chosen < end - start:
            raise ValueError(f"the best of prompt {prompt} is {chosen}, and it has {end - start} answers (2 or more)")
        own = widen(scores[start:end])
        losses.append(own.logsumexp(0) - own[chosen])
    return torch.stack(losses)


def _numbers(x: Tensor) -> list[int]:
    return cast(list[int], x.tolist())  # pyright: ignore[reportUnknownMemberType]
