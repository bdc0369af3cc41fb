"""Does this network compute here what it computes by itself? Asked once, right after loading, on a few fixed tokens.

Three rows run together through our forward pass (packed, or filled up) and one by one through the model's own, with
its own attention and output matrix. Hidden states (or logits, where there are any) must agree, so neighbours do not
matter; and a row that is the beginning of another must give what the longer one gives there, so no token sees later
ones. A difference refuses the model: this is what makes architectures safe that no test of ours has met.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from tightrope.config.errors import TightropeError
from tightrope.models.attention import ATTENTION
from tightrope.models.backbone import Network
from tightrope.models.packed_forward import network_states
from tightrope.types import TokenRows

BOUNDS = {torch.float64: 1e-8, torch.float32: 2e-4, torch.bfloat16: 0.1}
"""Largest difference, as a share of the largest number (at least 1). docs/models.md says what was measured."""
LONGEST, BEGINNING, OTHER = 12, 5, 3


@torch.no_grad()
def probed(network: Network, where: str) -> Network:
    """The network itself. Raises TightropeError with the difference where it cannot be trusted."""
    rows = _rows(network)
    try:
        together = _outputs(network, rows)
        with _own_attention(network):
            alone = [_own(network, row) for row in rows]
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
        line = str(error).partition("\n")[0]
        raise TightropeError(
            f"{network.family.name} cannot be run: {type(error).__name__}: {line}", where=where
        ) from error
    beginning = len(rows[0])
    _require_close(alone[1][:beginning], alone[0], network, where, "a token's numbers depend on later tokens")
    _require_close(together, torch.cat(alone), network, where, "a row among others differs from the model's own")
    return network


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
    bound = BOUNDS[network.dtype]
    difference = float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))
    if not difference <= bound:
        raise TightropeError(
            f"{network.family.name} cannot be used: {what}",
            where=where,
            expected=f"at most {bound}",
            found=f"{difference:.2g}",
        )


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
