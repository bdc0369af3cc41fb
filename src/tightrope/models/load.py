"""From a folder on disk to a tokenizer, a network or a head. Nothing is downloaded, nothing unpickled, no code run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from tightrope.config.errors import TightropeError
from tightrope.config.schema import ModelSection
from tightrope.models.attention import ATTENTION, register
from tightrope.models.backbone import Network
from tightrope.models.families import family_of
from tightrope.models.heads import Head
from tightrope.models.manifest import HEAD, HEAD_BIAS, require_kind, weight_files
from tightrope.models.probe import probed
from tightrope.models.sources import PICKLES, pickle_refused
from tightrope.models.sources import read_json as read_json
from tightrope.models.sources import resolve_model_folder as resolve_model_folder

GENERIC_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")


def context_length(folder: Path) -> int:
    """Tokens that prompt and response may have together; reads config.json alone."""
    config = read_json(folder / "config.json")
    family = family_of(config, str(folder))
    return family.context_length(config, str(folder))


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """A tokenizer.json that stands for itself is read as it is: AutoTokenizer would rebuild it as Qwen2's wherever the
    architecture is Qwen 2, and split text differently.
    """
    described = folder / "tokenizer_config.json"
    own = described.is_file() and read_json(described).get("tokenizer_class") in GENERIC_TOKENIZERS
    kind = PreTrainedTokenizerFast if own and (folder / "tokenizer.json").is_file() else AutoTokenizer
    try:
        tokenizer = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # its files may be anything, and transformers raises what it stumbles over
        raise TightropeError(
            f"no tokenizer can be loaded: {type(error).__name__}: {error}", where=str(folder)
        ) from error
    require_known_tokens(folder, tokenizer)
    return tokenizer


def require_known_tokens(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Every token that a text can turn into has a row in the embedding.

    Tokens that were added later and that neither the template nor a special role uses may lie beyond it: Gemma 3's
    text models name an image token that they have no row for.
    """
    rows = read_json(folder / "config.json").get("vocab_size") if (folder / "config.json").is_file() else None
    if not isinstance(rows, int):
        return
    beyond = {token for token, index in tokenizer.get_vocab().items() if index >= rows}
    roles = {str(token) for token in (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token)}
    template = str(tokenizer.chat_template or "")
    used = {t for t in beyond if t in roles or t in template or t not in tokenizer.all_special_tokens}
    if used:
        raise TightropeError(
            f"the tokenizer has {len(tokenizer)} tokens and the model's embedding {rows} rows: {min(used)!r} has none",
            where=str(folder),
            fix="take the model's own tokenizer, or `resize_token_embeddings` and save both",
        )


