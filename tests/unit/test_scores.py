"""Scores of a suite, with numbers worked by hand."""

import math

from kernel_lsp import scores

MIXED = [2.0, 0.5, None, 1.0]


def test_failures_stay_in_the_denominator_and_the_threshold_is_strict() -> None:
    assert scores.fast_p(MIXED, 0.0) == 0.75
    assert scores.fast_p(MIXED, 1.0) == 0.25


def test_means_are_over_correct_candidates_only() -> None:
    assert math.isclose(scores.geomean(MIXED) or 0, 1.0)  # (2 * 0.5 * 1) ** (1/3)
    assert math.isclose(scores.arithmetic_mean(MIXED) or 0, 3.5 / 3)


def test_nothing_measured_is_unknown_and_never_one() -> None:
    assert scores.geomean([None]) is None
    assert scores.arithmetic_mean([]) is None
    assert scores.fast_p([], 1.0) is None
    assert scores.fast_p([None], 0.0) == 0.0
