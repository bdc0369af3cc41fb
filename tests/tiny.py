"""Tiny models in Hugging Face folders, with a small real tokenizer: what the tests train, score and export.

    folder = tiny_llama(tmp_path / "base")             # AutoModelForCausalLM, AutoTokenizer load it
    folder = tiny_gpt2(tmp_path / "gpt2", pad_is_eos=True)

The tokenizer splits at white space and knows ``WORDS``; "<eos>" ends a text and "<pad>" is distinct from it unless
``pad_is_eos``. Weights depend on ``seed`` alone and are wide enough that log-probs differ from token to token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

LINES = (
    "user : assistant the a cat dog bird fish sat ran flew swam on in over under mat tree house river is was not good",
    "bad great awful fine dull bright dark happy sad quick slow red blue green yellow one two three four five six",
    "seven eight nine ten film plot actor story scene music what who where when why how tell me about it and or . ,",
)
WORDS = tuple(word for line in LINES for word in line.split())
SPECIAL = ("<pad>", "<eos>", "<unk>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} : {{ message['content'] }} "
    "{% if message['role'] == 'assistant' %}{{ eos_token }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant : {% endif %}"
)
SPREAD = 10.0
"""Factor on the initial weights: at the default of 0.02 every token would be almost equally likely."""


def tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    context: int = 64,
    tied: bool = False,
    words: Sequence[str] | None = None,
    pad_is_eos: bool = False,
) -> Path:
    """A Llama with grouped key-value heads."""
    tokenizer = tiny_tokenizer(words, pad_is_eos=pad_is_eos, context=context)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        initializer_range=0.02 * SPREAD,
        **_token_ids(tokenizer),
    )
    return _save(LlamaForCausalLM, config, tokenizer, folder, seed)


def tiny_gpt2(
    folder: Path,
    *,
    seed: int = 0,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    context: int = 64,
    words: Sequence[str] | None = None,
    pad_is_eos: bool = False,
) -> Path:
    """A GPT-2: learned positions, tied embeddings, and dropout 0.1 in its config as in the published checkpoints."""
    tokenizer = tiny_tokenizer(words, pad_is_eos=pad_is_eos, context=context)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=hidden,
        n_layer=layers,
        n_head=heads,
        n_positions=context,
        initializer_range=0.02 * SPREAD,
        **_token_ids(tokenizer),
    )
    return _save(GPT2LMHeadModel, config, tokenizer, folder, seed)


def tiny_tokenizer(
    words: Sequence[str] | None = None, *, pad_is_eos: bool = False, context: int = 64
) -> PreTrainedTokenizerFast:
    """Words at white space. The ids are the same with and without a pad token of its own."""
    vocabulary = list(dict.fromkeys([*SPECIAL, *(WORDS if words is None else words)]))
    inner = Tokenizer(WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    inner.decoder = WordPiece(prefix="##", cleanup=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<eos>",
        pad_token="<eos>" if pad_is_eos else "<pad>",
        unk_token="<unk>",
        model_max_length=context,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _token_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "bos_token_id": None,
        "eos_token_id": tokenizer.convert_tokens_to_ids("<eos>"),
        "pad_token_id": tokenizer.convert_tokens_to_ids(str(tokenizer.pad_token)),
    }


def _save(
    kind: type[PreTrainedModel], config: PretrainedConfig, tokenizer: PreTrainedTokenizerFast, folder: Path, seed: int
) -> Path:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
