"""Does a function of ragged pieces work where its numbers lie, though offsets and groups come from the CPU?

Offsets are counted on the CPU and tensors may lie on a card, which tests seldom have. Here the card is pretended: a
tensor says that it lies on ``meta``, its numbers are an ordinary tensor's, and an operation on tensors of both places
is refused as a card refuses it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.tensors import f64
from tightrope.maths.advantages import gae, rloo_advantages, token_rewards
from tightrope.maths.policy_losses import sequence_clip
from tightrope.maths.ragged import discounted_to_go, segment_ids, segment_sum

CARD = torch.device("meta")
OFFSETS = torch.tensor([0, 2, 2, 3])
AS_TENSOR = torch.as_tensor


class OnCard(Tensor):
    """Numbers of which torch believes that they lie on ``CARD``."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> OnCard:
        made = Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=numbers.dtype, device=CARD)
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), options=None):
        return PretendedCard().run(function, arguments, options or {})


class PretendedCard(TorchDispatchMode):
    """Runs each operation on the CPU, and refuses those on tensors of two places; a number alone may come along."""

    def __torch_dispatch__(self, function, kinds, arguments=(), options=None):
        return self.run(function, arguments, options or {})

    def run(self, function: Any, arguments: tuple, options: dict) -> Any:
        tensors = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, Tensor)]
        there = [tensor for tensor in tensors if isinstance(tensor, OnCard)]
        here = [tensor for tensor in tensors if not isinstance(tensor, OnCard) and tensor.dim() > 0]
        if there and here:
            raise RuntimeError(f"{function}: tensors on two devices")
        device = options.get("device")
        lands_there = bool(there) if device is None else torch.device(device) == CARD
        if device is not None:
            options = options | {"device": torch.device("cpu")}
        inside = tree_map(lambda x: x.numbers if isinstance(x, OnCard) else x, (arguments, options))
        found = function(*inside[0], **inside[1])
        return tree_map(OnCard, found) if lands_there and isinstance(found, Tensor | tuple | list) else found


def calls(place):
    """Each function with its numbers put in a place; offsets and groups stay on the CPU."""
    x, y, scores = place(f64(1.0, 2.0, 4.0)), place(f64(0.5, 0.25, 0.0)), place(f64(3.0, 9.0, -2.0))
    return {
        "segment_sum": lambda: segment_sum(x, OFFSETS),
        "discounted_to_go": lambda: discounted_to_go(x, OFFSETS, 0.5),
        "discounted_to_go, a discount each": lambda: discounted_to_go(x, OFFSETS, scores),
        "token_rewards": lambda: token_rewards(scores, x, 0.1, OFFSETS),
        "gae": lambda: gae(x, y, OFFSETS, 0.9, 0.8, scores)[0],
        "gae, a lambda each": lambda: gae(x, y, OFFSETS, 0.9, scores)[1],
        "rloo_advantages": lambda: rloo_advantages(x, torch.tensor([7, 7, 9])),
        "sequence_clip": lambda: sequence_clip(y, x, scores, OFFSETS, 0.2, 0.2).losses,
    }


def number_on_card(value, dtype=None, device=None):
    """``torch.as_tensor`` in two steps: in one, a number put on ``meta`` would lose its value."""
    made = AS_TENSOR(value, dtype=dtype)
    return made if device is None else made.to(device)


@pytest.mark.parametrize("name", list(calls(lambda x: x)))
def test_offsets_come_to_the_numbers(name, monkeypatch) -> None:
    monkeypatch.setattr(torch, "as_tensor", number_on_card)
    expected = calls(lambda x: x)[name]()
    with PretendedCard(), torch.no_grad():
        found = calls(OnCard)[name]()
    assert found.device == CARD
    assert torch.equal(found.numbers, expected)


def test_pieces_are_numbered_where_their_offsets_lie() -> None:
    with PretendedCard():
        found = segment_ids(OnCard(OFFSETS))
    assert found.numbers.tolist() == [0, 0, 2]


def test_two_devices_do_not_mix() -> None:
    with PretendedCard(), pytest.raises(RuntimeError, match="two devices"):
        OnCard(f64(1.0, 2.0)) + f64(1.0, 2.0)
