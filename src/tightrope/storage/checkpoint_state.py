"""A tree of tensors and JSON values as one JSON text plus a flat list of tensors, and back, exactly.

    tensor          {"$tensor": "adapter/layers/0/weight"}: a name in the safetensors file of its top-level key
    tuple           {"$tuple": [...]}
    dict whose keys are not all plain strings: {"$items": [[key, value], ...]}
    None, bool, int, float, str, list, dict: themselves (Python writes floats so that they read back bit for bit)

Anything else is refused by name: a checkpoint that cannot be read back exactly is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from tightrope.config.errors import TightropeError

TENSOR, TUPLE, ITEMS = "$tensor", "$tuple", "$items"
PLAIN = (type(None), bool, int, float, str)
LAYOUTS_THAT_FIT = (torch.strided,)


class StateEncoder:
    """Encodes the state of one top-level key; ``tensors`` fills up on the way. A shared tensor is stored once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._name_of: dict[tuple[Any, ...], str] = {}

    def encode(self, value: Any, path: str = "") -> Any:
        """Raises TightropeError naming the place of a value that no checkpoint can hold."""
        if type(value) in PLAIN:
            return value
        if isinstance(value, Tensor):
            return {TENSOR: self._store(value.detach(), path)}
        if type(value) is list:
            return self._encode_list(cast(list[Any], value), path)
        if type(value) is tuple:
            return {TUPLE: self._encode_list(list(cast(tuple[Any, ...], value)), path)}
        if isinstance(value, Mapping):
            entries = cast(Mapping[Any, Any], value)
            encoded = [(key, self.encode(entry, f"{path}/{key}".lstrip("/"))) for key, entry in entries.items()]
            if all(type(key) is str and not key.startswith("$") for key in entries):
                return dict(encoded)
            return {ITEMS: [[self.encode(key, path), entry] for key, entry in encoded]}
        raise TightropeError(
            "this cannot be stored in a checkpoint",
            where=path,
            found=f"{type(value).__module__}.{type(value).__qualname__}",
            expected="tensors, numbers, strings, lists, tuples and dicts",
        )

    def _encode_list(self, values: list[Any], path: str) -> list[Any]:
        return [self.encode(entry, f"{path}/{index}".lstrip("/")) for index, entry in enumerate(values)]

    def _store(self, tensor: Tensor, path: str) -> str:
        if tensor.layout not in LAYOUTS_THAT_FIT or tensor.is_quantized or tensor.is_meta or tensor.is_complex():
            raise TightropeError(
                "this tensor cannot be stored in a checkpoint",
                where=path,
                found=f"{tensor.layout}, {tensor.dtype}, {tensor.device}",
                expected="a dense tensor of real numbers",
            )
        identity = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and identity in self._name_of:
            return self._name_of[identity]
        name, copy = path or "value", 2
        while name in self.tensors:
            name, copy = f"{path}#{copy}", copy + 1
        self.tensors[name] = tensor
        self._name_of[identity] = name
        return name


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of ``StateEncoder.encode``. Raises KeyError for a tensor that is not there."""
    if isinstance(value, list):
        return [decode(entry, tensors) for entry in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    entries = cast(dict[str, Any], value)
    if TENSOR in entries:
        return tensors[entries[TENSOR]]
    if TUPLE in entries:
        return tuple(decode(entry, tensors) for entry in entries[TUPLE])
    if ITEMS in entries:
        return {decode(key, tensors): decode(entry, tensors) for key, entry in entries[ITEMS]}
    return {key: decode(entry, tensors) for key, entry in entries.items()}
