"""Which combinations of parameters are looked at, in which order."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.rewrite.choices import combinations, free_parameters


def test_a_space_that_fits_is_taken_whole_with_the_center_first() -> None:
    found = combinations({"tile": [64, 128], "warps": [4, 8]}, {"tile": 128, "warps": 4}, 8)
    assert found[0] == {"tile": 128, "warps": 4}
    assert found[1:] == [
        {"tile": 64, "warps": 4},
        {"tile": 64, "warps": 8},
        {"tile": 128, "warps": 8},
    ]


def test_of_a_larger_space_the_neighbors_one_change_first() -> None:
    space = {"a": [1, 2, 3], "b": [1, 2, 3], "c": [1, 2, 3]}
    found = combinations(space, {"a": 2, "b": 2, "c": 2}, 9)
    changed = [sum(choice[name] != 2 for name in space) for choice in found]
    assert changed == [0, 1, 1, 1, 1, 1, 1, 2, 2]
    assert found[1] == {"a": 1, "b": 2, "c": 2}


def test_an_estimate_orders_and_rules_out() -> None:
    def estimate(choice: dict[str, Any]) -> float:
        return math.inf if choice["tile"] == 256 else abs(choice["tile"] - 100)

    found = combinations({"tile": [32, 64, 128, 256]}, {"tile": 32}, 3, estimate)
    assert [choice["tile"] for choice in found] == [32, 128, 64]


def test_what_changes_the_meaning_is_never_searched() -> None:
    space = {"nonfinite": ["keep", "ignore"], "block": [1, 2]}
    assert free_parameters(space) == {"block": [1, 2]}
    assert combinations(space, {}, 8) == [
        {"nonfinite": "keep", "block": 1},
        {"nonfinite": "keep", "block": 2},
    ]


def test_a_limit_of_one_is_the_center_alone() -> None:
    assert combinations({"a": [1, 2]}, {"a": 2}, 1) == [{"a": 2}]


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
        min_size=1,
    ),
    st.integers(1, 20),
)
def test_combinations_are_distinct_legal_and_bounded(
    space: dict[str, list[int]], limit: int
) -> None:
    found = combinations(space, {}, limit)
    assert len(found) <= limit and found[0] == {name: choices[0] for name, choices in space.items()}
    assert len({tuple(sorted(choice.items())) for choice in found}) == len(found)
    assert all(choice[name] in space[name] for choice in found for name in space)
