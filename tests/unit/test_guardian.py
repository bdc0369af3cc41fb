"""The guardian on hand-written histories: alarm, remedy, failure to help, recovery, restart."""

import json
import math

import pytest

from tightrope.config.schema import GuardianSection
from tightrope.guardian.detectors.kl_limit import KLLimit
from tightrope.guardian.detectors.nonfinite import NonFinite
from tightrope.guardian.guardian import HISTORY_STEPS, StepGuardian
from tightrope.records import StepRecord

OPTIONS = GuardianSection(kl_limit=10.0, raise_factor=2.0, patience=3, max_nonfinite=3)


def kl_record(step, kl, **controls):
    return StepRecord("ppo", step, 0, {"kl_seq": kl}, controls)


def broken_record(step):
    return StepRecord("ppo", step, 0, {"nonfinite": 2.0, "skipped_updates": 1.0}, notes={"nonfinite": "loss, row 3"})


def kinds(guardian, values, first=0):
    """The kinds of action after each step of a history of KL values."""
    return [[a.kind for a in guardian.review(kl_record(first + i, kl))[1]] for i, kl in enumerate(values)]


def test_the_limit_itself_is_no_alarm():
    assert KLLimit(10.0).review([kl_record(0, 10.0)]) == []


def test_an_alarm_tells_value_and_limit():
    (finding,) = KLLimit(10.0).review([kl_record(0, 1.0), kl_record(1, 12.5)])
    assert (finding.detector, finding.severity, finding.step) == ("kl_limit", "alarm", 1)
    assert finding.evidence == {"kl_seq": 12.5, "kl_limit": 10.0}
    assert "12.5" in finding.message and "10" in finding.message


def test_only_the_last_record_counts():
    assert KLLimit(10.0).review([kl_record(0, 50.0), kl_record(1, 1.0)]) == []


@pytest.mark.parametrize(("kl", "alarms"), [(24.0, 0), (24.1, 1)])
def test_without_a_limit_it_is_four_times_the_target(kl, alarms):
    assert len(KLLimit().review([kl_record(0, kl, kl_target=6.0)])) == alarms


@pytest.mark.parametrize("history", [[], [StepRecord("sft", 0, 0, {"loss": 1.0})], [kl_record(0, 1e9)]])
def test_no_kl_or_no_limit_is_no_alarm(history):
    assert KLLimit().review(history) == []


