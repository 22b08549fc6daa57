"""Bounds, verdicts and credit, against numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from library_helpers import on

from kernel_lsp.library import uplift


def test_the_bound_is_students_over_task_means() -> None:
    """Mean 0.5, standard deviation 0.2, so 0.2 / sqrt(3) = 0.11547, times 2.920 for two degrees:
    0.33717."""
    found = uplift.bounds([0.3, 0.5, 0.7])
    assert found is not None and found.tasks == 3
    assert found.mean == pytest.approx(0.5)
    assert found.low == pytest.approx(0.16283, abs=1e-5)
    assert found.high == pytest.approx(0.83717, abs=1e-5)
    assert uplift.bounds([0.5]) is None


@pytest.mark.parametrize(
    ("right", "speedup", "worth"),
    [(True, 2.0, math.log(2)), (True, 0.5, 0.0), (False, 2.0, 0.0), (True, None, 0.0)],
)
def test_what_would_not_be_offered_is_worth_nothing(
    right: bool, speedup: float | None, worth: float
) -> None:
    assert uplift.gain(right, speedup) == pytest.approx(worth)


def test_three_tasks_that_agree_are_enough() -> None:
    accepted, found, reason = uplift.verdict(
        [on("a", 0.5, 0.2), on("b", 0.9, 0.4), on("c", 0.7, 0.0)]
    )
    assert accepted and found is not None and found.low == pytest.approx(0.16283, abs=1e-5)
    assert reason == "uplift 1.649x (1.177 to 2.310) over 3 tasks"


def test_three_tasks_that_disagree_are_not_and_more_may_show_it() -> None:
    """Mean 0.3; deviation 0.3464, times 2.920 / sqrt(3): 0.584, so the bound is -0.284."""
    tasks = [on("a", 0.1, 0.0), on("b", 0.1, 0.0), on("c", 0.7, 0.0)]
    accepted, found, reason = uplift.verdict(tasks)
    assert not accepted and found is not None and found.low == pytest.approx(-0.284, abs=1e-3)
    assert "not shown" in reason and uplift.is_open(tasks)


def test_one_wrong_result_more_refuses_whatever_the_speed() -> None:
    tasks = [
        on("a", 2.0, 0.0),
        on("b", 2.0, 0.0),
        on("c", 2.0, 0.1),
        on("d", 2.0, 0.0, right_with=2),
    ]
    accepted, _, reason = uplift.verdict(tasks)
    assert (
        not accepted
        and "correctness falls: on d: 2 of 3 right with it, 3 without" in reason
        and not uplift.is_open(tasks)
    )


def test_of_what_a_model_drew_all_tasks_together_count() -> None:
    """One more wrong on d and one less on a: 11 of 12 each."""
    tasks = [
        on("a", 0.5, 0.2, right_without=2),
        on("b", 0.9, 0.4),
        on("c", 0.7, 0.0),
        on("d", 0.7, 0.1, right_with=2),
    ]
    assert uplift.verdict(tasks, drawn=True)[0] and not uplift.verdict(tasks)[0]
    more = [*tasks, on("e", 0.7, 0.1, right_with=1)]
    accepted, _, reason = uplift.verdict(more, drawn=True)
    assert not accepted and reason == "correctness falls: 12 of 15 right with it, 14 without it"
    assert not uplift.is_open(more, drawn=True)


def test_a_skill_that_does_harm_is_closed() -> None:
    tasks = [on(name, 0.0, 0.5) for name in "abc"]
    accepted, _, reason = uplift.verdict(tasks)
    assert not accepted and "harm" in reason and not uplift.is_open(tasks)


def test_three_tasks_of_harm_end_a_validation_and_nothing_else_does() -> None:
    harm = [on(name, 0.1, by) for name, by in (("a", 0.4), ("b", 0.5), ("c", 0.6))]
    assert uplift.hopeless(harm)
    assert not uplift.hopeless(harm[:2])
    # The mean is -0.1, and its bound 0.237: above 0, and below 1.
    open_still = [on(name, by, 0.4) for name, by in (("a", 0.1), ("b", 0.3), ("c", 0.5))]
    assert not uplift.hopeless(open_still)


def test_tasks_that_it_does_not_change_neither_help_nor_count() -> None:
    same = [on(f"s{n}", 0.4, 0.4, differs=False, samples=0) for n in range(5)]
    accepted, _, reason = uplift.verdict([*same, on("a", 0.5, 0.0), on("b", 0.5, 0.0)])
    assert not accepted and "changed 2 tasks and 3 are needed; on 5 it changed nothing" in reason
    assert uplift.verdict([*same, *(on(n, 0.5, 0.1) for n in "abc")])[0]
    once = on("once", 9.0, 0.0, samples=1, right_with=1, right_without=1)
    assert uplift.counted_tasks([once]) == []


def test_credit_is_what_is_lost_without_the_skill() -> None:
    """Task 1: a is worth 0.5, b 0.3, none 0.1: without a 0.2 less, without b nothing. Task 2: only
    b, 0.4 of
    0.6 above none. So a: (0.2 + 0) / 2, b: (0 + 0.4) / 2."""
    rows = [{"": 0.1, "a": 0.5, "b": 0.3}, {"": 0.2, "b": 0.6}]
    assert uplift.credits(rows, ["a", "b"]) == pytest.approx({"a": 0.1, "b": 0.2})
    assert uplift.credits([{"": 0.0, "a": 0.5, "twin": 0.5}], ["a", "twin"]) == {
        "a": 0.0,
        "twin": 0.0,
    }
    assert uplift.credits([], ["a"]) == {}


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=40), st.floats(-1, 1))
def test_bounds_move_with_the_values_and_hold_their_mean(values: list[float], by: float) -> None:
    found, moved = uplift.bounds(values), uplift.bounds([value + by for value in values])
    assert found is not None and moved is not None
    assert found.low <= found.mean <= found.high
    assert moved.low == pytest.approx(found.low + by, abs=1e-9)
