"""Is the demo's starting model a Hugging Face folder that the seed alone fixes?"""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tightrope.demo.model import CONTEXT, write_base_model
from tightrope.demo.tokenizer import vocabulary_of

VOCABULARY = vocabulary_of(["the film was good, i think."], 50)


def test_the_folder_loads_and_the_seed_fixes_the_weights(tmp_path):
    before = torch.get_rng_state()
    sizes = [write_base_model(tmp_path / name, VOCABULARY, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    assert torch.equal(before, torch.get_rng_state())
    first, again, other = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in "abc")
    assert sizes[0] == sum(weight.numel() for weight in first.parameters())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    assert (first.config.eos_token_id, first.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert first.config.bos_token_id is None
    assert first.config.vocab_size == len(tokenizer) == len(VOCABULARY)
    assert first.config.max_position_embeddings == CONTEXT == tokenizer.model_max_length
