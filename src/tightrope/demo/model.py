"""What does the demo start from? A small Llama with random weights, as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tightrope.demo.tokenizer import EOS, PAD, word_tokenizer

HIDDEN, LAYERS, HEADS, CONTEXT = 128, 2, 4, 64


def write_base_model(folder: Path, vocabulary: Sequence[str], seed: int) -> int:
    """Writes model and tokenizer, and says how many parameters there are. The seed alone fixes the weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = word_tokenizer(vocabulary, CONTEXT)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=vocabulary.index(EOS),
        pad_token_id=vocabulary.index(PAD),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.num_parameters()
