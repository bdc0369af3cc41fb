"""Are pages of a weight file dropped where they may be, and is every number as it was?"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny import tiny_llama
from tightrope.config.schema import ModelSection
from tightrope.models.file_pages import page_dropper
from tightrope.models.load import load_network
from tightrope.models.weight_layout import lay_out_frozen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are dropped on Linux alone")


def resident_kib(file: Path) -> int:
    """Of all mappings of ``file`` in this process."""
    blocks = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(encoding="utf-8"))
    ours = [block for block in blocks if str(file) in block.splitlines()[0]]
    return sum(int(number) for block in ours for number in re.findall(r"^Rss:\s+(\d+)", block, re.MULTILINE))


def test_a_dropped_tensor_leaves_memory_and_keeps_its_numbers(tmp_path) -> None:
    file = tmp_path / "model.safetensors"
    wanted = torch.arange(2_000_000, dtype=torch.float32)
    save_file({"a": wanted, "b": wanted + 1}, file)
    read = load_file(file)
    assert torch.equal(read["a"], wanted) and torch.equal(read["b"], wanted + 1)
    before = resident_kib(file)
    if before == 0:
        pytest.skip("this safetensors reads a copy and maps no file")
    drop = page_dropper()
    drop(read["a"])
    assert resident_kib(file) < 0.75 * before
    assert torch.equal(read["a"], wanted) and torch.equal(read["b"], wanted + 1)


def test_numbers_that_were_changed_in_place_are_not_lost(tmp_path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(1_000_000)}, file)
    read = load_file(file)["a"].add_(3.0)
    page_dropper()(read)
    assert bool((read == 3.0).all())


def test_memory_that_is_no_files_stays() -> None:
    own = torch.ones(1_000_000)
    page_dropper()(own)
    assert bool((own == 1.0).all())


def test_a_frozen_network_has_the_weights_of_its_file(tmp_path) -> None:
    network = load_network(tiny_llama(tmp_path / "base"), ModelSection(name="base"))
    wanted = {name: weight.clone() for name, weight in network.model.named_parameters()}
    network.model.requires_grad_(False)
    lay_out_frozen(network)
    for name, weight in network.model.named_parameters():
        assert torch.equal(weight, wanted[name]), name
