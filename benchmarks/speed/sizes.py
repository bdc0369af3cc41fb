"""What is the workload? Two sizes, and the numbers of PPO that both sides are given. Imports nothing: the peer's
environment reads it too."""

from __future__ import annotations

from dataclasses import dataclass, replace

LAYERS_135M = 30


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a Llama with random weights that are then trained for a minute; input and output embeddings are tied."""

    vocabulary: int = 4096
    hidden: int = 256
    inner: int = 688
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    context: int = 1024


@dataclass(frozen=True, slots=True)
class Size:
    """``prompts`` a step, each answered once with up to ``new_tokens``; ``shape`` None: the model is SmolLM2-135M.

    ``hazard``: chance of the end after each token of the text that the small model learns from; 0: it never ends.
    """

    name: str
    prompts: int
    shortest: int
    longest: int
    new_tokens: int
    minibatch: int
    epochs: int
    learning_rate: float
    shape: Shape | None = None
    hazard: float = 1 / 24
    pretraining_steps: int = 120

    @property
    def minibatches(self) -> int:
        return self.prompts // self.minibatch

    @property
    def layers(self) -> int:
        return LAYERS_135M if self.shape is None else self.shape.layers


S = Size("S", 32, 8, 64, 64, 8, 4, 1e-5, Shape())
M = Size("M", 16, 8, 64, 64, 4, 4, 1e-6)
E = replace(S, name="E", prompts=16, hazard=0.0)
"""Like S, but no response ends by itself: how cost grows with length (``linear.py``)."""
WIDE = Shape(hidden=576, inner=1536, heads=9, kv_heads=3, layers=4)
W = replace(E, name="W", prompts=8, shape=WIDE, pretraining_steps=60)
"""Like E, in the width of size M."""
SIZES = {size.name: size for size in (S, M)}
ALL_SIZES = SIZES | {size.name: size for size in (E, W)}

TEMPERATURE = 1.0
BETA = 0.05
CLIP_RANGE = 0.2
VALUE_CLIP = 0.2
VALUE_COEF = 0.1
GAMMA = 1.0
LAM = 0.95
MISSING_EOS = 1.0
LORA = {"rank": 16, "alpha": 32.0}
