"""Numbers that follow the step count. ``step`` counts from 0; a run has steps 0 .. total - 1."""

from __future__ import annotations


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


def linear(step: int, total: int, start: float, end: float) -> float:
    """start + (end − start) · step / (total − 1): ``start`` at step 0, ``end`` at the last step and after.

    A run of one step keeps ``start``. Raises ValueError for a negative step or a total below 1.

    >>> [linear(step, total=3, start=1.0, end=0.0) for step in range(4)]
    [1.0, 0.5, 0.0, 0.0]
    """
    if step < 0 or total < 1:
        raise ValueError(f"step must be >= 0 and total >= 1, found {step} and {total}")
    if step == 0:
        return start
    if step >= total - 1:
        return end
    return start + (end - start) * step / (total - 1)
