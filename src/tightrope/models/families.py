"""Which architectures are known to run packed, and what differs between them. Reads config.json alone, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tightrope.config.errors import TightropeError


@dataclass(frozen=True, slots=True)
class Family:
    """``linear_layers``: names of all matrices of a layer, which adapters are put on; ``conv1d``: stored transposed;
    ``classifier``: the transformers class that loads a reward model.
    """

    name: str
    linear_layers: tuple[str, ...]
    conv1d: bool
    context_key: str
    classifier: str

    def context_length(self, config: Mapping[str, Any]) -> int:
        return int(config[self.context_key])


FAMILIES = {
    "llama": Family(
        "llama",
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        False,
        "max_position_embeddings",
        "LlamaForSequenceClassification",
    ),
    "gpt2": Family("gpt2", ("c_attn", "c_proj", "c_fc"), True, "n_positions", "GPT2ForSequenceClassification"),
}
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Their frequencies depend on the longest sequence of the call: a row's log-probs would depend on its neighbours."""


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """Raises TightropeError for an architecture, or a variant of one, that does not run packed."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise TightropeError(
            "architecture not supported", where=where, found=f"model_type {kind!r}", expected=" or ".join(FAMILIES)
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type in LENGTH_DEPENDENT_ROPE:
        raise TightropeError(
            f"rope type {rope_type!r} makes a row's log-probs depend on its neighbours",
            where=where,
            expected="positions scaled alike for all lengths (default, linear, yarn, llama3)",
        )
    return FAMILIES[kind]
