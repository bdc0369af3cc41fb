"""On how many threads does this run compute?

On those that were asked for (``--threads``, ``OMP_NUM_THREADS``); a resumed run on as many as before, which its last
bits depend on; otherwise on the cores that this process may use. Idle threads sleep (``cli/main.py``), so that more of
them are not slower than one on a busy machine: ``python -m benchmarks.speed.threads``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import torch

ASKED = "OMP_NUM_THREADS"
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def choose_threads(environment: Mapping[str, str] = os.environ, recorded: int | None = None) -> int:
    """``recorded``: of the run that goes on; more than there are cores are taken too, they only share."""
    if ASKED not in environment:
        torch.set_num_threads(recorded or min(torch.get_num_threads(), cores_allowed()))
    return torch.get_num_threads()


def cores_allowed(quota: Path = QUOTA) -> int:
    """A container is often given less than the cores it sees; a thread above that waits for the others' time slices."""
    try:
        granted, period = quota.read_text(encoding="ascii").split()
        return max(1, math.ceil(int(granted) / int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return os.cpu_count() or 1


def recorded_threads(env_file: Path) -> int | None:
    """Of the run's ``env.json``; None where it says nothing usable."""
    try:
        found = json.loads(env_file.read_text(encoding="utf-8")).get("threads")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, int) and found > 0 else None
