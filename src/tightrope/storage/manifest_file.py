"""``manifest.json`` of a checkpoint. It holds its own sha256 and has one spelling, so that every changed byte shows."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tightrope.config.errors import TightropeError

SCHEMA = 1
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class InvalidManifest(ValueError):
    """The bytes are not a manifest that this code wrote."""


@dataclass(frozen=True, slots=True)
class FileFact:
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """``parent`` is the step of the checkpoint before; ``facts`` are config_hash, versions, device, dtype, threads...

    >>> manifest = CheckpointManifest(2, None, {"state.json": FileFact("ab", 2)}, {"dtype": "float32"})
    >>> CheckpointManifest.from_bytes(manifest.to_bytes()) == manifest
    True
    """

    step: int
    parent: int | None
    files: Mapping[str, FileFact]
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_bytes(self) -> bytes:
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "step": self.step,
            "parent": self.parent,
            "files": {name: {"sha256": fact.sha256, "bytes": fact.bytes} for name, fact in self.files.items()},
            "facts": dict(self.facts),
        }
        own = hashlib.sha256(spell(content)).hexdigest()
        return spell({**content, "sha256": own})

    @staticmethod
    def from_bytes(data: bytes) -> CheckpointManifest:
        """Raises InvalidManifest for any byte that differs, TightropeError for another schema."""
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise InvalidManifest("not JSON") from error
        if not isinstance(content, dict):
            raise InvalidManifest("not a JSON object")
        entries = cast(dict[str, Any], content)
        own = entries.pop("sha256", None)
        if hashlib.sha256(spell(entries)).hexdigest() != own or spell({**entries, "sha256": own}) != data:
            raise InvalidManifest("differs from its sha256")
        if entries.get("schema") != SCHEMA:
            raise TightropeError(
                "a checkpoint was written by another version of Tightrope",
                found=f"schema {entries.get('schema')}",
                expected=f"schema {SCHEMA}",
                fix="resume with the version that wrote it",
            )
        try:
            files = {name: FileFact(fact["sha256"], fact["bytes"]) for name, fact in entries["files"].items()}
            manifest = CheckpointManifest(entries["step"], entries["parent"], files, entries["facts"])
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidManifest("lacks an entry") from error
        if not all(FILE_NAME.fullmatch(name) for name in files):
            raise InvalidManifest("names a file outside its folder")
        return manifest


def spell(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode()


def differing_facts(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What a resume should name: bit-equality is promised only where these agree.

    >>> differing_facts({"threads": 1, "device": "cpu"}, {"threads": 2, "device": "cpu"})
    ['threads: 1 when saved, 2 now']
    """
    names = sorted(set(saved) | set(now))
    return [f"{n}: {saved.get(n)} when saved, {now.get(n)} now" for n in names if saved.get(n) != now.get(n)]
