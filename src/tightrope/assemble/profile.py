"""Where did the time of a run go, and how far is each phase from its arithmetic?

The floor of a phase is the operations of its matrix products on real tokens (models/work.py) at the rate of a large
product, measured on the spot: what nothing can beat. CPU seconds of all threads are compared with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch

from tightrope.assemble.parts import Assembled
from tightrope.kernels.products import product
from tightrope.models.backbone import Network
from tightrope.models.work import Computed
from tightrope.training.timing import Spent, peak_bytes

SQUARE = 1024
REPEATS = 10
REST = "rest"
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Phase:
    """``floor_seconds``: None where a phase has no products."""

    spent: Spent
    computed: Computed
    floor_seconds: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """``phases`` rollout, score, credit and update hold the probes of the run too; ``rest`` is what is in none."""

    steps: int
    threads: int
    operations_per_second: float
    phases: Mapping[str, Phase]

    def to_json(self) -> str:
        phases = {name: flat(phase) for name, phase in self.phases.items()}
        facts = {"steps": self.steps, "threads": self.threads, "operations_per_second": self.operations_per_second}
        return json.dumps(facts | {"phases": phases}, indent=1) + "\n"

    def table(self) -> str:
        """A line a phase, seconds of the whole run."""
        head = ("phase", "wall s", "CPU s", "floor s", "over", "tokens", "filling", "again", "peak MiB")
        lines = [head, *(cells(name, phase) for name, phase in self.phases.items())]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        rows = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        rate = self.operations_per_second / 1e9
        return "\n".join(
            [
                f"profile of {self.steps} steps, {self.threads} threads; floor: products of real tokens at "
                f"{rate:.0f} GFLOP a CPU second",
                *rows,
            ]
        )


def flat(phase: Phase) -> dict[str, float | int | None]:
    return asdict(phase.spent) | asdict(phase.computed) | {"floor_seconds": phase.floor_seconds}


def cells(name: str, phase: Phase) -> tuple[str, ...]:
    spent, computed, floor = phase.spent, phase.computed, phase.floor_seconds
    counts = (computed.tokens, computed.filling, computed.recomputed) if computed.tokens else ()
    return (
        name,
        f"{spent.wall_seconds:.1f}",
        f"{spent.cpu_seconds:.1f}",
        "" if floor is None else f"{floor:.1f}",
        f"{spent.cpu_seconds / floor:.1f}x" if floor else "",
        *(f"{count}" for count in counts or ("",) * 3),
        f"{spent.peak_bytes / MIB:.0f}",
    )


class StepsMeasured:
    """From here on: what loading, constants and the self-test took is not in it."""

    def __init__(self, built: Assembled) -> None:
        self._core = built.run.core
        roles = built.roles
        bodies = [role.network for role in (roles.policy, roles.reference, roles.critic, roles.reward) if role]
        self._networks: list[Network] = list({id(network): network for network in bodies}.values())
        self._policy = built.result
        self._wall, self._cpu, self._step = time.perf_counter(), time.process_time(), self._core.progress.step
        self._before = self._counts()
        self._spent = self._core.clock.spent()

    def profile(self) -> Profile:
        spent = {name: difference(now, self._spent.get(name)) for name, now in self._core.clock.spent().items()}
        rest = Spent(
            time.perf_counter() - self._wall - sum(each.wall_seconds for each in spent.values()),
            time.process_time() - self._cpu - sum(each.cpu_seconds for each in spent.values()),
            peak_bytes(),
        )
        computed = {name: now - self._before[name] for name, now in self._counts().items()}
        rate = operations_per_second()
        phases = {
            name: Phase(each, computed.get(name, Computed()), floor(computed.get(name), rate))
            for name, each in (spent | {REST: rest}).items()
        }
        return Profile(self._core.progress.step - self._step, torch.get_num_threads(), rate, phases)

    def _counts(self) -> dict[str, Computed]:
        """By phase. Networks score and train; what they sample is counted by its tokens."""
        clock = self._core.clock
        tokens, actions = clock.sampled_tokens, clock.sampled_actions
        sampling = self._policy.network.sampling_operations(tokens, actions, self._policy.adapter) if tokens else 0
        return {
            "rollout": Computed(tokens, operations=sampling),
            "score": sum((network.computed["scored"] for network in self._networks), Computed()),
            "update": sum((network.computed["trained"] for network in self._networks), Computed()),
        }


def difference(now: Spent, before: Spent | None) -> Spent:
    if before is None:
        return now
    return Spent(now.wall_seconds - before.wall_seconds, now.cpu_seconds - before.cpu_seconds, now.peak_bytes)


def floor(computed: Computed | None, rate: float) -> float | None:
    return None if computed is None or not computed.operations else computed.operations / rate


@torch.no_grad()
def operations_per_second() -> float:
    """Of large float32 products, a CPU second: the best of some."""
    left, right = torch.randn(SQUARE, SQUARE), torch.randn(SQUARE, SQUARE)
    best = float("inf")
    for _ in range(REPEATS):
        begin = time.process_time()
        product(left, right)
        best = min(best, time.process_time() - begin)
    return 2 * SQUARE**3 / best
