"""One process: every sum is already complete."""

from __future__ import annotations

from collections.abc import Mapping


class SingleProcess:
    rank = 0
    world_size = 1

    def sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        return dict(numbers)
