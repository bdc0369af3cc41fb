"""Where is the model that a name means? The answer is always a Hugging Face folder on this disk.

    folder          itself
    run folder      its ``export``
    file.gguf       converted once, into the cache
    adapter folder  (peft: adapter_config.json) its base with the adapter merged in, made once, in the cache
    org/model       a model of the Hugging Face hub: from the local hub cache, else downloaded into it

A folder that exists wins over a hub name. Weights are read from safetensors alone: what a pickle runs when it is
opened is nobody's business. The cache is ``$TIGHTROPE_CACHE``, else ``~/.cache/tightrope``.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tightrope.config.errors import TightropeError

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
DOWNLOADED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.spm")
NOT_DOWNLOADED = ("*/*",)
"""Other formats of the same weights (onnx, original) live in folders below."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
SHARDS = "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "*.spm",
)
"""What a tokenizer may be made of, its chat template too."""
HUB_PATIENCE = 20
"""Seconds until a hub that does not answer is given up."""


def resolve_model_folder(name: str | Path, revision: str | None = None) -> Path:
    """The Hugging Face folder meant by ``name``. Raises TightropeError where there is none; no weight is loaded."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return from_gguf(path)
    if not path.exists() and looks_like_hub_name(str(name)):
        return usable(from_hub(str(name), revision), str(name))
    if revision is not None:
        raise TightropeError(
            "model.revision belongs to a hub name, and this is a path", where=str(path), fix="remove model.revision"
        )
    return usable(path, str(path))


def usable(path: Path, where: str) -> Path:
    """A folder to load from: ``path``, its export, or what an adapter and its base make together."""
    for folder in (path, path / "export"):
        if (folder / "config.json").is_file():
            return folder
    if not path.exists():
        raise TightropeError(
            "no such model folder", where=where, fix="give a folder, a run, a .gguf file or a hub name like org/model"
        )
    if (path / "resolved.yaml").is_file():
        raise TightropeError("this run has no export yet", where=where, fix="finish it, or run `tightrope export`")
    if (path / ADAPTER_CONFIG).is_file():
        return from_adapter(path)
    raise TightropeError("not a model folder", where=where, expected="a folder with config.json")


def from_gguf(path: Path) -> Path:
    if not path.is_file():
        raise TightropeError("no such file", where=str(path), expected="a GGUF model")
    from tightrope.models.gguf import converted  # it asks this file for the cache

    return converted(path)


def from_adapter(path: Path) -> Path:
    """The base that the adapter names, a path as seen from the adapter or from here, or a hub name."""
    base = read_json(path / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise TightropeError(
            "this adapter does not say its base",
            where=str(path),
            fix=f"write base_model_name_or_path into {ADAPTER_CONFIG}, or give the merged model folder",
        )
    beside = path / base
    try:
        folder = resolve_model_folder(beside if beside.exists() else base)
    except TightropeError as error:
        raise TightropeError(
            f"the adapter's base cannot be found: {error}",
            where=str(path),
            fix=f"correct base_model_name_or_path in {ADAPTER_CONFIG}",
        ) from error
    from tightrope.models.merge import merged  # imports peft

    return merged(path, folder)


def looks_like_hub_name(name: str) -> bool:
    """``org/model`` or ``model``; a name that begins with a folder that exists is a mistyped path.

    >>> [looks_like_hub_name(name) for name in ("org/model", "gpt2", "./model", "/a/b", "a/b/c", "~/model", "m.yaml")]
    [True, True, False, False, False, False, False]
    """
    if not HUB_NAME.fullmatch(name) or Path(name).suffix in (".yaml", ".safetensors", ".json", ".bin"):
        return False
    return "/" not in name or not Path(name).parent.exists()


def from_hub(name: str, revision: str | None) -> Path:
    """A complete snapshot in the local hub cache is used as it is, so that a run that goes on reads what it began with.

    Refresh it with `hf download org/model`, pin it with ``model.revision``.
    """
    cached = snapshot(name, revision, local=True)
    if cached is not None and complete(cached):
        return cached
    if constants.HF_HUB_OFFLINE:
        raise not_here(name, cached, "HF_HUB_OFFLINE is set")
    try:
        told = HfApi().model_info(name, revision=revision, timeout=HUB_PATIENCE)
        require_safetensors_in([file.rfilename for file in told.siblings or []], name)
        found = snapshot(name, revision, local=False)
        assert found is not None
        return found
    except TightropeError:
        raise
    except GatedRepoError as error:
        raise TightropeError(
            "this model asks you to accept its terms first",
            where=name,
            fix=f"do so on huggingface.co/{name}, `hf auth login`",
        ) from error
    except RevisionNotFoundError as error:
        raise TightropeError(f"the hub has no revision {revision!r} of this model", where=name) from error
    except RepositoryNotFoundError as error:
        raise TightropeError(
            "no such folder, and no model of this name on the Hugging Face hub",
            where=name,
            fix="check the spelling (org/model); a private model needs `hf auth login`",
        ) from error
    except Exception as error:  # which HTTP library fails, and how, is the hub client's own affair
        raise not_here(name, cached, f"the hub does not answer ({type(error).__name__})") from error


def not_here(name: str, cached: Path | None, why: str) -> TightropeError:
    if cached is not None:
        require_safetensors_in([file.name for file in cached.iterdir()], name)
    state = "only partly" if cached is not None else "not"
    return TightropeError(
        f"no such folder, and as a hub name it is {state} in the local cache and {why}",
        where=name,
        fix=f"check the path, or fetch it where there is a network: `hf download {name}`",
    )


def snapshot(name: str, revision: str | None, *, local: bool) -> Path | None:
    """None where ``local`` finds nothing."""
    try:
        found = snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(DOWNLOADED),
            ignore_patterns=list(NOT_DOWNLOADED),
            local_files_only=local,
        )
    except (LocalEntryNotFoundError, HFValidationError):
        if local:
            return None
        raise
    return Path(found)


def complete(folder: Path) -> bool:
    """All weight files are there, and what says how to read them."""
    if (folder / SHARDS).is_file():
        names = set(read_json(folder / SHARDS).get("weight_map", {}).values())
        return (folder / "config.json").is_file() and all((folder / name).is_file() for name in names)
    known = (folder / "config.json").is_file() or (folder / ADAPTER_CONFIG).is_file()
    return known and any(folder.glob("*.safetensors"))


def require_safetensors_in(files: list[str], name: str) -> None:
    """Told from the list of files, before anything is downloaded."""
    if any(file.endswith(".safetensors") for file in files):
        return
    if any(file.endswith(".gguf") for file in files):
        raise TightropeError(
            "this hub model holds GGUF files alone", where=name, fix="download one and give the file's path"
        )
    pickles = sorted(file for file in files if any(Path(file).match(pattern) for pattern in PICKLES))
    if pickles:
        raise pickle_refused(pickles[0], name)


def pickle_refused(file: str, where: str) -> TightropeError:
    return TightropeError(
        f"{file} is a pickle, which can run any code when it is opened",
        where=where,
        expected="*.safetensors",
        fix="convert it with `save_pretrained(folder, safe_serialization=True)` in a place you trust",
    )


def tokenizer_files(folder: Path) -> list[Path]:
    return sorted({file for pattern in TOKENIZER_FILES for file in folder.glob(pattern) if file.is_file()})


def cache_root() -> Path:
    return Path(os.environ.get("TIGHTROPE_CACHE") or "~/.cache/tightrope").expanduser()


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TightropeError(f"cannot be read: {error}", where=str(path)) from error
    if not isinstance(content, dict):
        raise TightropeError("not a JSON object", where=str(path))
    return content
