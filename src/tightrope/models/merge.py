"""A bare peft adapter and its base become one plain model folder, made once and kept in the cache.

Everything downstream (roles, hashes, export) then sees a model like any other. The sum is taken and stored in float32:
in bfloat16 most of a small adapter would be rounded away.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tightrope.config.errors import TightropeError
from tightrope.models.manifest import base_hash, sha256_of
from tightrope.models.sources import ADAPTER_CONFIG, cache_root, pickle_refused, read_json, tokenizer_files

ADAPTER_WEIGHTS = "adapter_model.safetensors"
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "lm_head.weight")


def merged(adapter: Path, base: Path) -> Path:
    """Raises TightropeError where the adapter's weights are missing, pickled, or do not fit the base."""
    require_weights(adapter)
    require_same_vocabulary(adapter, base)
    key = hashlib.sha256(
        f"{base_hash(base)} {sha256_of(adapter / ADAPTER_WEIGHTS)} {sha256_of(adapter / ADAPTER_CONFIG)}".encode()
    )
    folder = cache_root() / "merged" / f"{adapter.resolve().name}-{key.hexdigest()[:16]}"
    if not (folder / "config.json").is_file():
        make(adapter, base, folder)
    return folder


def make(adapter: Path, base: Path, folder: Path) -> None:
    from tightrope.models.export import appearing

    is_reward = read_json(adapter / ADAPTER_CONFIG).get("task_type") == "SEQ_CLS"
    kind: Any = AutoModelForSequenceClassification if is_reward else AutoModelForCausalLM
    labels: dict[str, int] = {"num_labels": 1} if is_reward else {}
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters is checked and raised
            model = kind.from_pretrained(
                base,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                **labels,
            )
            wrapped = PeftModel.from_pretrained(model, str(adapter), use_safetensors=True)
        require_all_loaded(wrapped, adapter)
        plain: Any = wrapped.merge_and_unload()
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError, StrictDataclassError) as error:
        raise TightropeError(f"the adapter does not fit its base {base}: {error}", where=str(adapter)) from error
    with appearing(folder) as beside:
        for source in (base, adapter):  # an adapter may bring the tokenizer it was trained with
            for file in tokenizer_files(source):
                shutil.copyfile(file, beside / file.name)
        plain.save_pretrained(beside)


def require_weights(adapter: Path) -> None:
    if (adapter / ADAPTER_WEIGHTS).is_file():
        return
    if (adapter / "adapter_model.bin").is_file():
        raise pickle_refused("adapter_model.bin", str(adapter))
    raise TightropeError("the adapter has no weights", where=str(adapter), expected=ADAPTER_WEIGHTS)


def require_same_vocabulary(adapter: Path, base: Path) -> None:
    """An adapter trained over a resized embedding brings that embedding: it cannot be put on the original base."""
    rows = read_json(base / "config.json").get("vocab_size")
    with safe_open(adapter / ADAPTER_WEIGHTS, framework="numpy") as tensors:
        for name in tensors.keys():  # noqa: SIM118 (not a mapping)
            found = tensors.get_slice(name).get_shape()[0]
            if name.endswith(EMBEDDINGS) and found != rows:
                raise TightropeError(
                    f"the adapter was trained with {found} tokens and its base has {rows}",
                    where=str(adapter),
                    fix="merge it where the resized base is, with `merge_and_unload().save_pretrained(folder)`",
                )


def require_all_loaded(model: PeftModel, adapter: Path) -> None:
    """peft only warns of weights it does not find or does not know: the rest would be an adapter that does nothing."""
    wanted = set(get_peft_model_state_dict(model))
    with safe_open(adapter / ADAPTER_WEIGHTS, framework="numpy") as tensors:
        found = set(tensors.keys())
    for what, names in (("lacks", wanted - found), ("has what the base cannot take:", found - wanted)):
        if names:
            raise ValueError(f"it {what} {min(names)}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""))
