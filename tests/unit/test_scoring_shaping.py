"""From a raw number to the reward that is learned from: normalising, length cost, missing EOS, in that order."""

from __future__ import annotations

import pytest
import torch

from tightrope.config.schema import MissingEosSection, RewardSection
from tightrope.scoring.normaliser import RewardNormaliser
from tightrope.scoring.shaping import shape_rewards


def section(mode="off", value=1.0, **fields):
    return RewardSection(
        missing_eos=MissingEosSection(mode=mode, value=value), **{"function": "file.py:f", "normalise": "off"} | fields
    )


def shaped(raw, stopped, rules, normaliser=None, lengths=None):
    raw = torch.tensor(raw)
    lengths = torch.full((len(raw),), 50) if lengths is None else torch.tensor(lengths)
    return shape_rewards(raw, lengths, torch.tensor(stopped), normaliser or RewardNormaliser(), rules)


@pytest.mark.parametrize(
    ("mode", "expected", "part"),
    [
        ("subtract", [2.0, -4.0, 0.0], [0.0, -1.0, -1.0]),
        ("replace", [2.0, -1.0, -1.0], [0.0, 2.0, -2.0]),
        ("off", [2.0, -3.0, 1.0], None),
    ],
)
def test_what_a_cut_response_costs(mode, expected, part):  # B16
    reward, parts = shaped([2.0, -3.0, 1.0], [True, False, False], section(mode))
    assert reward.tolist() == expected
    assert parts["raw"].tolist() == [2.0, -3.0, 1.0]
    assert ("missing_eos" in parts) == (mode != "off")
    if part is not None:
        assert parts["missing_eos"].tolist() == part


def test_length_costs_its_tokens():  # B81
    reward, parts = shaped([2.0, 2.0], [True, True], section(length_cost=0.01), lengths=[50, 1])
    assert reward.tolist() == pytest.approx([1.5, 1.99], abs=1e-6)
    assert parts["length_cost"].tolist() == pytest.approx([-0.5, -0.01], abs=1e-6)


def test_costs_come_after_normalising_and_the_parts_add_up():
    normaliser = RewardNormaliser(gain=0.5, bias=-1.0)
    rules = section("subtract", value=0.25, normalise="samples", length_cost=0.1)
    reward, parts = shaped([4.0, 8.0], [True, False], rules, normaliser, lengths=[1, 2])
    assert parts["normalised"].tolist() == [1.0, 3.0]
    assert reward.tolist() == pytest.approx([0.9, 2.55], abs=1e-6)
    total = parts["normalised"] + parts["length_cost"] + parts["missing_eos"]
    torch.testing.assert_close(total, reward, rtol=0, atol=1e-6)
    assert set(parts) == {"raw", "normalised", "length_cost", "missing_eos"}


def test_a_replaced_reward_is_the_penalty_itself_whatever_the_length():
    rules = section("replace", value=2.0, length_cost=0.1)
    reward, parts = shaped([4.0], [False], rules)
    assert reward.tolist() == [-2.0]
    assert (parts["raw"] + parts["length_cost"] + parts["missing_eos"]).tolist() == pytest.approx([-2.0], abs=1e-6)


def test_steps_that_are_switched_off_have_no_part():
    reward, parts = shaped([4.0], [True], section(), RewardNormaliser(2.0, 3.0))
    assert (reward.tolist(), set(parts)) == ([4.0], {"raw"})
    assert reward.dtype == parts["raw"].dtype == torch.float32


def test_gain_and_bias_of_four_scores():  # Ziegler et al. 2019; golden case rm_normalisation
    normaliser = RewardNormaliser()
    normaliser.fit([3.0, 5.0, 4.0, 8.0])
    assert (normaliser.gain, normaliser.bias) == pytest.approx((0.5345224838248488, -2.6726124191242437), abs=1e-9)
    scores = normaliser.apply(torch.tensor([3.0, 5.0, 4.0, 8.0], dtype=torch.float64))
    expected = [-1.0690449676496974, 0.0, -0.5345224838248486, 1.6035674514745466]
    assert scores.tolist() == pytest.approx(expected, abs=1e-9)


def test_constants_give_the_same_map_as_the_scores_they_describe():
    fitted = RewardNormaliser()
    fitted.fit([3.0, 5.0, 4.0, 8.0])
    known = RewardNormaliser.from_constants(5.0, 3.5**0.5)
    assert (known.gain, known.bias) == pytest.approx((fitted.gain, fitted.bias), abs=1e-12)


@pytest.mark.parametrize("raw", [[0.1, 0.1, 0.1], [2.5]])
def test_scores_that_do_not_vary_are_only_centred(raw):
    normaliser = RewardNormaliser()
    normaliser.fit(raw)
    assert normaliser.gain == 1.0
    assert normaliser.apply(torch.tensor(raw, dtype=torch.float64)).tolist() == pytest.approx([0.0] * len(raw), abs=0)
    assert RewardNormaliser.from_constants(raw[0], 0.0).state_dict() == normaliser.state_dict()


def test_the_normaliser_comes_back_from_its_state():
    fitted, loaded = RewardNormaliser(), RewardNormaliser()
    fitted.fit([0.3, 0.7, 11.0])
    loaded.load_state_dict(fitted.state_dict())
    raw = torch.tensor([1.0, 2.0])
    assert torch.equal(loaded.apply(raw), fitted.apply(raw))
    assert loaded.state_dict() == fitted.state_dict()


def test_a_suppressed_row_does_not_move_another_rows_reward():  # B84
    normaliser = RewardNormaliser(gain=0.5, bias=0.1)
    rules = section("replace", normalise="samples")
    calm, _ = shaped([1.0, 1.0], [True, False], rules, normaliser)
    wild, _ = shaped([1.0, 100.0], [True, False], rules, normaliser)
    assert calm[0] == wild[0]
    assert (normaliser.gain, normaliser.bias) == (0.5, 0.1)
