"""Statistics of timed rounds against numbers worked by hand."""

import math
import random
from collections.abc import Callable
from statistics import median_low

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
    assert not stats.is_settled([100.0, 50.0, 10.0, 5.0, 5.0])
    assert not stats.is_settled([100.0, 50.0, 10.0, 5.0, 5.0, 5.0])
    assert stats.is_settled([9.0, 5.0, 5.1, 5.0, 5.0, 5.2])


def test_the_bootstrap_ranks_of_three_and_five_values_worked_by_hand() -> None:
    # Three draws of three values: the median is the least when two or three draws hit it, with
    # probability 3 * (1/3)^2 * (2/3) + (1/3)^3 = 7/27 = 0.26 >= 0.025.
    assert stats.bootstrap_ranks(3, 0.95) == (0, 2)
    assert stats.binomial_tail(3, 1 / 3, 2) == pytest.approx(7 / 27)
    # Five: P(3 or more of 5 hit the least) = 0.05792; the tail of a 50 % interval is 0.25, which
    # the second value reaches: P(3 or more of 5 below 2/5) = 0.31744.
    assert stats.binomial_tail(5, 1 / 5, 3) == pytest.approx(0.05792)
    assert stats.bootstrap_ranks(5, 0.5) == (1, 3)
    # Of four, half are two: P(2 or more of 4 hit the least) = 0.2617 reaches a tail of 25 %.
    assert stats.bootstrap_ranks(4, 0.5) == (0, 3)


@pytest.mark.parametrize("count", [11, 30])
def test_ranks_are_where_resampling_ends_up(count: int) -> None:
    draw, times = random.Random(7), 20_000
    medians = sorted(median_low(draw.choices(range(count), k=count)) for _ in range(times))
    low, _ = stats.bootstrap_ranks(count, 0.95)
    assert medians[int(0.02 * times)] <= low <= medians[int(0.03 * times)]


@given(st.integers(1, 400))
def test_an_interval_is_symmetric_in_ranks(count: int) -> None:
    low, high = stats.bootstrap_ranks(count, 0.95)
    assert 0 <= low <= high < count and low + high == count - 1


def test_a_slow_round_is_dropped_for_everybody() -> None:
    calm = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99, 1.0]
    spiked = [*calm[:4], 9.0, *calm[5:]]
    assert stats.kept_rounds({"eager": calm, "candidate": spiked}) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_a_fast_round_is_no_outlier_and_equal_times_lose_none_for_a_tick() -> None:
    assert stats.kept_rounds({"eager": [1.0] * 9 + [0.1]}) == list(range(10))
    assert stats.kept_rounds({"eager": [1.0] * 9 + [1.02]}) == list(range(10))


def test_at_most_a_fifth_of_the_rounds_is_dropped_the_worst_first() -> None:
    times = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 1.0]
    assert stats.kept_rounds({"eager": times}) == [0, 1, 2, 3, 4, 5, 6, 9]


def test_the_worst_rounds_are_measured_by_the_spread_of_their_own_provider() -> None:
    steady = [1.2, 1.3, *[1.0] * 8]  # 40 and 60 times MIN_MAD above the median
    noisy = [11.0, 9.0, 20.0, 9.0, 11.0, 9.0, 11.0, 9.0, 11.0, 9.0]  # 10 times its own deviation
    assert stats.kept_rounds({"eager": steady, "candidate": noisy}) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_a_round_is_as_bad_as_its_worst_provider() -> None:
    one = [1.04, 1.1, 1.15, *[1.0] * 7]  # 8, 20 and 30 times MIN_MAD above the median
    other = [1.2, *[1.0] * 9]  # 40 times
    assert stats.kept_rounds({"eager": one, "candidate": other}) == [1, 3, 4, 5, 6, 7, 8, 9]
    assert stats.kept_rounds({"eager": other, "candidate": one}) == [1, 3, 4, 5, 6, 7, 8, 9]


def test_how_large_the_times_are_themselves_does_not_matter() -> None:
    large = [110.0, 111.0, *[100.0] * 8]  # 20 and 22 times MIN_MAD above the median
    small = [1.1, 0.9, 4.0, 0.9, 1.1, 0.9, 1.1, 0.9, 1.1, 0.9]  # 30 times its own deviation
    assert stats.kept_rounds({"eager": large, "candidate": small}) == [0, 3, 4, 5, 6, 7, 8, 9]
    assert stats.kept_rounds({}) == []


