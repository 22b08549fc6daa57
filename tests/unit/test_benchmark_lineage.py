"""What the benchmarks of lineages count as reproduced, as reached and as better."""

import math

import pytest

from benchmarks import lineage, lineage_transfer
from kernel_lsp.records import Interval


def span(low: float, high: float) -> Interval:
    return Interval(low=low, mid=(low + high) / 2, high=high)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (span(1.50, 1.60), span(1.58, 1.70), True),
        (span(1.50, 1.60), span(1.62, 1.70), True),  # within two hundredths of each other
        (span(1.50, 1.60), span(1.80, 1.90), False),
        (span(1.03, 1.05), span(0.99, 1.04), False),  # what paid must pay again
        (span(0.99, 1.01), span(0.98, 1.00), True),
        (span(1.50, 1.60), None, None),
    ],
)
def test_an_effect_is_reproduced_when_the_intervals_meet(
    first: Interval, second: Interval | None, said: bool | None
) -> None:
    assert lineage.reproduced(first, second) is said


def test_evaluations_are_counted_until_the_goal() -> None:
    assert lineage_transfer.first_at([1.0, 1.2, 1.5, 1.4], 1.45) == 3
    assert lineage_transfer.first_at([1.0, 1.2], 1.0) == 0
    assert lineage_transfer.first_at([1.0, 1.2], 2.0) == 2


def rows(*ratios: float) -> list[lineage_transfer.Row]:
    return [{"kernel": "k", "with": {"speed": ratio}, "without": {"speed": 1.0}} for ratio in ratios]


def test_the_ratio_of_both_searches_has_an_interval_over_kernels() -> None:
    low, mid, high = lineage_transfer.ratio(rows(2.0, 0.5))
    assert mid == pytest.approx(1.0) and low == pytest.approx(0.5) and high == pytest.approx(2.0)
    assert lineage_transfer.ratio(rows(1.1, 1.1, 1.1)) == pytest.approx((1.1, 1.1, 1.1))
    assert lineage_transfer.ratio([]) == (1.0, 1.0, 1.0)
    low, mid, _ = lineage_transfer.ratio(rows(*[1.0] * 11, *[1.2] * 11))
    assert mid == pytest.approx(math.sqrt(1.2)) and 1.0 < low < mid
