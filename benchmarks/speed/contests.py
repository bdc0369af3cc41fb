"""Who runs against whom, on what, how often? Sides take turns within a contest: A B C A B C."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.speed.sizes import SIZES

ROOT = Path(__file__).parents[2]
PEERS = Path(sys.prefix) / "bench-peers"
"""The environment of TRL 1.12.0; ``stages`` in it holds 1.16.0."""
PEER = "peer"
OURS = ("same_maths", "default", "cached")
"""Sides of ours; ``ours.mathematics_of`` says what each is."""
PPO_ALONE = ("cached",)
"""Where nothing is kept from one pass to the next there is nothing to compute only once."""


@dataclass(frozen=True, slots=True)
class Contest:
    """``steps`` are counted for each side, after ``warm`` that are not. ``apart``: a process of its own for each step,
    where all sides together would not fit into memory; its first step is then counted too.
    """

    stage: str
    size: str
    steps: int
    warm: int = 1
    apart: bool = False

    @property
    def name(self) -> str:
        return f"{self.stage}_{self.size}"

    def among(self, sides: Sequence[str]) -> list[str]:
        """Those of ``sides`` that take part.

        >>> Contest("sft", "S", steps=1).among(["default", "cached"])
        ['default']
        """
        return [side for side in sides if self.stage == "ppo" or side not in PPO_ALONE]


CONTESTS = (
    Contest("ppo", "S", steps=5),
    Contest("ppo", "M", steps=2, warm=0, apart=True),
    Contest("sft", "S", steps=10, warm=2),
    Contest("reward", "S", steps=10, warm=2),
    Contest("sft", "M", steps=4),
    Contest("reward", "M", steps=4),
)


@dataclass(frozen=True, slots=True)
class Command:
    words: Sequence[str]
    environment: Mapping[str, str]


def command_of(contest: Contest, side: str, folder: Path, peers: Path = PEERS) -> Command:
    """``folder``: the material of this size."""
    if side == PEER:
        module = ["benchmarks.speed.peer_ppo"] if contest.stage == "ppo" else [*PEER_STAGES, contest.stage]
        python = str(peers / "bin" / "python")
        newer = "" if contest.stage == "ppo" else str(peers / "stages")
        return Command(
            [python, "-m", *module, contest.size, str(folder)], {**os.environ, **ONE_THREAD, "PYTHONPATH": newer}
        )
    if contest.stage == "ppo":
        return ours([contest.size, side])
    return ours([contest.stage, contest.size, side], "our_stages")


def ours(words: Sequence[str], module: str = "ours") -> Command:
    return Command([sys.executable, "-m", f"benchmarks.speed.{module}", *words], {**os.environ, **ONE_THREAD})


PEER_STAGES = ["benchmarks.speed.peer_stages"]
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


def chosen(sizes: Sequence[str], stages: Sequence[str], steps: int | None) -> list[Contest]:
    """
    >>> [(contest.name, contest.steps) for contest in chosen(["S"], ["ppo", "sft"], 2)]
    [('ppo_S', 2), ('sft_S', 2)]
    """
    unknown = set(sizes) - set(SIZES)
    if unknown:
        raise ValueError(f"no such size: {sorted(unknown)}")
    return [
        contest if steps is None else Contest(contest.stage, contest.size, steps, contest.warm, contest.apart)
        for contest in CONTESTS
        if contest.size in sizes and contest.stage in stages
    ]
