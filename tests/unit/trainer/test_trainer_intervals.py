"""Bootstrapped means, where they can be counted by hand."""

import math

import pytest

from trainer.data import intervals


def test_of_two_values_the_interval_is_both_and_of_one_it_is_that() -> None:
    """Means of two draws of {0, 1}: 0 and 1 with chance 1/4 each, more than 2.5 %."""
    assert intervals.interval([0.0, 1.0]) == (0.0, 1.0)
    assert intervals.interval([0.25]) == (0.25, 0.25)
    assert intervals.interval([3.0] * 9) == (3.0, 3.0)


def test_sixteen_alike_and_one_other_move_by_how_often_that_one_is_drawn() -> None:
    """17 draws hold the other k times, k binomial (17, 1/17): 0 with chance 0.357, 3 or fewer with
    0.983, 2 or fewer with 0.925. So the interval is 0 to 3/17."""
    assert intervals.interval([0.0] * 16 + [1.0]) == (0.0, pytest.approx(3 / 17))


def test_whole_groups_are_drawn() -> None:
    """Groups {0, 0} and {1}: both times the first, 0; both times the second, 1; one of each,
    1/3."""
    assert intervals.of_groups([[0.0, 0.0], [1.0]]) == (0.0, 1.0)
    # Ten values that agree are one family: alone they would leave an interval, a family does not.
    assert intervals.of_groups([[0.0, 1.0] * 5]) == (0.5, 0.5)


def test_ratios_have_a_geometric_mean() -> None:
    found = intervals.ratios([math.log(0.5), math.log(2.0)])
    assert found == {
        "mean": pytest.approx(1.0),
        "low": pytest.approx(0.5),
        "high": pytest.approx(2),
    }