def test_nonfinite_updates_are_an_alarm_that_names_them():
    (finding,) = NonFinite().review([broken_record(7)])
    assert finding.severity == "alarm" and "step 7" in finding.message and "loss, row 3" in finding.message
    assert finding.evidence == {"nonfinite": 2.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_is_an_alarm(value):
    (finding,) = NonFinite().review([StepRecord("ppo", 0, 0, {"loss": value, "kl_seq": 1.0})])
    assert "loss" in finding.message and "kl_seq" not in finding.message


def test_a_healthy_step_and_an_empty_history_have_no_nonfinite_numbers():
    assert NonFinite().review([]) == []
    assert NonFinite().review([StepRecord("ppo", 0, 0, {"loss": 1.0, "nonfinite": 0.0})]) == []


def test_a_healthy_run_is_left_alone():
    assert kinds(StepGuardian(OPTIONS), [0.0, 3.0, 9.9, 10.0]) == [[], [], [], []]


def test_the_first_alarm_keeps_a_checkpoint_and_raises_beta():
    findings, actions = StepGuardian(OPTIONS).review(kl_record(5, 12.0))
    assert [(a.kind, a.step, a.value) for a in actions] == [("checkpoint", 5, None), ("raise_beta", 5, 2.0)]
    assert all(findings[0].message == action.reason for action in actions)


def test_alarms_that_nothing_helps_against_stop_the_run():
    guardian = StepGuardian(OPTIONS)
    assert kinds(guardian, [12.0, 13.0, 14.0]) == [["checkpoint", "raise_beta"], ["raise_beta"], ["stop"]]


def test_the_stop_says_why_and_what_to_do():
    guardian = StepGuardian(OPTIONS)
    for step in range(3):
        _, actions = guardian.review(kl_record(step, 20.0))
    assert "KL 20 nats" in actions[0].reason and "3 alarms" in actions[0].reason
    assert "learning_rate" in actions[0].reason


def test_while_kl_falls_beta_is_left_alone_and_patience_starts_again():
    seen = kinds(StepGuardian(OPTIONS), [30.0, 31.0, 25.0, 20.0, 20.0, 20.0, 20.0])
    assert seen == [["checkpoint", "raise_beta"], ["raise_beta"], [], [], ["raise_beta"], ["raise_beta"], ["stop"]]


def test_a_small_dip_is_no_improvement():
    assert kinds(StepGuardian(OPTIONS), [30.0, 29.0, 28.0])[-1] == ["stop"]


def test_a_short_calm_does_not_end_the_episode():
    assert kinds(StepGuardian(OPTIONS), [12.0, 12.0, 9.0, 9.0, 12.0])[-1] == ["stop"]


def test_calm_steps_count_only_in_a_row():
    assert kinds(StepGuardian(OPTIONS), [12.0, 9.0, 9.0, 12.0, 9.0, 12.0])[-1] == ["stop"]


def test_improvement_is_measured_against_the_best_of_the_episode():
    assert kinds(StepGuardian(OPTIONS), [30.0, 20.0, 25.0, 19.0])[1:] == [[], ["raise_beta"], ["raise_beta"]]


def test_after_a_real_recovery_the_counters_start_again():
    seen = kinds(StepGuardian(OPTIONS), [12.0, 12.0, 9.0, 9.0, 9.0, 12.0, 12.0])
    assert seen[2:] == [[], [], [], ["checkpoint", "raise_beta"], ["raise_beta"]]


def test_steps_without_kl_neither_calm_nor_alarm():
    guardian = StepGuardian(OPTIONS)
    kinds(guardian, [12.0, 12.0])
    for step in range(2, 8):
        assert guardian.review(StepRecord("ppo", step, 0, {"loss": 1.0}))[1] == []
    assert kinds(guardian, [12.0], first=8) == [["stop"]]


def test_nonfinite_steps_in_a_row_stop_the_run():
    guardian = StepGuardian(OPTIONS)
    assert [[a.kind for a in guardian.review(broken_record(i))[1]] for i in range(3)] == [[], [], ["stop"]]


def test_one_good_step_forgives_nonfinite_ones():
    guardian = StepGuardian(OPTIONS)
    steps = [broken_record(0), broken_record(1), kl_record(2, 1.0), broken_record(3), broken_record(4)]
    assert all(guardian.review(entry)[1] == [] for entry in steps)
    assert guardian.review(broken_record(5))[1][0].kind == "stop"


def test_a_stop_comes_alone():
    guardian = StepGuardian(GuardianSection(kl_limit=10.0, max_nonfinite=1))
    _, actions = guardian.review(StepRecord("ppo", 0, 0, {"kl_seq": 50.0, "nonfinite": 1.0}))
    assert [action.kind for action in actions] == ["stop"]
    assert "1 step could not be used" in actions[0].reason


@pytest.mark.parametrize("cut", range(12))
def test_restored_equals_uninterrupted(cut):
    history = [kl_record(i, kl) for i, kl in enumerate([1.0, 12, 13, 9, 9, 12, 8, 8, 8, 12])]
    history += [broken_record(10), broken_record(11), broken_record(12)]
    straight = StepGuardian(OPTIONS)
    expected = [straight.review(entry) for entry in history]
    first = StepGuardian(OPTIONS)
    seen = [first.review(entry) for entry in history[:cut]]
    second = StepGuardian(OPTIONS)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    seen += [second.review(entry) for entry in history[cut:]]
    assert seen == expected
    assert second.state_dict() == straight.state_dict()


def test_the_history_is_bounded():
    guardian = StepGuardian(OPTIONS)
    kinds(guardian, [1.0] * (HISTORY_STEPS + 10))
    assert len(guardian.state_dict()["history"]) == HISTORY_STEPS
