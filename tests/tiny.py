"""Tiny models in Hugging Face folders, with a small real tokenizer: what the tests train, score and export.

    folder = tiny_llama(tmp_path / "base")             # AutoModelForCausalLM, AutoTokenizer load it
    folder = tiny_gpt2(tmp_path / "gpt2", pad_is_eos=True)
    folder = tiny_family("gemma2", tmp_path / "gemma2")     # every name in SHAPES

The tokenizer splits at white space and knows ``WORDS``; "<eos>" ends a text and "<pad>" is distinct from it unless
``pad_is_eos``. Weights depend on ``seed`` alone and are wide enough that log-probs differ from token to token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
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


STANDARD = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
}
ALTERNATING = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 4}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": STANDARD,
    "qwen2": STANDARD | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": STANDARD | {"head_dim": 16},
    "mistral": STANDARD | {"sliding_window": 4},
    "gemma": STANDARD | {"head_dim": 16},
    "gemma2": STANDARD
    | ALTERNATING
    | {"head_dim": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16},
    "gemma3_text": STANDARD | ALTERNATING | {"head_dim": 16, "query_pre_attn_scalar": 16},
    "phi3": STANDARD | {"sliding_window": 4, "partial_rotary_factor": 0.5},
    "olmo2": STANDARD,
    "smollm3": STANDARD | {"no_rope_layers": [1, 0]},
    "granite": STANDARD
    | {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3},
    "cohere": STANDARD | {"logit_scale": 0.25, "use_qk_norm": True},
    # Not known to run packed:
    "opt": {
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "max_position_embeddings": 64,
    },
    "gpt_neox": {name: size for name, size in STANDARD.items() if name != "num_key_value_heads"},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "seq_length": 64},
    "falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64},
    "stablelm": STANDARD | {"use_qkv_bias": True, "partial_rotary_factor": 0.5, "use_parallel_residual": True},
    "starcoder2": STANDARD | {"sliding_window": 4},
}
"""What makes each architecture small, and its peculiarities strong enough to be noticed."""


def tiny_family(kind: str, folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Any architecture of ``SHAPES`` in two to four layers; windows of 4 tokens, capped and scaled logits."""
    tokenizer = tiny_tokenizer(context=64)
    shape = {"vocab_size": len(tokenizer), "initializer_range": 0.02 * SPREAD} | SHAPES[kind] | changes
    config = AutoConfig.for_model(kind, **shape, **_token_ids(tokenizer))

    def make(config: PretrainedConfig) -> PreTrainedModel:
        model = AutoModelForCausalLM.from_config(config)
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")):  # their usual starts, 0 and 1, would hide a forgotten one
                torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.1)
        return model

    return _save(make, config, tokenizer, folder, seed)


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
    make: Callable[[Any], PreTrainedModel],
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    seed: int,
) -> Path:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
