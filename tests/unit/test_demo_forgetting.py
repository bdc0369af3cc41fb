"""Do the forgetting probes measure perplexity and facts, and does the embedding judge read what it says it reads?"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.rollouts import policy_of
from tests.tiny import tiny_llama
from tightrope.demo.corpus import Review
from tightrope.demo.embeddings import EmbeddingJudge, embeddings
from tightrope.demo.facts import FACTS, Fact
from tightrope.demo.forgetting import PIECE_TOKENS, Forgetting, Knowledge, facts_right, perplexity, pieces_of
from tightrope.models.load import load_tokenizer

TINY_FP32 = 1e-5  # float32 log-probs and hidden states of size 1, packed here and one by one in transformers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("models") / "llama")


def logprobs(folder, ids):
    """Of every id but the first, by transformers' own forward."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        table = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return [float(table[place, token]) for place, token in enumerate(ids[1:])]


def test_perplexity_is_of_every_token_but_the_first_of_a_piece(folder):
    pieces = [[5, 6, 7, 8], [9, 10], [11, 12, 13], [14, 15, 16], [17, 18]]
    found = [value for piece in pieces for value in logprobs(folder, piece)]
    expected = math.exp(-sum(found) / len(found))
    assert perplexity(policy_of(folder), pieces) == pytest.approx(expected, rel=TINY_FP32)


def test_pieces_are_plain_english_of_one_length(folder):
    pieces = pieces_of(load_tokenizer(folder))
    assert pieces and all(1 < len(piece) <= PIECE_TOKENS for piece in pieces)


def test_a_fact_is_right_where_its_right_option_has_the_highest_mean_logprob(folder):
    tokenizer = load_tokenizer(folder)
    start = tokenizer("the cat sat on the")["input_ids"]

    def mean(option):
        ids = tokenizer(option)["input_ids"]
        return float(np.mean(logprobs(folder, [*start, *ids])[-len(ids) :]))

    options = sorted(("mat", "house .", "river is not good", "tree"), key=mean, reverse=True)
    right = Fact("the cat sat on the", options[0], tuple(options[1:]))
    wrong = Fact("the cat sat on the", options[1], (options[0], options[2], options[3]))
    assert facts_right(policy_of(folder), tokenizer, [right, wrong, wrong]) == pytest.approx(1 / 3, abs=1e-12)


def test_facts_differ_and_no_option_comes_twice():
    assert len(FACTS) == 40 == len({fact.start for fact in FACTS})
    assert all(len({fact.right, *fact.wrong}) == 4 for fact in FACTS)


def test_the_ratio_is_after_over_before():
    assert Forgetting(Knowledge(20.0, 0.9), Knowledge(22.0, 0.8)).perplexity_ratio == pytest.approx(1.1, abs=1e-12)


def test_an_embedding_is_the_mean_hidden_state_whatever_the_batch(folder):
    texts = ["the cat sat", "a dog", "fish swam in the river ."]
    tokenizer = load_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval().model
    with torch.no_grad():
        ids = [torch.tensor([tokenizer(text)["input_ids"]]) for text in texts]
        expected = [model(each).last_hidden_state[0].mean(0).numpy() for each in ids]
    for token_budget in (1, 100):
        assert embeddings(folder, texts, token_budget) == pytest.approx(np.stack(expected), abs=TINY_FP32)


def test_the_judge_learns_from_sentences_and_is_tested_on_others(folder):
    words = ("film", "plot", "actor", "story", "scene", "music")
    reviews = [
        Review(f"the {word} was {'good fine bright happy' if good else 'bad awful dull sad'} {again}", good, True)
        for again in ("one", "two", "three", "four")
        for word in words
        for good in (True, False)
    ]
    judge, right = EmbeddingJudge.fit(folder, reviews, 8, token_budget=64)
    assert right.estimate == 1.0
    good, bad = judge(["the film was good fine bright happy five", "the film was bad awful dull sad five"])
    assert -1 <= bad < 0 < good <= 1
    seen = embeddings(folder, ["the film was good"], 64)
    odds = float(((seen[0] - judge.mean) / judge.spread) @ judge.coefficients + judge.intercept)
    assert judge(["the film was good"]) == pytest.approx([2 / (1 + math.exp(-odds)) - 1], abs=1e-12)
