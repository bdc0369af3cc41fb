"""Which architectures run packed, which padded, which not at all; and how long a text may be.

packed   verified by the tests: rows lie back to back, attention is ours (models/packed_forward.py)
padded   every other text model with attention: rows are filled up, attention is its own (models/padded_forward.py)
refused  what has no causal attention over text alone, or whose numbers depend on a row's neighbours
Reads config.json alone, no torch. Every network is probed once when it is loaded (models/probe.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tightrope.config.errors import TightropeError


@dataclass(frozen=True, slots=True)
class Family:
    """``name``: transformers' model_type."""

    name: str
    packed: bool

    def context_length(self, config: Mapping[str, Any], where: str = "config.json") -> int:
        """Tokens of prompt and response together. Raises TightropeError where the config does not say."""
        for key in CONTEXT_KEYS:
            if isinstance(config.get(key), int):
                return int(config[key])
        raise TightropeError(
            "config.json does not say how long a text may be",
            where=where,
            expected=" or ".join(CONTEXT_KEYS),
            fix='add "max_position_embeddings": <tokens> to it',
        )


PACKED = (
    "cohere",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "granite",
    "llama",
    "mistral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
)
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx")
"""In this order; BLOOM's and MPT's positions have no end, their files say the trained length."""
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Their frequencies depend on the longest sequence of the call: a row's log-probs would depend on its neighbours."""
RECURRENT = (
    "bailing_hybrid",
    "bamba",
    "falcon_h1",
    "falcon_mamba",
    "granitemoehybrid",
    "jamba",
    "kimi_linear",
    "lfm2",
    "mamba",
    "mamba2",
    "minimax",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv",
    "xlstm",
    "zamba",
    "zamba2",
)
ATTENTION_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")
OTHER_SENSES = ("vision_config", "audio_config", "vision_tower", "image_token_id", "image_token_index")


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """Raises TightropeError for what cannot be trained here; the rest is known or will be probed."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise TightropeError("config.json does not name an architecture", where=where, expected="model_type")
    reason = _refusal(kind, config)
    if reason is not None:
        raise TightropeError(
            f"{kind} is not supported: {reason}",
            where=where,
            expected="a decoder of text with attention (docs/models.md)",
        )
    rope_type = next((rope for rope in _rope_types(config) if rope in LENGTH_DEPENDENT_ROPE), None)
    if rope_type is not None:
        raise TightropeError(
            f"rope type {rope_type!r} makes a row's log-probs depend on its neighbours",
            where=where,
            expected="positions scaled alike for all lengths (default, linear, yarn, llama3)",
        )
    return Family(kind, kind in PACKED)


def _refusal(kind: str, config: Mapping[str, Any]) -> str | None:
    if config.get("is_encoder_decoder"):
        return "an encoder reads the prompt, the policy must be one decoder"
    if any(config.get(key) is not None for key in OTHER_SENSES):
        return "it reads more than text"
    layers = config.get("layer_types") or ()
    if kind in RECURRENT or any(layer not in ATTENTION_LAYERS for layer in layers):
        return "it has recurrent layers, whose state would carry over from filling and neighbours"
    if config.get("use_bidirectional_attention"):
        return "its attention sees later tokens"
    return None


def _rope_types(config: Mapping[str, Any]) -> Iterator[str]:
    """One set of rope parameters for all layers, or one a kind of layer (Gemma 3)."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for parameters in (rope, *(inner for inner in rope.values() if isinstance(inner, Mapping))):
        yield parameters.get("rope_type", parameters.get("type", "default"))
