"""What does the reward model score: the training path's conversation, read at its last token, alone or in company?"""

from __future__ import annotations

import pytest
import torch

from tests.rollouts import reward_of
from tests.tiny import SPECIAL, WORDS, tiny_gpt2, tiny_llama
from tightrope.config.schema import DataSection
from tightrope.data.preferences import load_preferences
from tightrope.models.load import load_tokenizer
from tightrope.models.packed_forward import hidden_states, sequence_scores
from tightrope.scoring.checked import NonFiniteReward
from tightrope.scoring.reward_model import RewardModel, fingerprints
from tightrope.types import Prompt, Sample, TokenRows

TINY_FP32 = 1e-5  # scores of size 10 in float32, two orders of summation
PAIRS = (
    ("the cat sat", "on the mat", "in a tree and over the river"),
    ("tell me about the film", "good story .", "bad"),
    ("a", "dog ran", "bird flew over one two three"),
    ("user : who ?", "the actor", "fish"),
)


def sample(prompt, response, index=0):
    return Sample(Prompt(index, (1, 1, 1), "never read", {"prompt": prompt}), response, "length", 3)


SAMPLES = [sample(prompt, answer, i) for i, (prompt, *answers) in enumerate(PAIRS) for answer in [*answers, ""]]


def model_of(folder, token_budget=None):
    return RewardModel(reward_of(folder), load_tokenizer(folder), token_budget)


@pytest.fixture(scope="module", params=[tiny_llama, tiny_gpt2], ids=["llama", "gpt2"])
def folder(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("models") / request.param.__name__)


def test_scores_equal_those_of_the_training_path(folder, tmp_path):  # B21
    import json

    lines = [json.dumps({"prompt": p, "chosen": chosen, "rejected": rejected}) for p, chosen, rejected in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    section = DataSection(train=tmp_path / "pairs.jsonl", held_out=0)
    pairs = load_preferences(section, load_tokenizer(folder), context=64).train
    trained = sequence_scores(reward_of(folder), pairs.rows).tolist()
    asked = [sample(prompt, answer) for prompt, *answers in PAIRS for answer in answers]
    assert model_of(folder).score(asked) == pytest.approx(trained, abs=TINY_FP32)


def test_a_score_is_read_at_the_end_token_which_is_always_added(folder):
    reward, tokenizer = reward_of(folder), load_tokenizer(folder)
    ids = tokenizer("the cat sat on the mat")["input_ids"] + [tokenizer.eos_token_id]
    with torch.no_grad():
        hidden = hidden_states(reward, TokenRows.of([(ids, [])]))
        assert reward.head is not None
        expected = float(reward.head(hidden[-1:]))
        without_end = float(reward.head(hidden[-2:-1]))
    assert model_of(folder).score([sample("the cat sat", "on the mat")]) == pytest.approx([expected], abs=TINY_FP32)
    assert abs(expected - without_end) > 0.01


@pytest.mark.parametrize("budget", [None, 1, 12, 40])
def test_neighbours_order_and_budget_change_no_score(folder, budget):  # B10, B93
    alone = [model_of(folder).score([one])[0] for one in SAMPLES]
    assert model_of(folder, budget).score(SAMPLES) == pytest.approx(alone, abs=TINY_FP32)
    assert model_of(folder, budget).score(SAMPLES[::-1]) == pytest.approx(alone[::-1], abs=TINY_FP32)


@pytest.mark.parametrize("side", ["left", "right"])
def test_pad_token_and_padding_side_change_no_score(tmp_path, side):  # B19, B20
    distinct, same = tiny_llama(tmp_path / "distinct"), tiny_llama(tmp_path / "same", pad_is_eos=True)
    tokenizer = load_tokenizer(same)
    tokenizer.padding_side = side
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    reward = reward_of(same)
    reward.network.trunk.load_state_dict(reward_of(distinct).network.trunk.state_dict())  # pads start as zeros
    scores = RewardModel(reward, tokenizer).score(SAMPLES)
    assert scores == pytest.approx(model_of(distinct).score(SAMPLES), abs=1e-6)


def test_a_prompt_that_holds_the_end_token_is_read_to_its_own_end(tmp_path):  # B19
    folder = tiny_llama(tmp_path / "model", pad_is_eos=True)
    one = sample("the cat <eos> sat", "on the mat")
    scores = model_of(folder).score([one, sample("the cat <eos> sat", "on the tree")])
    assert abs(scores[0] - scores[1]) > 0.01


def test_text_is_tokenised_by_the_reward_models_own_tokenizer(tmp_path):  # B59
    reversed_words = tiny_llama(tmp_path / "reversed", words=WORDS[::-1])
    plain = tiny_llama(tmp_path / "plain")
    assert load_tokenizer(reversed_words)("cat")["input_ids"] != load_tokenizer(plain)("cat")["input_ids"]
    # The same rows of the embedding in another order make it the same model under another tokenizer.
    reward = reward_of(plain)
    moved = reward_of(reversed_words)
    words = dict.fromkeys([*SPECIAL, *WORDS])
    with torch.no_grad():
        moved.network.trunk.load_state_dict(reward.network.trunk.state_dict())
        embedding = reward.network.trunk.get_input_embeddings().weight
        for word in words:
            to, source = (load_tokenizer(f).convert_tokens_to_ids(word) for f in (reversed_words, plain))
            moved.network.trunk.get_input_embeddings().weight[to] = embedding[source]
    scores = RewardModel(moved, load_tokenizer(reversed_words)).score(SAMPLES)
    assert scores == pytest.approx(model_of(plain).score(SAMPLES), abs=1e-6)


def test_a_conversation_over_the_context_loses_the_beginning_of_its_prompt(folder):
    model = model_of(folder)
    long = " ".join(["cat", "dog"] * 40)
    fits = " ".join((["cat", "dog"] * 40)[-61:])  # 61 + 2 + EOS = 64
    scores = model.score([sample(long, "good film"), sample("a", "good film"), sample(fits, "good film")])
    assert model.cut == 1
    assert scores[0] == pytest.approx(scores[2], abs=TINY_FP32)
    model.score([sample("a", "b")])
    assert model.cut == 0


def test_an_answer_over_the_context_keeps_its_end(folder):
    model = model_of(folder)
    words = ["cat", "dog", "bird"] * 30
    scores = model.score([sample("a", " ".join(words)), sample("film", " ".join(words[1:]))])
    assert model.cut == 2
    assert scores[0] == pytest.approx(scores[1], abs=TINY_FP32)


def test_scoring_builds_no_graph_and_broken_weights_are_named(folder):
    reward = reward_of(folder)
    model = RewardModel(reward, load_tokenizer(folder))
    assert all(isinstance(score, float) for score in model.score(SAMPLES))
    assert reward.head is not None
    with torch.no_grad():
        reward.head.weight[0] = torch.nan
    with pytest.raises(NonFiniteReward, match="reward model: the reward of sample 0"):
        model.score(SAMPLES)


def test_fingerprints_repeat_and_tell_two_models_apart(folder):
    tokenizer = load_tokenizer(folder)
    first = fingerprints(model_of(folder))
    assert first == fingerprints(model_of(folder))
    other = fingerprints(RewardModel(reward_of(folder, seed=1), tokenizer))
    assert max(abs(a - b) for a, b in zip(first, other, strict=True)) > 0.01
