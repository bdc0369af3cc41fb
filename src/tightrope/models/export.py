"""How does a role become a folder that other tools load? Plain safetensors beside the source's own tokenizer files.

    export/            AutoModelForCausalLM, or AutoModelForSequenceClassification with one label for a reward model
    export/adapter/    with LoRA: the adapter alone, for PeftModel over the base; the weights above are merged
A folder appears complete or not at all. Tokenizer files and chat template are copied byte for byte.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from tightrope.config.errors import TightropeError
from tightrope.maths.diagnostics import Interval
from tightrope.models.load import eos_ids, load_tokenizer, read_json
from tightrope.models.lora import adapter_layers, merged_delta, save_adapter, shape_of
from tightrope.models.manifest import (
    ADAPTER_FOLDER,
    HEAD,
    Kind,
    StageManifest,
    base_hash,
    file_hashes,
    template_hash,
    tokenizer_hash,
    write_manifest,
)
from tightrope.models.roles import ADAPTER_MARK, Role
from tightrope.models.sources import tokenizer_files

BASE_LAYER = ".base_layer."
"""Where peft keeps the original weight of a layer with adapters."""


@dataclass(frozen=True, slots=True)
class RewardFacts:
    """What was measured on a finished reward model. ``accuracy`` None: no held-out pairs; ``mean`` and ``std`` None:
    the data is no longer there.
    """

    fingerprints: Sequence[float]
    mean: float | None
    std: float | None
    held_out_pairs: int
    accuracy: Interval | None


@dataclass(frozen=True, slots=True)
class Form:
    """What is written: merged weights, the adapter, or both (the adapter inside the merged folder). ``dtype`` None:
    as trained; the adapter and a reward head stay float32. ``card`` is the text of README.md.
    """

    merged: bool = True
    adapter: bool = True
    dtype: torch.dtype | None = None
    card: str | None = None


WHOLE = Form()
CARD = "README.md"


def export_policy(role: Role, source: Path, folder: Path, stage: str, form: Form = WHOLE) -> None:
    """``source`` is the folder the role started from. Raises TightropeError where the folder cannot be written."""
    with appearing(folder) as beside:
        config = read_json(source / "config.json")
        if (source / "generation_config.json").is_file():
            shutil.copyfile(source / "generation_config.json", beside / "generation_config.json")
        _write(role, source, beside, config, merged_weights(role, role.network.model), form)
        if form.merged:
            write_manifest(beside, _manifest("sft" if stage == "sft" else "policy", role, source, beside, form))


def export_reward(role: Role, source: Path, folder: Path, facts: RewardFacts, form: Form = WHOLE) -> None:
    assert role.head is not None
    prefix = role.network.model.base_model_prefix
    weights = {f"{prefix}.{name}": value for name, value in merged_weights(role, role.network.trunk).items()}
    weights[HEAD] = role.head.weight.detach().cpu()[None]
    with appearing(folder) as beside:
        config = read_json(source / "config.json") | {
            "architectures": [classifier_of(role)],
            "id2label": {"0": "score"},
            "label2id": {"score": 0},
            "pad_token_id": reward_pad_id(source),
        }
        _write(role, source, beside, config, weights, form)
        if form.merged:
            write_manifest(beside, _manifest("reward", role, source, beside, form, facts))


def classifier_of(role: Role) -> str:
    """The transformers class that scores with this folder. Where there is none (Granite, Cohere) the name of the trunk:
    the folder serves as reward model here, and AutoModel reads it, without the head.
    """
    names: Mapping[str, str] = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    return names.get(role.network.family.name, type(role.network.trunk).__name__)


@torch.no_grad()
def merged_weights(role: Role, body: nn.Module) -> dict[str, Tensor]:
    """Weights of ``body`` on the CPU, the role's adapter added in, other adapters left out, tied ones once."""
    layers = {} if role.adapter is None else adapter_layers(role.network, role.adapter)
    weights: dict[str, Tensor] = {}
    for name, parameter in body.named_parameters():
        if ADAPTER_MARK not in name:
            weights[name.replace(BASE_LAYER, ".")] = parameter.detach().cpu().contiguous()
    prefix = "" if body is role.network.trunk else f"{role.network.model.base_model_prefix}."
    for name, layer in layers.items():
        assert role.adapter is not None
        plain = weights[f"{prefix}{name}.weight"]
        delta = merged_delta(layer, role.adapter).cpu()
        weights[f"{prefix}{name}.weight"] = (plain.float() + delta.float()).to(plain.dtype)
    return weights


