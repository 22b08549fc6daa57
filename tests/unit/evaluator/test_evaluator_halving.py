"""Who meets how often and who goes on: small fields, worked by hand."""

from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.evaluator import successive_halving


def test_a_field_of_twelve_meets_3_6_12_and_24_times() -> None:
    assert list(successive_halving.stages(12)) == [(6, 3), (3, 6), (2, 12), (1, 24)]


def test_small_fields() -> None:
    assert list(successive_halving.stages(0)) == [] == list(successive_halving.stages(1))
    assert list(successive_halving.stages(2)) == [(1, 3)]
    assert list(successive_halving.stages(3)) == [(2, 3), (1, 6)]


def test_the_best_half_by_median_goes_on_and_one_slow_round_costs_nothing() -> None:
    times = {
        "a": [1.00, 1.02, 9.00],  # median 1.02
        "b": [1.01, 1.00, 1.01],  # median 1.01
        "c": [1.10, 1.10, 1.10],
        "d": [1.05, 1.20, 1.04],  # median 1.05
    }
    assert successive_halving.survivors(times, 2) == ["b", "a"]
    assert successive_halving.survivors(times, 4) == ["b", "a", "d", "c"]


def test_who_is_far_behind_leaves_though_there_is_room() -> None:
    # The bar is 1.25 times the best.
    times = {"a": [1.0, 1.0], "b": [1.25, 1.25], "c": [1.26, 1.26]}
    assert successive_halving.survivors(times, 3) == ["a", "b"]


def test_nobody_ran() -> None:
    assert successive_halving.survivors({}, 3) == [] == successive_halving.survivors({"a": []}, 3)


@given(st.integers(0, 200))
def test_every_stage_shrinks_the_field_until_one_is_left(count: int) -> None:
    left = count
    for most, rounds in successive_halving.stages(count):
        assert (
            most < left
            and successive_halving.FIRST_ROUNDS <= rounds <= successive_halving.MAX_ROUNDS
        )
        left = most
    assert left == min(count, 1)


@given(
    st.dictionaries(
        st.sampled_from("abcdef"), st.lists(st.floats(0.1, 10), min_size=1, max_size=5)
    ),
    st.integers(1, 6),
)
def test_the_fastest_always_survives(times: dict[str, list[float]], most: int) -> None:
    left = successive_halving.survivors(times, most)
    assert len(left) <= most and set(left) <= set(times)
    if times:
        middle = {name: sorted(values)[len(values) // 2] for name, values in times.items()}
        odd = {name: middle[name] for name, values in times.items() if len(values) % 2}
        if len(odd) == len(times):
            assert middle[left[0]] == min(middle.values())
