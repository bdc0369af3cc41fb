"""Numbers that follow the step count. ``step`` counts from 0; a run has steps 0 .. total - 1."""

from __future__ import annotations

import math


def linear_decay_with_warmup(step: int, total: int, warmup: int) -> float:
    """Factor on the peak learning rate: rises over ``warmup`` steps, then falls to 0 at step ``total``.

        (step + 1) / (warmup + 1)              while step < warmup
        (total − step) / (total − warmup)      then, down to 0 from step ``total`` on

    No step of the run has factor 0: the first would be wasted, and a run of one step would train nothing.
    Raises ValueError for a negative step or warmup, or a total below 1.

    >>> [linear_decay_with_warmup(step, total=5, warmup=1) for step in range(6)]
    [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if step < 0 or warmup < 0 or total < 1:
        raise ValueError(f"step and warmup must be >= 0 and total >= 1, found {step}, {warmup} and {total}")
    if step >= total:
        return 0.0
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return (total - step) / (total - warmup)


def constant_after_warmup(step: int, warmup: int) -> float:
    """Factor on the peak learning rate: (step + 1) / (warmup + 1) while step < warmup, then 1.

    >>> [constant_after_warmup(step, warmup=1) for step in range(3)]
    [0.5, 1.0, 1.0]
    """
    if step < 0 or warmup < 0:
        raise ValueError(f"step and warmup must be >= 0, found {step} and {warmup}")
    return min(1.0, (step + 1) / (warmup + 1))


def scheduled(step: int, first: float, last: float, shape: str, start: int, end: int) -> float:
    """``first`` up to step ``start``, ``last`` from step ``end`` on, and between them, with p = (step − start) / (end −
    start):

        linear    first + (last − first) · p
        cosine    first + (last − first) · (1 − cos πp) / 2
        constant  first

    Raises ValueError for a negative step or a shape that is not known.

    >>> [scheduled(step, 1.0, 0.0, "linear", 1, 3) for step in range(5)]
    [1.0, 1.0, 0.5, 0.0, 0.0]
    >>> [round(scheduled(step, 1.0, 0.0, "cosine", 0, 4), 4) for step in range(5)]
    [1.0, 0.8536, 0.5, 0.1464, 0.0]
    """
    if step < 0 or shape not in ("linear", "cosine", "constant"):
        raise ValueError(f"need a step from 0 on and a known shape, found {step} and {shape!r}")
    if step <= start:
        return first
    if step >= end:
        return last
    share = (step - start) / (end - start)
    if shape == "constant":
        return first
    return first + (last - first) * (share if shape == "linear" else (1.0 - math.cos(math.pi * share)) / 2.0)


def cosine_decay_with_warmup(step: int, total: int, warmup: int) -> float:
    """As ``linear_decay_with_warmup``, falling along half a cosine: (1 + cos π p) / 2 with p from 0 to 1.

    >>> [round(cosine_decay_with_warmup(step, total=5, warmup=1), 4) for step in range(6)]
    [0.5, 1.0, 0.8536, 0.5, 0.1464, 0.0]
    """
    factor = linear_decay_with_warmup(step, total, warmup)
    return factor if step < warmup else (1.0 + math.cos(math.pi * (1.0 - factor))) / 2.0
