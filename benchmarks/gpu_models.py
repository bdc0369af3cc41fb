"""Random-weight Llamas of known shapes, in folders or built on the device, with a tokenizer of made-up words."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from tightrope.config.schema import LoraSection
from tightrope.demo.tokenizer import EOS, PAD, SPECIAL, word_tokenizer
from tightrope.models.attention import ATTENTION, register
from tightrope.models.backbone import Network
from tightrope.models.heads import reward_head
from tightrope.models.lora import add_adapter
from tightrope.models.roles import (
    Role,
    Roles,
    body_parameters,
    finished,
    policy_of,
    policy_parameters,
    reference_of,
    separate_critic,
)


@dataclass(frozen=True, slots=True)
class Shape:
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = True
    context: int = 2048


TINY = Shape(64, 128, 2, 4, 2, 512)
SMALL_135M = Shape(576, 1536, 30, 9, 3, 49152)
"""SmolLM2-135M."""
LARGE_8B = Shape(4096, 14336, 32, 32, 8, 128256, tied=False)
"""Llama 3 8B."""
QUICK = {"tiny": TINY, "135m": Shape(96, 192, 3, 6, 3, 1024), "8b": Shape(128, 256, 4, 8, 2, 1024, tied=False)}
FULL = {"tiny": TINY, "135m": SMALL_135M, "8b": LARGE_8B}


def config_of(shape: Shape) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=SPECIAL.index(EOS),
        pad_token_id=SPECIAL.index(PAD),
    )


def words_of(shape: Shape) -> list[str]:
    return [*SPECIAL, *(f"w{number}" for number in range(shape.vocabulary - len(SPECIAL)))]


def write_description(shape: Shape, folder: Path) -> Path:
    """Config and tokenizer; no weights."""
    config_of(shape).save_pretrained(folder)
    word_tokenizer(words_of(shape), shape.context).save_pretrained(folder)
    return folder


def write_model(shape: Shape, folder: Path) -> Path:
    write_description(shape, folder)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config_of(shape), dtype=torch.float32).save_pretrained(folder)
    return folder


def prompts_of(shape: Shape, count: int, length: int) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(words_of(shape)[len(SPECIAL) :], k=length)) for _ in range(count)]


def four_roles(shape: Shape, lora: LoraSection, dtype: torch.dtype, device: torch.device) -> Roles:
    """Policy, critic and reward model as adapters, the reference as the bare backbone; nothing touches the disk."""
    register()
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config_of(shape), attn_implementation=ATTENTION, dtype=dtype)
    network = Network(model)
    reference, policy = reference_of(network, lora=True), policy_of(network, lora, 0)
    critic = separate_critic(policy, None, lora, 0)
    add_adapter(network, "reward", lora, 1)
    reward = Role("reward", network, "reward", reward_head(network.hidden_size, network.device, 2))
    trained = {"policy": policy_parameters(policy), "critic": body_parameters(critic)}
    return finished(Roles(policy, reference, critic, reward, parameters=trained))
