"""Does this network compute here what it computes by itself? Asked once, right after loading, on a few fixed tokens.

Three rows run together through our forward pass (packed, or filled up) and one by one through the model's own, with
its own layers, attention and output matrix. Hidden states (or logits, where there are any) must agree, so neighbours
do not matter; and a row that is the beginning of another must give what the longer one gives there, so no token sees
later ones. A difference refuses the model: this is what makes architectures safe that no test of ours has met.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from tightrope.config.errors import TightropeError
from tightrope.models.attention import ATTENTION
from tightrope.models.backbone import Network
from tightrope.models.layers import original_layers
from tightrope.models.packed_forward import network_states
from tightrope.types import TokenRows

BOUNDS = {torch.float64: 1e-8, torch.float32: 2e-4, torch.bfloat16: 0.1}
"""Largest difference, as a share of the largest number (at least 1). docs/models.md says what was measured."""
LONGEST, BEGINNING, OTHER = 12, 9, 8
"""Alike enough to be filled up together where the forward pass is padded."""


def probed(network: Network, where: str) -> Network:
    """The network itself. Raises TightropeError with the difference where it cannot be trusted."""
    try:
        together, alone = _runs(network)
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
        line = str(error).partition("\n")[0]
        raise TightropeError(
            f"{network.family.name} cannot be run: {type(error).__name__}: {line}", where=where
        ) from error
    beginning, whole, _ = alone
    _require_close(whole[: len(beginning)], beginning, network, where, "a token's numbers depend on later tokens")
    _require_close(together, torch.cat(alone), network, where, "a row among others differs from the model's own")
    return network


def difference_of(network: Network) -> float:
    """What the probe finds, as a share of the largest number (at least 1)."""
    together, alone = _runs(network)
    return _share(together, torch.cat(alone))


@torch.no_grad()
def _runs(network: Network) -> tuple[Tensor, list[Tensor]]:
    """All rows together through our forward, and one by one through the model's own."""
    rows = _rows(network)
    together = _outputs(network, rows)
    with _own_attention(network), original_layers(network.model):
        return together, [_own(network, row) for row in rows]


def _rows(network: Network) -> list[list[int]]:
    """A beginning, the row it begins, and another."""
    length = min(LONGEST, network.context_length)
    row = [(7919 * index + 17) % network.vocabulary for index in range(length)]
    return [row[: min(BEGINNING, length)], row, row[::-1][:OTHER]]


def _outputs(network: Network, rows: Sequence[Sequence[int]]) -> Tensor:
    hidden = network_states(network, TokenRows.of([(row, []) for row in rows]))
    return network.logits(hidden) if network.gives_logits else hidden.float()


def _own(network: Network, row: Sequence[int]) -> Tensor:
    output = network.model(input_ids=torch.tensor([row], device=network.device), use_cache=False)
    return (output.logits if network.gives_logits else output.last_hidden_state)[0].float()


def _require_close(found: Tensor, expected: Tensor, network: Network, where: str, what: str) -> None:
    if found.shape != expected.shape:
        sizes = f"{list(found.shape)} against {list(expected.shape)}"
        raise TightropeError(f"{network.family.name}: {what}", where=where, found=sizes)
    bound, difference = BOUNDS[network.dtype], _share(found, expected)
    if not difference <= bound:  # NaN is no agreement
        raise TightropeError(
            f"{network.family.name} cannot be used: {what}",
            where=where,
            expected=f"at most {bound}",
            found=f"{difference:.2g}",
        )


def _share(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))


@contextmanager
def _own_attention(network: Network) -> Iterator[None]:
    """The plain way of attention, which every architecture has, in place of ours."""
    if not network.family.packed:
        yield
        return
    network.model.set_attn_implementation("eager")
    try:
        yield
    finally:
        network.model.set_attn_implementation(ATTENTION)