def test_a_round_counts_up_to_five_deviations_above_the_median() -> None:
    spread = [10.0, 10.0, 10.0, 9.0, 11.0, 9.0, 11.0, 9.0, 11.0]  # the deviation is 1
    assert stats.kept_rounds({"eager": [*spread, 15.0]}) == list(range(10))
    assert stats.kept_rounds({"eager": [*spread, 15.1]}) == list(range(9))


def test_warm_up_is_over_at_the_very_spread_and_after_twice_the_window() -> None:
    assert stats.is_settled([2.0, 2.0, 2.0, 3.0, 3.0, 3.0], spread=0.5)
    assert not stats.is_settled([2.0, 2.0, 2.0, 3.1, 3.1, 3.1], spread=0.5)
    assert stats.is_settled([3.0, 3.0, 3.0, 2.0, 2.0, 2.0], spread=0.5)
    assert not stats.is_settled([2.0] * 5) and stats.is_settled([2.0] * 2, window=1)


def test_an_interval_has_a_width_and_is_scaled_by_all_its_ends() -> None:
    interval = stats.scale_interval(stats.paired_speedup([1.0, 2.0, 4.0], [1.0] * 3, 0.95), 3.0)
    assert (interval.low, interval.mid, interval.high) == pytest.approx((3.0, 6.0, 12.0))
    assert interval.confidence == 0.95 and stats.width(interval) == pytest.approx(3.0)


def test_the_bounds_of_a_median_are_values_at_the_bootstrapped_ranks() -> None:
    assert stats.median_bounds([5.0, 3.0, 1.0, 4.0, 2.0], 0.5) == (2.0, 4.0)
    assert stats.median_bounds([7.0]) == (7.0, 7.0)
    with pytest.raises(ValueError, match="at least one"):
        stats.median_bounds([])


def test_tails_that_are_sure_are_one() -> None:
    assert stats.binomial_tail(4, 1.0, 3) == 1.0 and stats.binomial_tail(4, 0.3, 0) == 1.0
    assert stats.binomial_tail(2, 0.5, 1) == pytest.approx(0.75)


# --- a program against itself on machines of every temper -----------------------------------

Noise = Callable[[random.Random, int, int], float]
"""(draw, round, place in the round) -> factor on the time of one call."""


def quiet(draw: random.Random, number: int, place: int) -> float:
    return draw.lognormvariate(0, 0.02)


def loaded(draw: random.Random, number: int, place: int) -> float:
    return draw.lognormvariate(0, 0.3) * (draw.uniform(2, 50) if draw.random() < 0.05 else 1)


def two_modes(draw: random.Random, number: int, place: int) -> float:
    return draw.lognormvariate(0, 0.01) * (1.3 if draw.random() < 0.5 else 1)


def first_is_slower(draw: random.Random, number: int, place: int) -> float:
    return draw.lognormvariate(0, 0.02) * (1.1 if place == 0 else 1)


def drifting(draw: random.Random, number: int, place: int) -> float:
    return draw.lognormvariate(0, 0.05) * math.exp(0.1 * math.sin(number / 7))


@pytest.mark.parametrize("noise", [quiet, loaded, two_modes, first_is_slower, drifting])
@pytest.mark.parametrize("rounds", [30, 100])
def test_a_program_is_hardly_ever_called_faster_than_itself(noise: Noise, rounds: int) -> None:
    """Orders as timing.Rounds makes them; 300 trials, and at most 1 % may clear the threshold."""
    draw, false = random.Random(rounds), 0
    for _ in range(300):
        times: dict[str, list[float]] = {"eager": [], "candidate": []}
        order = list(times)
        for number in range(rounds):
            order = order[::-1] if number % 2 else draw.sample(order, 2)
            for place, name in enumerate(order):
                times[name].append(noise(draw, number, place))
        keep = stats.kept_rounds(times)
        claim = stats.paired_speedup(*([values[i] for i in keep] for values in times.values()))
        false += claim.low >= 1.05
    assert false <= 3
