"""Checkpoints that a kill, a full disk or a broken disk cannot take away.

    checkpoints/iter-000120/manifest.json    what belongs to it: size and sha256 of each file, and its own
                            state.json       the state tree, with the names of its tensors
                            policy.safetensors ...   one file for each top-level key that holds tensors

Written as ``.tmp-000120-<pid>`` beside its place, each file fsynced, the manifest last, then renamed, then the folder
fsynced: under its name a checkpoint is complete or not there. Readers trust no name: they verify every byte, take the
newest that is valid, and keep an invalid one as ``iter-000120.invalid-<reason>``. There is one writer (the run's
LOCK), so a ``.tmp`` or ``.trash`` folder found at the start belongs to a process that is gone.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from torch import Tensor

from tightrope.config.errors import CheckpointMissed, TightropeError
from tightrope.protocols import State
from tightrope.storage import files
from tightrope.storage.checkpoint_state import StateEncoder, decode
from tightrope.storage.manifest_file import CheckpointManifest, FileFact, InvalidManifest
from tightrope.storage.tensor_file import read_tensor_file, tensor_file_bytes, tensor_file_chunks

MANIFEST, STATE = "manifest.json", "state.json"
NAME = re.compile(r"iter-(\d{6,})")
ASIDE = re.compile(r"\.replaced-(\d{6,})")
TOP_LEVEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
MAX_MISSES = 3
SPARE_BYTES = 1 << 20  # headers, JSON and folder entries of one checkpoint


@dataclass(frozen=True, slots=True)
class Invalid:
    """Why a folder is no checkpoint: a short reason for its name, and a sentence."""

    reason: str
    detail: str


class CheckpointStore:
    """``facts`` go into each manifest: config_hash, data_fingerprint, versions, device, dtype, threads."""

    def __init__(
        self,
        folder: Path,
        keep: int = 2,
        facts: Mapping[str, Any] | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.folder = folder
        self.misses = 0
        self._keep = keep
        self._facts = dict(facts or {})
        self._report = report or report_on_stderr

    def save(self, step: int, state: Mapping[str, State]) -> Path:
        """Write ``iter-<step>``, then drop all but the newest ``keep``.

        Raises CheckpointMissed when the disk does not take it (go on, with a loud warning) and TightropeError after
        three misses in a row. A checkpoint of the same step, from before a resume, is replaced.
        """
        tree, tensors = encode_tree(state)
        place = self.folder / f"iter-{step:06d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clear_leftovers()
            self._check_space(tensors)
            self._write(step, place, tree, tensors)
        except OSError as error:
            raise self._missed(step, error) from error
        self.misses = 0
        self._prune(place)
        return place

    def load_latest(self) -> tuple[int, Mapping[str, State]] | None:
        """The newest valid checkpoint, or None when there never was one.

        Raises TightropeError when there are checkpoints and none is valid: starting over would hide the loss.
        """
        try:
            self._clear_leftovers()
            return self._newest_valid()
        except OSError as error:
            raise TightropeError(
                "the checkpoints cannot be read", where=str(error.filename or self.folder), found=error.strerror
            ) from error

    def _newest_valid(self) -> tuple[int, Mapping[str, State]] | None:
        for step, place in self._newest_first():
            found = verify(place)
            if isinstance(found, CheckpointManifest):
                return step, read_state(place, found)
            kept_as = free_name(place, found.reason)
            place.rename(kept_as)
            self._report(f"checkpoint {place} is not valid ({found.detail}); kept as {kept_as.name}")
        invalid = sorted(path.name for path in self.folder.glob("iter-*.invalid-*"))
        if invalid:
            raise TightropeError(
                "no valid checkpoint is left",
                where=str(self.folder),
                found=", ".join(invalid),
                fix="put back a good copy, or start a new run with another output",
            )
        return None

    def valid_steps(self) -> list[int]:
        """Steps whose checkpoint verifies, newest first. Changes nothing on disk."""
        return [step for step, place in self._newest_first() if isinstance(verify(place), CheckpointManifest)]

    def manifest(self, step: int) -> CheckpointManifest:
        """Raises TightropeError when the checkpoint of this step is missing or not valid."""
        place = self.folder / f"iter-{step:06d}"
        found = verify(place)
        if isinstance(found, Invalid):
            raise TightropeError("this checkpoint is not valid", where=str(place), found=found.detail)
        return found

    def _newest_first(self) -> list[tuple[int, Path]]:
        """Every folder that has a checkpoint's name."""
        places: Iterable[Path] = self.folder.iterdir() if self.folder.is_dir() else []
        return sorted(((int(m[1]), p) for p in places if (m := NAME.fullmatch(p.name))), reverse=True)

    def _write(self, step: int, place: Path, tree: Mapping[str, Any], tensors: Mapping[str, dict[str, Tensor]]) -> None:
        previous = [earlier for earlier, _ in self._newest_first() if earlier < step]
        temporary = self.folder / f".tmp-{step:06d}-{os.getpid()}"
        try:
            temporary.mkdir()
            facts: dict[str, FileFact] = {}
            for key, content in tensors.items():
                name = f"{key}.safetensors"
                facts[name] = FileFact(*files.write_new_file(temporary / name, tensor_file_chunks(content)))
            text = json.dumps(tree, ensure_ascii=True, allow_nan=True).encode()
            facts[STATE] = FileFact(*files.write_new_file(temporary / STATE, [text]))
            manifest = CheckpointManifest(step, previous[0] if previous else None, facts, self._facts)
            files.write_new_file(temporary / MANIFEST, [manifest.to_bytes()])
            files.sync_folder(temporary)
            self._put_in_place(step, temporary, place)
        except BaseException:
            self._try_to_remove(temporary)
            raise

    def _put_in_place(self, step: int, temporary: Path, place: Path) -> None:
        """Between the two renames of a replacement the old one waits aside, where ``_clear_leftovers`` finds it."""
        aside = self.folder / f".replaced-{step:06d}"
        if place.exists():
            place.rename(aside)
        try:
            temporary.rename(place)
        except BaseException:
            if aside.exists():
                aside.rename(place)
            raise
        files.sync_folder(self.folder)
        self._try_to_remove(aside)

    def _clear_leftovers(self) -> None:
        """Finish what a process that is gone had begun."""
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else []:
            if match := ASIDE.fullmatch(path.name):
                place = self.folder / f"iter-{match[1]}"
                if not place.exists():
                    path.rename(place)
                    continue
            if path.name.startswith((".tmp-", ".trash-", ".replaced-")):
                files.remove_tree(path)

    def _check_space(self, tensors: Mapping[str, dict[str, Tensor]]) -> None:
        needed = SPARE_BYTES + sum(tensor_file_bytes(content) for content in tensors.values())
        free = files.free_bytes(self.folder)
        if free < needed:
            raise files.disk_full(self.folder, needed, free)

    def _prune(self, newest: Path) -> None:
        """Drop the oldest beyond ``keep``, after the new one was read back. A failure here costs space, no data."""
        try:
            old = [place for _, place in self._newest_first() if place != newest][max(self._keep - 1, 0) :]
            found = verify(newest) if old else None
            if isinstance(found, Invalid):
                self._report(f"checkpoint {newest} does not read back ({found.detail}); older ones are kept")
                return
            for place in old:
                trash = self.folder / f".trash-{place.name}"
                place.rename(trash)
                files.remove_tree(trash)
        except (OSError, TightropeError) as error:
            self._report(f"older checkpoints could not be removed: {error}")

    def _missed(self, step: int, error: OSError) -> TightropeError:
        self.misses += 1
        what = f"checkpoint of step {step} was not saved: {error.strerror or error}"
        if self.misses >= MAX_MISSES:
            return TightropeError(
                f"{what}; {self.misses} in a row", where=str(self.folder), fix="free some space, then resume"
            )
        missed = CheckpointMissed(what, where=str(self.folder), fix="free some space; the previous one is kept")
        missed.misses = self.misses
        return missed

    def _try_to_remove(self, path: Path) -> None:
        """What stays is cleared by the next save."""
        try:
            files.remove_tree(path)
        except OSError as error:
            self._report(f"{path} could not be removed: {error.strerror}")


