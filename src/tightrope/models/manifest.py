"""What is in a model folder, and may this stage use it? Answered from small files and headers, before weights load.

base        sha256 of the weights that training started from
tokenizer   sha256 of tokenizer.json and the special tokens
template    sha256 of the chat template, None without one
files       sha256 of each weight file of this folder
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError, safe_open

from tightrope.config.errors import TightropeError

MANIFEST = "tightrope.json"
SCHEMA = 1
READ_BYTES = 1 << 20
HEAD = "score.weight"
HEAD_BIAS = "score.bias"
OTHER_HEADS = ("v_head.", "value_head.", "classifier.", "reward_head.", "regression_layer.", "rm_head.")
"""What other tools call the head of a reward or value model; they read another position or apply more than one matrix,
so their scores would not be the ones they were trained for."""
ADAPTER_FOLDER = "adapter"
Kind = Literal["sft", "policy", "reward", "base"]
NAMES: Mapping[str, str] = {"sft": "an SFT result", "policy": "a policy", "reward": "a reward model", "base": "a base"}
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "add_bos_token", "add_eos_token")


@dataclass(frozen=True, slots=True)
class StageManifest:
    """``fingerprints`` are the scores of fixed texts, for the next stage to reproduce; ``reward_mean`` and
    ``reward_std`` are those of held-out scores; ``accuracy`` is on held-out pairs with its 95 % interval. None where
    not measured.
    """

    kind: Kind
    base: str
    tokenizer: str
    template: str | None
    files: Mapping[str, str]
    dtype: str
    head: str | None = None
    adapter: bool = False
    fingerprints: tuple[float, ...] = ()
    reward_mean: float | None = None
    reward_std: float | None = None
    held_out_pairs: int | None = None
    accuracy: float | None = None
    accuracy_interval: tuple[float, float] | None = None
    schema: int = SCHEMA


def write_manifest(folder: Path, manifest: StageManifest) -> None:
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> StageManifest | None:
    """None for a folder that no stage wrote. Raises TightropeError for one that cannot be understood."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields["schema"] != SCHEMA:
            raise ValueError(f"schema {fields['schema']}, this version reads {SCHEMA}")
        if fields["kind"] not in NAMES:
            raise ValueError(f"unknown kind {fields['kind']!r}")
        fields["fingerprints"] = tuple(fields["fingerprints"])
        if fields["accuracy_interval"] is not None:
            fields["accuracy_interval"] = tuple(fields["accuracy_interval"])
        return StageManifest(**fields)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TightropeError(f"the stage manifest cannot be read: {error}", where=str(path)) from error


def require_kind(folder: Path, kind: Literal["policy", "reward"]) -> None:
    """Raises TightropeError unless the folder can serve as policy (base, SFT result or policy) or reward model."""
    manifest = read_manifest(folder)
    if kind == "policy":
        if manifest is not None and manifest.kind == "reward":
            raise TightropeError(f"{folder} is a reward model, not a policy; give an SFT result or a base model")
        return
    if manifest is not None and manifest.kind != "reward":
        raise TightropeError(
            f"{folder} is {NAMES[manifest.kind]}, not a reward model; train one with `tightrope rm train`"
        )
    shapes = tensor_shapes(folder)
    if HEAD in shapes:
        require_one_score(folder, shapes)
        return
    other = sorted(name for name in shapes if name.startswith(OTHER_HEADS))
    if other:
        raise TightropeError(
            f"a head named {other[0]} is not supported",
            where=str(folder),
            expected=f"AutoModelForSequenceClassification with num_labels 1 ({HEAD})",
        )
    what = f"{folder} is a reward model without its head" if manifest else f"{folder} is not a reward model"
    raise TightropeError(f"{what} ({HEAD} is not in its weights); train one with `tightrope rm train`")


def require_one_score(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    labels = shapes[HEAD][0] if len(shapes[HEAD]) == 2 else 0
    if labels != 1 or shapes.get(HEAD_BIAS, (1,)) != (1,):
        raise TightropeError(
            "a reward model gives one number", where=str(folder), expected="num_labels 1", found=f"{labels} labels"
        )


def weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors, from the files' headers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    shapes[name] = tuple(tensors.get_slice(name).get_shape())
        except (OSError, SafetensorError) as error:
            raise TightropeError(f"the weights cannot be read: {error}", where=str(file)) from error
    return shapes


def file_hashes(folder: Path) -> dict[str, str]:
    """sha256 of each weight file, by name."""
    return {file.name: sha256_of(file) for file in weight_files(folder)}


def base_hash(folder: Path) -> str:
    """One hash of all weight files, whatever their names."""
    return file_set_hash(file_hashes(folder))


def file_set_hash(hashes: Mapping[str, str]) -> str:
    return hashlib.sha256("".join(sorted(hashes.values())).encode()).hexdigest()


def tokenizer_hash(folder: Path) -> str:
    """Equal where the same text becomes the same ids with the same special tokens."""
    digest = hashlib.sha256()
    for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"):
        if (folder / name).is_file():
            digest.update(name.encode() + bytes.fromhex(sha256_of(folder / name)))
    config = folder / "tokenizer_config.json"
    if config.is_file():
        fields = json.loads(config.read_text(encoding="utf-8"))
        digest.update(json.dumps({key: fields.get(key) for key in SPECIAL_TOKENS}, sort_keys=True).encode())
    return digest.hexdigest()


def template_hash(folder: Path) -> str | None:
    """Of the chat template's text, wherever transformers keeps it."""
    if (folder / "chat_template.jinja").is_file():
        return sha256_of(folder / "chat_template.jinja")
    config = folder / "tokenizer_config.json"
    template = json.loads(config.read_text(encoding="utf-8")).get("chat_template") if config.is_file() else None
    return None if template is None else hashlib.sha256(json.dumps(template).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
