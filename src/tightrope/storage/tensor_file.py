"""Writes tensors in the safetensors format piece by piece, so that saving needs no second copy in memory.

Format: 8 bytes little-endian length of the header, a JSON header name -> {dtype, shape, data_offsets}, then the raw
numbers. Reading is left to the safetensors package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from tightrope.config.errors import TightropeError

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ALIGNMENT = 8


def tensor_file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the numbers alone; the header adds about 100 a tensor."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def tensor_file_chunks(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Widest numbers first, so that each tensor starts at a multiple of its own item size."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {}
    position = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in DTYPE_NAMES:
            raise TightropeError("this type of number cannot be stored", where=name, found=str(tensor.dtype))
        end = position + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        if tensors[name].numel():
            yield raw_bytes(tensors[name])


def raw_bytes(tensor: Tensor) -> memoryview:
    """The numbers as they lie in memory, without a copy where the tensor is contiguous and on the CPU."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    numbers: Any = flat.view(torch.uint8).numpy()
    return memoryview(numbers)


def read_tensor_file(path: Path) -> dict[str, Tensor]:
    """Tensors of their own: the file may be moved or removed afterwards."""
    loaded: dict[str, Tensor] = safetensors.torch.load_file(path)  # pyright: ignore[reportUnknownMemberType]
    return {name: tensor.clone() for name, tensor in loaded.items()}