def encode_tree(state: Mapping[str, State]) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    tree: dict[str, Any] = {}
    tensors: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        if not TOP_LEVEL_KEY.fullmatch(key):
            raise TightropeError("a part of the state has a name that cannot be a file", found=repr(key))
        encoder = StateEncoder()
        try:
            tree[key] = encoder.encode(value)
        except TightropeError as error:
            raise TightropeError(error.what, where=f"{key}/{error.where}", found=error.found) from error
        if encoder.tensors:
            tensors[key] = encoder.tensors
    return tree, tensors


def verify(place: Path) -> CheckpointManifest | Invalid:
    """Reads every byte. Raises TightropeError where the files may not be read at all, or come from a later version."""
    try:
        manifest = CheckpointManifest.from_bytes((place / MANIFEST).read_bytes())
        for name, fact in manifest.files.items():
            digest, size = files.sha256_of(place / name)
            if size != fact.bytes:
                return Invalid("size", f"{name} has {size} bytes, the manifest says {fact.bytes}")
            if digest != fact.sha256:
                return Invalid("sha256", f"{name} differs from its sha256")
    except InvalidManifest as error:
        return Invalid("manifest", f"{MANIFEST}: {error}")
    except FileNotFoundError as error:
        return Invalid("missing-file", f"{Path(str(error.filename)).name} is missing")
    except PermissionError as error:
        raise TightropeError("a checkpoint may not be read", where=str(error.filename), found=error.strerror) from error
    except OSError as error:
        return Invalid("unreadable", f"{error.strerror}")
    named = NAME.fullmatch(place.name)
    if named and int(named[1]) != manifest.step:
        return Invalid("step", f"the folder says step {int(named[1])}, the manifest {manifest.step}")
    return manifest


def read_state(place: Path, manifest: CheckpointManifest) -> dict[str, State]:
    """The state of a verified checkpoint."""
    try:
        tree = cast(dict[str, Any], json.loads((place / STATE).read_bytes()))
        state: dict[str, State] = {}
        for key, value in tree.items():
            name = f"{key}.safetensors"
            state[key] = decode(value, read_tensor_file(place / name) if name in manifest.files else {})
        return state
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise TightropeError(f"a verified checkpoint cannot be read: {error}", where=str(place)) from error


def free_name(place: Path, reason: str) -> Path:
    """A name beside ``place`` that says why it is not used."""
    name, copy = f"{place.name}.invalid-{reason}", 2
    while place.with_name(name).exists():
        name, copy = f"{place.name}.invalid-{reason}-{copy}", copy + 1
    return place.with_name(name)


def report_on_stderr(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)
