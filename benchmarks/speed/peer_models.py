"""What the peer loads: the same weights and tokens as ours. Runs in the peer's environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

SPARE = "<|endoftext|>"
"""SmolLM2 as it comes pads with its end token, which TRL would then take for the end of every prompt."""


def tokenizer_of(folder: Path) -> Any:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder / "model", padding_side="left")
    if tokenizer.pad_token_id == tokenizer.eos_token_id:
        tokenizer.pad_token = SPARE
    return tokenizer


def language_model(folder: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    tokenizer = tokenizer_of(folder)
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model


def classifier(folder: Path) -> Any:
    """With a random head: reward model and value model."""
    torch.manual_seed(0)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder / "model", num_labels=1, dtype=torch.float32)
    model.config.pad_token_id = tokenizer_of(folder).pad_token_id
    return model
