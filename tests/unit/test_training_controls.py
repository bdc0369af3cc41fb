"""Who moves beta, in which order, and does the dial come back exactly?"""

from __future__ import annotations

import math

import pytest

from tightrope.config.schedule import Schedule
from tightrope.config.schema import KLSection
from tightrope.training.controls import COOLDOWN_STEPS, BetaDial, default_target

TOTAL = 11


def dial(total_steps: int = TOTAL, **options) -> BetaDial:
    given = {"beta": 0.1, "target": 6.0, "mode": "adaptive"} | options
    if given["mode"] == "scheduled":
        given |= {"mode": "fixed", "beta": Schedule(first=given["beta"], last=given.pop("end", 0.0))}
    return BetaDial(KLSection(**given), total_steps)


def test_fixed_beta_stays() -> None:
    knob = dial(mode="fixed")
    knob.after_step(0, 1000.0, 64)
    assert knob.value() == 0.1


def test_adaptive_beta_follows_the_log_space_controller() -> None:
    knob = dial(mode="adaptive", lookahead=0.0)
    knob.after_step(0, 12.0, 64)
    assert knob.value() == pytest.approx(0.1 * math.exp(0.1))
    knob.after_step(1, 0.0, 64)
    assert knob.value() == pytest.approx(0.1)
    knob.after_step(2, 1e6, 64)
    assert knob.value() == pytest.approx(0.1 * math.exp(0.2))


def test_adaptive_beta_is_moved_for_the_kl_that_is_coming() -> None:
    """KL 3 after 2 moves the smoothed KL by 0.2, so that in 20 steps it will be 7 = target + 1."""
    knob = dial(mode="adaptive", lookahead=20.0)
    knob.after_step(0, 2.0, 64)
    assert knob.value() == pytest.approx(0.1 * math.exp(0.1 * (2.0 / 6.0 - 1.0)))
    before = knob.value()
    knob.after_step(1, 3.0, 64)
    assert knob.value() == pytest.approx(before * math.exp(0.1 / 6.0))
    before = knob.value()
    knob.after_step(2, 2.2, 64)  # where the smoothed KL stands: no slope any more
    assert knob.value() == pytest.approx(before * math.exp(0.1 * (2.2 / 6.0 - 1.0)))


def kl_peak(lookahead: float, target: float) -> float:
    """Of a policy that goes towards 0.6 / beta nats, an eighth of the way a step and at most 0.3 nats."""
    knob, kl, found = dial(mode="adaptive", lookahead=lookahead, target=target, beta=0.05), 0.0, []
    for step in range(60):
        knob.after_step(step, kl, 64)
        kl += max(-0.3, min(0.3, (0.6 / knob.value() - kl) / 8))
        found.append(kl)
    return max(found) / target


@pytest.mark.parametrize("target", [3.0, 4.0, 6.0])
def test_looking_ahead_keeps_kl_from_shooting_past_its_target(target) -> None:
    assert kl_peak(20.0, target) < 1.3 < 1.5 < kl_peak(0.0, target)


def test_adaptive_beta_keeps_its_bounds() -> None:
    knob = dial(mode="adaptive", beta_min=0.05, beta_max=0.11)
    for step in range(20):
        knob.after_step(step, 100.0, 64)
    assert knob.value() == 0.11
    for step in range(20):
        knob.after_step(step, -100.0, 64)
    assert knob.value() == 0.05


@pytest.mark.parametrize("mode", ["adaptive", "ziegler"])
def test_a_policy_that_is_not_trained_yet_moves_no_controller(mode) -> None:
    knob, later = dial(mode=mode), dial(mode=mode)
    for step in range(5):
        knob.after_step(step, 0.0, 64, policy_trains=False)
    assert knob.value() == 0.1
    knob.after_step(5, 3.0, 64)
    later.after_step(0, 3.0, 64)
    assert knob.value() == later.value()  # nor does what was seen until then linger


def test_a_schedule_goes_on_while_the_critic_has_its_head_start() -> None:
    knob = dial(mode="scheduled", end=0.0)
    knob.after_step(4, 0.0, 64, policy_trains=False)
    assert knob.value() == pytest.approx(0.05)


