"""How fast could a step be? Its arithmetic on real tokens, at the rate of this machine's matrix products on one thread.

    forward    2 x weights a token; logits only where an action is predicted
    backward   2 x weights for what flows through, 2 x weights more for weights that are trained
    rollout    one forward pass a token
    score      reference, with logits, and reward model; values too, a third pass, where they are no head on the policy
    update     each epoch: policy and critic trained whole, or one pass of a frozen trunk with adapters
    lower half of the layers below all adapters: in the rollout alone, what it gives is kept

Attention (a few percent at these lengths), what adapters add, optimizer and sampling are left out: nothing reaches it.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from tightrope.kernels.products import product

FORWARD, THROUGH, TRAINED = 2, 4, 6
"""Operations a weight and token: forward pass; with a backward pass through frozen weights; with weight gradients."""
SQUARE = 1024


@dataclass(frozen=True, slots=True)
class Weights:
    """Those that are multiplied with each token: of the layers, and of the matrix that makes logits.

    ``place``: operations of attention for a token and a place that it sees, in all layers.
    """

    trunk: int
    head: int
    place: int = 0


def weights_of(folder: Path) -> Weights:
    """Of a Llama, from its config."""
    config = json.loads((folder / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kept = hidden * config["num_key_value_heads"] // heads
    layer = 2 * hidden * hidden + 2 * hidden * kept + 3 * hidden * config["intermediate_size"]
    layers = config["num_hidden_layers"]
    return Weights(layer * layers, hidden * config["vocab_size"], 4 * hidden * layers)


Trains = Literal["policy and critic", "adapters", "adapters in the upper half"]
TRAINS: dict[str, Trains] = {
    "peer": "policy and critic",
    "same_maths": "policy and critic",
    "default": "adapters",
    "cached": "adapters in the upper half",
}
"""What each side trains."""


def operations(weights: Weights, tokens: float, actions: float, epochs: int, trains: Trains) -> float:
    """Of one PPO step.

    >>> operations(Weights(100, 10), tokens=10, actions=5, epochs=1, trains="policy and critic") / 1000
    20.5
    >>> operations(Weights(100, 10), tokens=10, actions=5, epochs=1, trains="adapters in the upper half") / 1000
    6.4
    """
    trunk, head = tokens * weights.trunk, actions * weights.head
    kept = trunk / 2 if trains == "adapters in the upper half" else trunk
    rollout = FORWARD * (trunk + head)
    score = FORWARD * ((3 if trains == "policy and critic" else 2) * kept + head)
    update = TRAINED * (2 * trunk + head) if trains == "policy and critic" else THROUGH * (kept + head)
    return rollout + score + epochs * update


def operations_a_token(weights: Weights, tokens: float, actions: float, sequences: int) -> float:
    """Of a forward pass with attention: on average a token sees half of its sequence.

    >>> operations_a_token(Weights(100, 10, place=2), tokens=40, actions=20, sequences=4)
    220.0
    """
    return FORWARD * (weights.trunk + weights.head * actions / tokens) + weights.place * tokens / sequences / 2


def operations_per_second() -> float:
    """Of large float32 matrix products on one thread, by the faster library: the best of some."""
    torch.set_num_threads(1)
    left, right = torch.randn(SQUARE, SQUARE), torch.randn(SQUARE, SQUARE)
    best = float("inf")
    for _ in range(40):
        begin = time.process_time()
        product(left, right)
        best = min(best, time.process_time() - begin)
    return 2 * SQUARE**3 / best
