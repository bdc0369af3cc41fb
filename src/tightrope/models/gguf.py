"""What does a GGUF file become before it is loaded? A folder with safetensors, config and tokenizer, made once.

Reading a GGUF file takes the better part of a minute and twice the model's memory, so it happens in a child process
whose memory goes back to the system, and the result stays in a cache:

    $TIGHTROPE_CACHE/gguf/<sha256 of the file>/      ($TIGHTROPE_CACHE is ~/.cache/tightrope unless it is set)

Weights are stored as float32: quantised blocks times their scales are exact in it, and would be rounded in bfloat16.
The folder takes its name when it is complete. Two processes with the same file: the second waits for the first.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightrope.config.errors import TightropeError, one_line
from tightrope.models.manifest import sha256_of
from tightrope.models.sources import cache_root

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MAGIC = b"GGUF"
FLOAT32_BYTES = 4
ROOM = 64 * 2**20
"""Bytes left free on the disk beside the weights: config, tokenizer, and whatever else happens there."""
FIELDS = ("what", "found", "expected", "fix")
"""Of an error that the child process hands over."""

SPECIAL = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}


def converted(file: Path) -> Path:
    """The folder made from ``file``. Raises TightropeError where the file is no model that can be converted."""
    require_readable(file)
    folder = cache_root() / "gguf" / sha256_of(file)
    if folder.is_dir():
        return folder
    if find_spec("gguf") is None:
        raise TightropeError("GGUF files need the package gguf", where=str(file), fix="pip install 'tightrope[gguf]'")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with only_one(folder.with_suffix(".lock")):
            if not folder.is_dir():
                size = file.stat().st_size / 2**20
                print(f"converting {file.name} ({size:.0f} MiB), once: about a minute", file=sys.stderr, flush=True)
                convert_in_child(file, folder)
    except OSError as error:
        raise TightropeError(f"the cache cannot be written: {error}", where=str(folder.parent)) from error
    return folder


def require_readable(file: Path) -> None:
    try:
        with file.open("rb") as start:
            found = start.read(len(MAGIC))
    except OSError as error:
        raise TightropeError(f"cannot be read: {error.strerror}", where=str(file)) from error
    if found != MAGIC:
        raise TightropeError("not a GGUF file", where=str(file), expected="first bytes GGUF", found=repr(found))


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Waits until no other process is inside. The system opens the lock again when its holder dies."""
    import fcntl  # POSIX alone: imported where it is needed, so that the rest loads anywhere

    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def convert_in_child(file: Path, folder: Path) -> None:
    """Fills a folder beside ``folder``, then gives it that name."""
    beside = folder.with_suffix(".tmp")
    shutil.rmtree(beside, ignore_errors=True)  # of a conversion that was killed
    beside.mkdir()
    try:
        command = [sys.executable, "-m", "tightrope.models.gguf", str(file.resolve()), str(beside)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise told(done.stdout, done.stderr, done.returncode, file)
        os.rename(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def told(output: str, errors: str, code: int, file: Path) -> TightropeError:
    """The child's own error, else what its last words were."""
    lines = output.strip().splitlines()
    try:
        fields = json.loads(lines[-1])
        return TightropeError(fields["what"], where=str(file), **{name: fields[name] for name in FIELDS[1:]})
    except (IndexError, ValueError, KeyError, TypeError):
        last = errors.strip().splitlines()[-1:] or [f"exit code {code}"]
        fix = "is there memory for twice the model?" if code < 0 else None
        return TightropeError(f"the conversion broke off: {one_line(last[0])}", where=str(file), fix=fix)


def main(file: Path, folder: Path) -> int:
    """The child process: exit code 0, or 1 with the error as JSON on the last line."""
    try:
        convert(file, folder)
    except TightropeError as error:
        content = {"what": error.what, "found": error.found, "expected": error.expected, "fix": error.fix}
        print(json.dumps(content))
        return 1
    return 0


def convert(file: Path, folder: Path) -> None:
    """Everything a Hugging Face folder holds, from one GGUF file."""
    metadata, numbers = read_header(file)
    needed, free = FLOAT32_BYTES * numbers + ROOM, shutil.disk_usage(folder).free
    if free < needed:
        raise TightropeError(
            "no room on the disk of the cache",
            expected=f"{needed / 2**30:.1f} GiB",
            found=f"{free / 2**30:.1f} GiB",
            fix="free some, or set TIGHTROPE_CACHE to a folder elsewhere",
        )
    tokenizer, model = load(file)
    correct_tokenizer(tokenizer, metadata)
    try:
        tokenizer.save_pretrained(folder)
        save_model(model, metadata, folder)
    except OSError as error:
        raise TightropeError(f"the converted model cannot be written: {error}") from error


def read_header(file: Path) -> tuple[dict[str, Any], int]:
    """Metadata by key, and how many numbers all tensors have."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        return metadata, sum(int(tensor.n_elements) for tensor in reader.tensors)
    except (OSError, ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        raise TightropeError(
            f"the GGUF file is broken: {one_line(str(error))}", fix="download it again, it may be cut off"
        ) from error


def load(file: Path) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        here: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **here)
        return tokenizer, AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **here)
    except (OSError, ValueError, KeyError, IndexError, TypeError, RuntimeError, NotImplementedError) as error:
        raise TightropeError(
            f"transformers cannot read this GGUF file: {one_line(str(error))}",
            fix="take another quantisation, or the model's safetensors folder",
        ) from error


def correct_tokenizer(tokenizer: PreTrainedTokenizerBase, metadata: dict[str, Any]) -> None:
    """Special tokens and chat template as the file says. Raises TightropeError where ids mean something else."""
    words = metadata["tokenizer.ggml.tokens"]
    if tokenizer.convert_ids_to_tokens(list(range(len(words)))) != list(words):
        raise TightropeError("the tokenizer made from this file numbers its tokens otherwise than the file")
    special = {name.removesuffix("_id"): words[metadata[key]] for name, key in SPECIAL.items() if key in metadata}
    tokenizer.add_special_tokens(special, replace_extra_special_tokens=False)
    if "tokenizer.chat_template" in metadata:
        tokenizer.chat_template = metadata["tokenizer.chat_template"]


def save_model(model: PreTrainedModel, metadata: dict[str, Any], folder: Path) -> None:
    """transformers refuses to save a model that was read from GGUF, so config and weights are written plainly."""
    from safetensors.torch import save_file

    ids = {name: metadata[key] for name, key in SPECIAL.items() if key in metadata}
    config = {name: value for name, value in model.config.to_dict().items() if not name.startswith("_")}
    config.pop("quantization_config", None)
    config |= {"architectures": [type(model).__name__], "dtype": "float32", **ids}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(ids, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    weights = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}  # tied ones once
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with (folder / "model.safetensors").open("rb") as written:
        os.fsync(written.fileno())


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2])))
