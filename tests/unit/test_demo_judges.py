"""Do the demo's judges know good from bad, and are they the same after a round trip to disk?"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.config.errors import TightropeError
from tightrope.demo.corpus import Review
from tightrope.demo.judges import GoldJudge, first_is_preferred, gold, independent
from tightrope.types import Prompt, Sample

GOOD = "I think the film is really wonderful {}. What a great story it tells {}."
BAD = "I think the film is really terrible {}. What a boring story it tells {}."


@pytest.fixture(scope="module")
def judge():
    endings = ("today", "again", "here", "now", "indeed", "for me", "at home", "to us")
    reviews = [Review(form.format(end, end), form is GOOD) for end in endings for form in (GOOD, BAD)]
    return GoldJudge.fit(reviews)


def sample(prompt, response, row=None):
    return Sample(Prompt(0, (), prompt, row or {}), response, "stop", 1)


def test_the_gold_judge_tells_good_from_bad(judge):
    good, bad, neither = judge.probabilities(["a wonderful film", "a boring story", "nothing of that"])
    assert bad < 0.5 < good
    assert math.isclose(neither, 1 / (1 + math.exp(-judge.intercept)), abs_tol=1e-12)


def test_log_odds_are_the_equation_of_tfidf_and_logistic_regression(judge):
    place = {term: index for index, term in enumerate(judge.terms)}
    used = [place["wonderful"], place["story"]]
    weights = judge.idf[used] / np.linalg.norm(judge.idf[used])
    expected = weights @ judge.coefficients[used] + judge.intercept
    assert np.allclose(judge.log_odds(["wonderful story"]), expected, atol=1e-12)


def test_a_saved_judge_says_the_same(judge, tmp_path):
    judge.save(tmp_path / "gold.npz")
    texts = ["a wonderful film", "a boring story", ""]
    assert (GoldJudge.load(tmp_path / "gold.npz").log_odds(texts) == judge.log_odds(texts)).all()


def test_a_broken_file_is_one_line(tmp_path):
    path = tmp_path / "gold.npz"
    path.write_text("not arrays")
    with pytest.raises(TightropeError, match=r"gold\.npz: not a gold judge"):
        GoldJudge.load(path)


def test_reward_functions_read_prompt_and_response(judge, tmp_path):
    path = tmp_path / "gold.npz"
    judge.save(path)
    row = {"gold_judge": str(path)}
    samples = [sample("a wonderful", "film", row), sample("a boring", "film", row)]
    assert gold(samples) == judge.log_odds(["a wonderful film", "a boring film"]).tolist()
    high, low, zero = independent([sample("a wonderful", "film"), sample("a boring", "film"), sample("a", "film")])
    assert low < 0 == zero < high
    assert gold([]) == []


def test_gold_names_the_missing_column():
    with pytest.raises(TightropeError, match="gold_judge"):
        gold([sample("a", "film")])


def test_votes_are_bradley_terry_with_noise_and_seeded():
    first, second = [math.log(3.0)] * 4000, [0.0] * 4000
    votes = first_is_preferred(first, second, seed=1)
    assert abs(sum(votes) / 4000 - 0.75) < 0.03  # 4 standard errors
    assert votes == first_is_preferred(first, second, seed=1) != first_is_preferred(first, second, seed=2)
