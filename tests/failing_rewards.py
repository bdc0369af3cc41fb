"""A reward for the tests that goes wrong while a file says how."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from tightrope.types import Sample

FAULT_FILE = "TIGHTROPE_TEST_FAULT"


def share_of_a(samples: Sequence[Sample]) -> object:
    fault = Path(os.environ[FAULT_FILE])
    values: list[object] = [sample.response.count("a") / (1 + len(sample.response)) for sample in samples]
    kind = fault.read_text() if fault.exists() else ""
    if kind == "raises":
        raise ConnectionError("the service went away")
    if kind == "sleeps":
        time.sleep(3600)
    if kind == "short":
        return values[:-1]
    bad: dict[str, object] = {"nan": float("nan"), "inf": float("inf"), "text": "good"}
    return [bad[kind], *values[1:]] if kind in bad else values