def test_zieglers_beta_depends_on_the_number_of_responses() -> None:
    knob = dial(mode="ziegler", horizon=10_000, beta=0.2)
    knob.after_step(0, 12.0, 256)
    assert knob.value() == pytest.approx(0.201024)


def test_a_scheduled_beta_is_at_its_start_in_step_0_and_at_its_end_in_the_last() -> None:
    knob = dial(mode="scheduled", beta=0.2, end=0.1)
    seen = []
    for step in range(TOTAL):
        seen.append(knob.value())
        knob.after_step(step, 1000.0, 64)
    assert seen == pytest.approx([0.2 - 0.01 * step for step in range(TOTAL)])


def test_without_a_target_a_controller_leaves_beta_alone() -> None:
    knob = dial(mode="adaptive", target=None)
    knob.after_step(0, 1000.0, 64)
    assert knob.value() == 0.1


@pytest.mark.parametrize("mode", ["adaptive", "ziegler"])
@pytest.mark.parametrize("kl", [math.nan, math.inf])
def test_a_kl_that_is_not_finite_leaves_beta_to_the_guardian(mode, kl) -> None:
    knob = dial(mode=mode)
    knob.after_step(0, kl, 64)
    assert knob.value() == 0.1


def test_the_target_is_settled_once_from_the_length_of_responses() -> None:
    knob = dial(target=None)
    knob.settle_target(100.0)
    assert knob.target == pytest.approx(10.0)
    knob.settle_target(500.0)
    assert knob.target == pytest.approx(10.0)
    named = dial(target=6.0)
    named.settle_target(500.0)
    assert named.target == 6.0
    assert default_target(1.0) == 4.0


@pytest.mark.parametrize("mode", ["adaptive", "fixed", "scheduled", "ziegler"])
def test_the_guardian_overrules_controller_and_schedule_for_a_cooldown(mode) -> None:
    """Each step the controller pulls down; the guardian's raise after step 3 holds through the cooldown."""
    knob = dial(mode=mode, gain=1.0, max_step=1.0)
    for step in range(4):
        knob.after_step(step, 0.0, 512)
    knob.multiply(4.0, 3)
    raised = knob.value()
    for step in range(4, 4 + COOLDOWN_STEPS):
        knob.after_step(step, 0.0, 512)
        assert knob.value() >= raised
    knob.after_step(4 + COOLDOWN_STEPS, 0.0, 512)
    if mode == "fixed":
        assert knob.value() == raised
    else:
        assert knob.value() < raised


def test_the_floor_does_not_keep_beta_from_rising() -> None:
    knob = dial(mode="adaptive")
    knob.multiply(2.0, 0)
    knob.after_step(1, 100.0, 64)
    assert knob.value() == pytest.approx(0.2 * math.exp(0.2))


def test_the_guardian_may_lower_what_it_raised() -> None:
    knob = dial(mode="fixed")
    knob.multiply(4.0, 0)
    knob.multiply(0.5, 1)
    knob.after_step(2, 0.0, 64)
    assert knob.value() == pytest.approx(0.2)


def test_two_raises_compound() -> None:
    knob = dial(mode="fixed")
    knob.multiply(2.0, 0)
    knob.after_step(1, 0.0, 64)
    knob.multiply(2.0, 1)
    knob.after_step(2, 0.0, 64)
    assert knob.value() == pytest.approx(0.4)


@pytest.mark.parametrize("mode", ["adaptive", "fixed", "scheduled", "ziegler"])
def test_a_restored_dial_goes_on_as_if_never_interrupted(mode) -> None:
    def moves(knob: BetaDial, steps: range) -> list[float]:
        values = []
        for step in steps:
            knob.after_step(step, 3.0 * step, 64)
            if step == 2:
                knob.multiply(2.0, step)
            values.append(knob.value())
        return values

    straight, first, second = (dial(mode=mode, target=None) for _ in range(3))
    straight.settle_target(80.0)
    first.settle_target(80.0)
    expected = moves(straight, range(10))
    begun = moves(first, range(4))
    second.load_state_dict(first.state_dict())
    assert begun + moves(second, range(4, 10)) == expected
    assert second.target == straight.target