def _write(
    role: Role, source: Path, folder: Path, config: dict[str, Any], weights: dict[str, Tensor], form: Form
) -> None:
    for file in tokenizer_files(source):
        shutil.copyfile(file, folder / file.name)
    if form.card is not None:
        (folder / CARD).write_text(form.card, encoding="utf-8")
    if form.adapter and role.adapter is not None:
        # In float32, whatever the weights are stored in.
        head = {} if role.head is None or HEAD not in weights else {HEAD: weights[HEAD]}
        save_adapter(role.network, role.adapter, shape_of(role.network, role.adapter), folder / ADAPTER_FOLDER, head)
    if not form.merged:
        _only_the_adapter(folder)
        return
    config.pop("torch_dtype", None)
    config["dtype"] = _dtype_name(role, form)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if form.dtype is not None:
        weights = {name: value if name == HEAD else value.to(form.dtype) for name, value in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _only_the_adapter(folder: Path) -> None:
    """The adapter's files stand in the folder itself, where ``PeftModel.from_pretrained(base, folder)`` looks."""
    for file in (folder / ADAPTER_FOLDER).iterdir():
        if not (folder / file.name).exists():
            file.rename(folder / file.name)
    shutil.rmtree(folder / ADAPTER_FOLDER)
    (folder / "generation_config.json").unlink(missing_ok=True)


def _dtype_name(role: Role, form: Form) -> str:
    return str(role.network.dtype if form.dtype is None else form.dtype).removeprefix("torch.")


def reward_pad_id(source: Path) -> int | None:
    """transformers reads the score before the pads. Where pad is EOS it would skip the final EOS, which was trained on.

    None then: transformers reads the very last token of a single row and refuses a padded batch.
    """
    tokenizer = load_tokenizer(source)
    pad: Any = tokenizer.pad_token_id
    return None if pad in eos_ids(source, tokenizer) else pad


def _manifest(
    kind: Kind, role: Role, source: Path, folder: Path, form: Form, facts: RewardFacts | None = None
) -> StageManifest:
    interval = None if facts is None or facts.accuracy is None else facts.accuracy
    return StageManifest(
        kind=kind,
        base=base_hash(source),
        tokenizer=tokenizer_hash(folder),
        template=template_hash(folder),
        files=file_hashes(folder),
        dtype=_dtype_name(role, form),
        head=None if facts is None else HEAD,
        adapter=form.adapter and role.adapter is not None,
        fingerprints=() if facts is None else tuple(facts.fingerprints),
        reward_mean=None if facts is None else facts.mean,
        reward_std=None if facts is None else facts.std,
        held_out_pairs=None if facts is None else facts.held_out_pairs,
        accuracy=None if interval is None else interval.estimate,
        accuracy_interval=None if interval is None else (interval.low, interval.high),
    )


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A new folder to fill; it takes its name, durably, when the block ends without an error."""
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        yield beside
        for path in [*beside.rglob("*"), beside]:
            _sync(path)
        _replace(beside, folder)
        _sync(folder.parent)
    except OSError as error:
        raise TightropeError(f"the model cannot be written: {error}", where=str(folder)) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _replace(new: Path, folder: Path) -> None:
    """A folder cannot be renamed over a full one, so the old one steps aside until the new one is in place."""
    if not folder.exists():
        os.rename(new, folder)
        return
    old = new.with_suffix(".old")
    os.rename(folder, old)
    try:
        os.rename(new, folder)
    except OSError:
        os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
