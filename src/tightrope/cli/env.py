"""``tightrope env``: what a bug report needs to say about versions and the machine; nothing of the environment."""

from __future__ import annotations

import json as json_format
from typing import Annotated, Any

from cyclopts import Parameter

from tightrope.storage.run_folder import environment


def env(*, json: Annotated[bool, Parameter(negative=(), help="Print one JSON object.")] = False) -> None:
    """Show versions and the machine, for a bug report."""
    found = {**environment(), **torch_facts()}
    if json:
        print(json_format.dumps(found, sort_keys=True))
        return
    packages = found.pop("packages")
    for name, value in found.items():
        print(f"{name:<20} {value}")
    for name, version in packages.items():
        print(f"{name:<20} {version or 'not installed'}")


def torch_facts() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {"torch_threads": torch.get_num_threads(), "device": "cpu"}
    if torch.cuda.is_available():
        facts |= {"device": "cuda", "gpu": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
    return facts