def eos_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every id that ends a response: the tokenizer's, the generation config's and the config's (Llama 3 has several).

    Raises TightropeError where there is none: no response could ever end.
    """
    own: Any = tokenizer.eos_token_id
    found: set[int] = set() if own is None else {own}
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            ids = read_json(folder / name).get("eos_token_id")
            found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    if not found:
        raise TightropeError(
            "no end-of-sequence token is defined", where=str(folder), fix="set the tokenizer's eos_token"
        )
    return tuple(sorted(found))


def load_network(folder: Path, model: ModelSection) -> Network:
    """A causal LM. Raises TightropeError for a reward model, and where weights are missing or unreadable."""
    require_kind(folder, "policy")
    network = Network(_load(AutoModelForCausalLM, folder, model), recompute=model.gradient_checkpointing)
    return probed(network, str(folder))


def load_trunk(folder: Path, model: ModelSection) -> Network:
    """The body alone: what a reward model or a critic of its own needs."""
    network = Network(_load(AutoModel, folder, model), recompute=model.gradient_checkpointing)
    return probed(network, str(folder))


def load_reward_head(folder: Path, device: torch.device) -> Head:
    """In float32 as it was trained, whatever type transformers would read it in."""
    found: dict[str, torch.Tensor] = {}
    with reading_weights(folder):
        for file in weight_files(folder):
            with safe_open(file, framework="pt") as tensors:
                names = set(tensors.keys()) & {HEAD, HEAD_BIAS}
                found |= {name: tensors.get_tensor(name).float().to(device) for name in names}
    if HEAD not in found:
        raise TightropeError(f"the reward model has no head ({HEAD})", where=str(folder))
    return Head(found[HEAD].flatten(), found.get(HEAD_BIAS))


def device_of(model: ModelSection) -> torch.device:
    if model.device == "cuda" and not torch.cuda.is_available():
        raise TightropeError("no CUDA device is available", where="model.device", fix="set model.device to cpu or auto")
    if model.device == "mps" and not torch.backends.mps.is_available():
        raise TightropeError("this torch has no Apple GPU", where="model.device", fix="set model.device to cpu or auto")
    if model.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(model.device)


def dtype_of(model: ModelSection, device: torch.device) -> torch.dtype:
    if model.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[model.dtype]


def for_training(model: ModelSection) -> ModelSection:
    """The section that all roles of a training run are loaded by.

    Without adapters every weight is trained and no float32 copy of it is kept, so ``auto`` means float32 there: in
    bfloat16 an update under 1/256 of a weight is rounded away. The frozen roles take the same type, so that the
    reference is the starting policy to the last bit.
    """
    return model.model_copy(update={"dtype": "float32"}) if model.dtype == "auto" and model.lora is None else model


def _load(kind: type[AutoModel] | type[AutoModelForCausalLM], folder: Path, model: ModelSection) -> PreTrainedModel:
    family = family_of(read_json(folder / "config.json"), str(folder))
    if family.name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise TightropeError("not a language model that transformers knows", where=str(folder), found=family.name)
    _require_safetensors(folder)
    register()
    device = device_of(model)
    with reading_weights(folder), _quiet():
        loaded: Any = kind.from_pretrained(
            folder,
            attn_implementation=ATTENTION if family.packed else None,
            dtype=dtype_of(model, device),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told here, by name and size
        )
    network, told = loaded
    for name, stored, wanted in sorted(told["mismatched_keys"]):
        raise TightropeError(
            f"{name} does not fit config.json", where=str(folder), expected=shape_of(wanted), found=shape_of(stored)
        )
    # transformers only warns and draws random weights for what it does not find.
    if told["missing_keys"]:
        names = sorted(told["missing_keys"])
        raise TightropeError(f"{len(names)} weights are missing, the first is {names[0]}", where=str(folder))
    if network._is_stateful:
        raise TightropeError(f"{family.name} is not supported: it has recurrent layers", where=str(folder))
    _require_numbers(network, folder)
    _train_every_embedding(network)
    return network.to(device)


def shape_of(size: Iterable[int]) -> str:
    """
    >>> shape_of(torch.Size([64, 32]))
    '64 x 32'
    """
    return " x ".join(str(length) for length in size)


def _require_numbers(model: PreTrainedModel, folder: Path) -> None:
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise TightropeError(
                f"{name} holds NaN or infinity", where=str(folder), fix="the training that wrote it broke: take another"
            )


def _train_every_embedding(model: PreTrainedModel) -> None:
    """Llama marks its pad row as never trained. Where pad is EOS that row is a real token; nothing is padded here."""
    embedding = model.get_input_embeddings()
    if isinstance(embedding, torch.nn.Embedding):
        embedding.padding_idx = None


def _require_safetensors(folder: Path) -> None:
    if weight_files(folder):
        return
    pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if pickles:
        raise pickle_refused(pickles[0], str(folder))
    raise TightropeError("no weights", where=str(folder), expected="*.safetensors")


@contextmanager
def reading_weights(folder: Path) -> Iterator[None]:
    """Whatever goes wrong with somebody's weight files is told in one line with the folder's name."""
    try:
        yield
    except TightropeError:
        raise
    except Exception as error:  # transformers, its quantisers and a config with odd numbers raise whatever they like
        raise TightropeError(
            f"the weights cannot be loaded: {error or type(error).__name__}", where=str(folder)
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and load reports of transformers: what matters is checked and raised."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
