"""Which token is drawn for a uniform number, and with which log-prob?"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from tightrope.rollout.sampling import BLOCK, draw, uniforms
from tightrope.types import SampleKey

ALMOST_ONE = 1 - 2**-53  # the largest uniform number there is
KEY = SampleKey(3, 1, 4)


def test_draws_equal_a_search_through_the_cumulative_sum():
    generator = torch.Generator().manual_seed(0)
    for vocabulary in (2, BLOCK - 1, BLOCK, BLOCK + 1, 1000):
        logits = 3 * torch.randn(200, vocabulary, generator=generator)
        uniform = torch.rand(200, dtype=torch.float64, generator=generator)
        token, logprob = draw(logits, 0.7, uniform)
        probabilities = (logits / 0.7).softmax(-1).double().numpy()
        expected = [
            int(np.searchsorted(np.cumsum(row), u * row.sum(), side="right"))
            for row, u in zip(probabilities, uniform.numpy(), strict=True)
        ]
        assert token.tolist() == expected
        torch.testing.assert_close(
            logprob, (logits / 0.7).log_softmax(-1).gather(1, token[:, None])[:, 0], rtol=0, atol=1e-6
        )


def test_draws_follow_the_distribution():
    logits = torch.linspace(-2, 2, 150)
    n = 200_000
    token, _ = draw(logits.expand(n, -1), 1.3, torch.from_numpy(np.random.default_rng(0).random(n)))
    expected = (logits / 1.3).double().softmax(-1) * n
    assert chisquare(torch.bincount(token, minlength=150).numpy(), expected.numpy()).pvalue > 1e-3


def test_the_uniform_numbers_are_uniform_and_independent_along_a_response():
    table = uniforms(KEY, [(prompt, sample) for prompt in range(100) for sample in range(4)], 50).numpy()
    assert kstest(table.flatten(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(table[:, :-1].flatten(), table[:, 1:].flatten())[0, 1]) < 0.03  # 4 sigma of 20,000 pairs


@pytest.mark.parametrize("uniform", [0.0, 1e-300, 0.25, 0.5, 0.75, ALMOST_ONE])
@pytest.mark.parametrize("possible", [[0], [1, 3], [70], [0, 199], [5, 64, 128]])
def test_a_token_without_probability_is_never_drawn(uniform, possible):
    logits = torch.full((1, 200), -torch.inf)
    logits[0, possible] = torch.linspace(0, 1, len(possible))
    token, logprob = draw(logits, 1.0, torch.tensor([uniform], dtype=torch.float64))
    assert token.item() in possible
    assert logprob.isfinite().all()


def test_the_ends_of_the_unit_interval_give_the_first_and_the_last_possible_token():
    logits = torch.zeros(1, 200)
    logits[0, 0] = logits[0, 199] = -torch.inf
    assert draw(logits, 1.0, torch.tensor([0.0], dtype=torch.float64))[0].item() == 1
    assert draw(logits, 1.0, torch.tensor([ALMOST_ONE], dtype=torch.float64))[0].item() == 198


@pytest.mark.parametrize(
    ("token", "expected"), [(0, -0.2601184026), (1, -1.6886898312), (2, -3.1172612598)]
)  # B29: the temperature belongs into the log-prob
def test_logprobs_are_at_the_sampling_temperature(token, expected):
    edges = torch.tensor([0.0, 0.8, 0.97], dtype=torch.float64)
    drawn, logprob = draw(torch.tensor([[2.0, 1.0, 0.0]]), 0.7, edges[token : token + 1])
    assert drawn.item() == token
    assert logprob.item() == pytest.approx(expected, abs=1e-6)


def test_half_precision_logits_are_widened_before_the_softmax():
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)).bfloat16()
    uniform = torch.full((4,), 0.4, dtype=torch.float64)
    token, logprob = draw(logits, 1.0, uniform)
    expected = logits.float().log_softmax(-1).gather(1, token[:, None])[:, 0]
    assert logprob.dtype == torch.float32
    torch.testing.assert_close(logprob, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [0, 63, 64, 129])
def test_logits_that_are_no_numbers_show_in_the_logprob_of_their_row_alone(broken, place):
    logits = torch.zeros(3, 130)
    logits[1, place] = broken
    token, logprob = draw(logits, 1.0, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
    assert logprob.isfinite().tolist() == [True, False, True]
    assert bool((token < 130).all())


@pytest.mark.parametrize(
    "other", [SampleKey(4, 1, 4), SampleKey(3, 2, 4), SampleKey(3, 1, 5)], ids=["seed", "attempt", "step"]
)
def test_every_part_of_the_key_changes_the_numbers(other):
    assert not (uniforms(KEY, [(0, 0)], 8) == uniforms(other, [(0, 0)], 8)).any()


def test_prompt_and_sample_change_the_numbers_and_neighbours_do_not():
    table = uniforms(KEY, [(0, 0), (1, 0), (0, 1)], 8)
    assert len(table.flatten().unique()) == 24
    assert (table[2] == uniforms(KEY, [(0, 1)], 8)[0]).all()


def test_a_longer_limit_only_appends_numbers():
    assert (uniforms(KEY, [(2, 3)], 5) == uniforms(KEY, [(2, 3)], 64)[:, :5]).all()
