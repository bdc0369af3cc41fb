"""Does the end card tell the right numbers, and warn when the reward was won cheaply?"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from tightrope.demo.card import DemoResult, Evaluated, card_json, card_table, card_text
from tightrope.maths.diagnostics import Interval, paired_difference, wilson_interval

SFT = Evaluated("SFT", [0.9, 0.1, 0.2, 0.5], [0.5, -0.5, 0.0, 0.2], [10, 10, 8, 12], 0.95, 0.0)
PPO = Evaluated("PPO", [0.9, 0.8, 0.7, 0.4], [0.6, 0.4, 0.5, 0.1], [8, 8, 8, 8], 0.9, 5.5)
RESULT = DemoResult(
    base=replace(SFT, name="base", kl=None, distinct_3=None),
    sft=SFT,
    best_of_n=replace(PPO, name="best of 8", independent=[0.4, 0.4, 0.4, 0.4]),
    dpo=replace(PPO, name="DPO", independent=[0.3, 0.3, 0.3, 0.3]),
    ppo=PPO,
    n=8,
    pairs=4000,
    rm_accuracy=Interval(0.7, 0.65, 0.75),
    seed=1,
    seconds=170.0,
    peak_rss_bytes=1 << 30,
    stage_seconds={"sft": 31.0, "rm": 12.0, "dpo": 9.0, "ppo": 53.0},
    next_commands=("tightrope samples run", "tightrope resume run", "tightrope label run"),
)
REQUIRED = {
    "gold_positive_before": 0.25,  # a probability of exactly 0.5 is not positive
    "gold_positive_after": 0.75,
    "independent_before": 0.05,
    "independent_after": 0.4,
    "kl_seq": 5.5,
    "rm_heldout_accuracy": 0.7,
    "response_length_before": 10.0,
    "response_length_after": 8.0,
    "dpo_independent_after": 0.3,
    "best_of_n_independent": 0.4,
    "seconds": 170.0,
    "peak_rss_bytes": 1 << 30,
}


def test_json_holds_every_promised_number():
    told = json.loads(json.dumps(card_json(RESULT), allow_nan=False))
    assert {key: told[key] for key in REQUIRED} == pytest.approx(REQUIRED, abs=1e-12)
    rise = paired_difference(SFT.independent, PPO.independent)
    assert told["independent_interval"] == pytest.approx([rise.low, rise.high], abs=1e-12)
    assert rise.low < told["independent_after"] - told["independent_before"] < rise.high


def test_intervals_are_of_shares_and_means():
    assert PPO.positive == wilson_interval(3, 4)
    assert PPO.sentiment.estimate == pytest.approx(0.4, abs=1e-12)
    assert PPO.sentiment.low < 0.4 < PPO.sentiment.high


@pytest.mark.parametrize("form", ["text", "table"])
def test_every_model_has_a_row(form):
    if form == "text":
        shown = card_text(RESULT)
    else:
        console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        console.print(card_table(RESULT))
        shown = console.export_text()
    for words in ("base", "SFT", "best of 8", "DPO", "PPO", "75%", "+0.40", "5.5", "0.90", "31", "12", "9", "53"):
        assert words in shown


def test_the_card_is_honest_and_says_what_next():
    shown = card_text(RESULT)
    for words in ("synthetic", "poor English", "PPO - SFT", "70.0%", *RESULT.next_commands):
        assert words in shown
    assert "Warning" not in shown


def test_repetition_and_shrinking_are_warned_of():
    cheap = replace(RESULT, ppo=replace(PPO, distinct_3=0.79, lengths=[5, 5, 6, 6]))
    shown = card_text(cheap)
    assert "repeats itself (distinct-3 0.79" in shown and "55% of the SFT model's length" in shown
    at_floor = replace(RESULT, ppo=replace(PPO, distinct_3=0.8, lengths=[6, 6, 6, 6]))
    assert "Warning" not in card_text(at_floor)
