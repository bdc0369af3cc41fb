"""Weights that are read straight from their file lie in memory a second time once they are copied. Which pages of the
file may go?

The kernel is told that a copied tensor's pages will not be wanted soon; it drops them, and reads the file again if
they are. No number changes, whatever still lies in the file. Elsewhere than on Linux nothing happens.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

PAGEOUT = 21  # MADV_PAGEOUT of Linux 5.4: drops what a file can give back, and loses nothing
MAPS = Path("/proc/self/maps")


def page_dropper() -> Callable[[Tensor], None]:
    """A function that drops the pages of a tensor if they are those of a file that is mapped now."""
    if sys.platform != "linux" or not MAPS.is_file():
        return lambda tensor: None
    ranges, libc = mapped_files(MAPS.read_text(encoding="utf-8", errors="replace")), ctypes.CDLL(None)

    def drop(tensor: Tensor) -> None:
        start, end = whole_pages(tensor.data_ptr(), tensor.nbytes)
        if start < end and any(low <= start and end <= high for low, high in ranges):
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), PAGEOUT)  # a refusal changes nothing

    return drop


def mapped_files(maps: str) -> list[tuple[int, int]]:
    """Address ranges of weight files in the text of /proc/self/maps.

    >>> mapped_files("7f00-7f80 rw-p 00000000 08:01 1234 /models/my model.safetensors\\n8000-9000 rw-p 0 0:0 0 [heap]")
    [(32512, 32640)]
    """
    lines = [line.split(maxsplit=5) for line in maps.splitlines() if line.endswith(".safetensors")]
    return [(int(start, 16), int(end, 16)) for start, end in (line[0].split("-") for line in lines)]


def whole_pages(address: int, size: int) -> tuple[int, int]:
    """(start, end) of the pages that lie in [address, address + size) from end to end.

    >>> page = mmap.PAGESIZE
    >>> whole_pages(page + 1, 2 * page) == (2 * page, 3 * page)
    True
    """
    page = mmap.PAGESIZE
    return -(-address // page) * page, (address + size) // page * page
