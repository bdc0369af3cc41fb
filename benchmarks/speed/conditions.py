"""Under which conditions were the numbers taken? Machine, versions of both sides, load, date."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.speed.contests import PEERS, ROOT
from tightrope.storage.run_folder import environment

PEER_PACKAGES = ("trl", "torch", "transformers", "accelerate")


def conditions() -> dict[str, Any]:
    ours = environment()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": commit(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": 1,
        "load_1_min": round(os.getloadavg()[0], 2),
        "python": ours["python"],
        "packages": {name: version for name, version in ours["packages"].items() if name in PEER_PACKAGES},
        "peer": {"ppo": peer_versions(PEERS), "sft, reward": peer_versions(PEERS / "stages")},
    }


def commit() -> str:
    """With a mark where the tree differs from it."""
    words = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def peer_versions(folder: Path) -> dict[str, str]:
    places = [str(place) for place in folder.glob("lib/python*/site-packages")] or [str(folder)]
    found = {each.metadata["Name"].lower(): each.version for each in distributions(path=places)}
    return {name: found[name] for name in PEER_PACKAGES if name in found}


def told(facts: dict[str, Any]) -> str:
    """One line of Markdown."""
    peers = ", ".join(f"TRL {versions['trl']} ({stage})" for stage, versions in facts["peer"].items() if versions)
    ours = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    machine = (
        f"{facts['cpu']}, {facts['threads']} thread on {facts['cores']} cores, load {facts['load_1_min']} at the start"
    )
    if "gflops" in facts:
        machine += f", matrix products at {facts['gflops']:.0f} GFLOP/s"
    return (
        f"{facts['date']}, commit {facts['commit']}; {machine}; Python {facts['python']}, {ours}; {peers or 'no peer'}."
    )
