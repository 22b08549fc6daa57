"""Statistics of timed rounds against numbers worked by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.evaluator import stats

times = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=30)


def test_quantiles_interpolate_between_order_statistics() -> None:
    assert stats.quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert stats.quantile([0.0, 10.0], 0.2) == 2.0
    assert stats.quantile([7.0], 0.8) == 7.0


def test_a_constant_ratio_has_an_interval_without_width() -> None:
    interval = stats.paired_speedup([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert interval.low == pytest.approx(2.0) and interval.high == pytest.approx(2.0)


def test_pairs_cancel_drift_that_hits_both() -> None:
    drift = [1.0, 5.0, 25.0, 125.0]
    interval = stats.paired_speedup([3 * d for d in drift], [2 * d for d in drift])
    assert interval.low == pytest.approx(1.5) and interval.mid == pytest.approx(1.5)


def test_one_outlier_does_not_move_the_median() -> None:
    interval = stats.paired_speedup([1.0] * 20 + [1000.0], [1.0] * 21)
    assert interval.mid == 1.0 and interval.high == 1.0


def test_rounds_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(ValueError, match="as many baseline as candidate"):
        stats.paired_speedup([1.0, 2.0], [1.0])


@given(times)
def test_the_interval_contains_the_estimate_and_swaps_with_the_roles(values: list[float]) -> None:
    other = list(reversed(values))
    there, back = stats.paired_speedup(values, other), stats.paired_speedup(other, values)
    assert there.low <= there.mid * (1 + 1e-12) and there.mid <= there.high * (1 + 1e-12)
    assert math.isclose(there.mid * back.mid, 1.0, rel_tol=1e-9)


def test_warm_up_is_over_when_two_medians_agree() -> None:
    assert not stats.settled([100.0, 50.0, 10.0, 5.0, 5.0])
    assert not stats.settled([100.0, 50.0, 10.0, 5.0, 5.0, 5.0])
    assert stats.settled([9.0, 5.0, 5.1, 5.0, 5.0, 5.2])
