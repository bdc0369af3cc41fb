"""Are the intervals of a comparison the hand-worked ones?"""

from __future__ import annotations

import math

import pytest

from tightrope.maths.diagnostics import clustered_mean, paired_difference, wilson_interval, win_rate

Z = 1.959963984540054


def test_one_value_a_cluster_is_the_usual_interval():
    values = [1.0, 2.0, 6.0, 3.0]
    usual = paired_difference([0.0] * 4, values)
    assert clustered_mean(values, [3, 1, 2, 0]) == pytest.approx(usual, abs=1e-12)


def test_copies_of_a_value_are_no_evidence():
    """Every value twice in its cluster: n doubles, the interval stays."""
    once = clustered_mean([1.0, 2.0, 6.0], [0, 1, 2])
    assert clustered_mean([1.0, 1.0, 2.0, 2.0, 6.0, 6.0], [0, 0, 1, 1, 2, 2]) == pytest.approx(once, abs=1e-12)


def test_clusters_of_different_size():
    """Mean 2; sums of distances: cluster 0: -2 + 0 = -2, cluster 1: +2; sqrt(2/1 * 8) / 3 = 4/3."""
    found = clustered_mean([0.0, 2.0, 4.0], [0, 0, 1])
    assert found == pytest.approx((2.0, 2.0 - Z * 4 / 3, 2.0 + Z * 4 / 3), abs=1e-12)


def test_one_cluster_has_no_interval():
    assert clustered_mean([1.0, 3.0], [0, 0]) == (2.0, -math.inf, math.inf)


def test_win_rate_counts_a_tie_half_and_a_cluster_once():
    assert win_rate([1.0, 2.0], [0.0, 3.0], [0, 1]) == wilson_interval(1, 2)
    assert win_rate([1.0, 1.0], [1.0, 0.0], [0, 1]).estimate == 0.75
    assert win_rate([1.0, 2.0], [0.0, 3.0], [0, 1], confidence=0.5) == wilson_interval(1, 2, 0.5)
    # three pairs of one prompt, all won, and one of another, lost: each prompt is one trial
    assert win_rate([1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0, 0, 0, 1]) == wilson_interval(1, 2)


def test_a_mean_need_not_be_whole():
    assert clustered_mean([1.0, 2.0], [0, 1]).estimate == 1.5


@pytest.mark.parametrize(("ours", "theirs", "clusters"), [(1, 2, 2), (2, 1, 1), (2, 2, 1), (1, 1, 2), (2, 2, 3)])
def test_each_pair_has_two_numbers_and_a_cluster(ours, theirs, clusters):
    with pytest.raises(ValueError, match="equally many numbers"):
        win_rate([1.0] * ours, [0.0] * theirs, [0] * clusters)


@pytest.mark.parametrize("arguments", [([], []), ([1.0], []), ([1.0], [0, 1])])
def test_missing_numbers_are_refused(arguments):
    with pytest.raises(ValueError, match="at least one"):
        clustered_mean(*arguments)
    with pytest.raises(ValueError, match="at least one"):
        win_rate(arguments[0], arguments[0], arguments[1])
