"""Index maps of moves by brute force: every position of small tensors, without torch."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.rewrite.codegen.core import affine, moves
from kernel_lsp.rewrite.codegen.core.affine import IndexSum, IndexTerm, Within, coordinate
from kernel_lsp.rewrite.codegen.core.moves import Axis, StridedWindow

FILL = -1


def value_of(index: IndexSum, at: tuple[int, ...]) -> int:
    """The number that the sum is at a position."""
    return index.constant + sum(factor * _term(term, at) for term, factor in index.terms)


def _term(term: IndexTerm, at: tuple[int, ...]) -> int:
    if isinstance(term.of, int):
        return at[term.of]
    inner = value_of(term.of, at)
    assert inner >= 0, "quotients and remainders are of what is never negative"
    return inner // term.by if term.kind == "div" else inner % term.by


def positions(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, sizes))


def coordinates(sizes: tuple[int, ...]) -> tuple[IndexSum, ...]:
    return tuple(coordinate(dim, size) for dim, size in enumerate(sizes))


def pairs(move: Any) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(position in the result, position in the source), for each element that is read."""
    found, under = move.read(coordinates(move.target))
    return {
        (at, tuple(value_of(index, at) for index in found))
        for at in positions(move.target)
        if all(one.low <= value_of(one.index, at) <= one.high for one in under)
    }


MOVES: dict[str, tuple[Any, Callable[[np.ndarray], np.ndarray]]] = {
    "slice": (StridedWindow((5, 4), (2, 4), (Axis(1, 2), Axis())), lambda x: x[1:5:2]),
    "flip": (StridedWindow((3, 4), (3, 4), (Axis(), Axis(3, -1))), lambda x: x[:, ::-1]),
    "pad": (
        StridedWindow((3, 2), (3, 5), (Axis(), Axis(-1))),
        lambda x: np.pad(x, ((0, 0), (1, 2)), constant_values=FILL),
    ),
    "behind": (
        StridedWindow((3, 2), (3, 4), (Axis(), Axis())),
        lambda x: np.pad(x, ((0, 0), (0, 2)), constant_values=FILL),
    ),
    "apart": (
        StridedWindow((2, 3), (2, 5), (Axis(), Axis(0, 1, 2))),
        lambda x: np.stack([x, np.full_like(x, FILL)], 2).reshape(2, 6)[:, :5],
    ),
    "roll": (moves.Roll((4, 3), (1, 2)), lambda x: np.roll(x, (1, 2), (0, 1))),
    "roll of one": (moves.Roll((4, 3), (0, 1)), lambda x: np.roll(x, 1, 1)),
    "permute": (moves.Permute((2, 3, 4), (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    "reshape": (moves.Reshape((4, 6), (2, 12)), lambda x: x.reshape(2, 12)),
    "reshape in the middle": (
        moves.Reshape((2, 6, 2, 5), (2, 3, 4, 5)),
        lambda x: x.reshape(2, 3, 4, 5),
    ),
    "flatten": (moves.Reshape((2, 3, 4), (24,)), lambda x: x.reshape(24)),
    "unflatten": (moves.Reshape((24,), (2, 3, 4)), lambda x: x.reshape(2, 3, 4)),
    "without ones": (moves.Reshape((1, 6, 1), (2, 3)), lambda x: x.reshape(2, 3)),
    "expand": (moves.Expand((1, 3, 2), (4, 3, 2)), lambda x: np.broadcast_to(x, (4, 3, 2))),
    "expand two": (moves.Expand((2, 1), (3, 2, 2)), lambda x: np.broadcast_to(x, (3, 2, 2))),
    "expand nothing": (moves.Expand((2, 1), (2, 1)), lambda x: x),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_move_reads_what_numpy_moves(name: str) -> None:
    move, by_numpy = MOVES[name]
    source = np.arange(math.prod(move.source)).reshape(move.source)
    expected = by_numpy(source)
    assert expected.shape == tuple(move.target)
    made = np.full(move.target, FILL)
    for at, place in pairs(move):
        made[at] = source[place]
    assert (made == expected).all()


@pytest.mark.parametrize("name", [name for name in MOVES if not name.startswith("expand")])
def test_an_adjoint_reads_the_same_pairs_from_the_other_end(name: str) -> None:
    move, _ = MOVES[name]
    back = move.adjoint()
    assert (back.source, back.target) == (tuple(move.target), tuple(move.source))
    assert {(place, at) for at, place in pairs(move)} == pairs(back)


@pytest.mark.parametrize("name", [name for name in MOVES if name.startswith("expand")])
def test_the_adjoint_of_an_expand_gathers_every_copy_once(name: str) -> None:
    move, _ = MOVES[name]
    gather = move.adjoint()
    copies = gather.copies(coordinates(gather.target))
    assert gather.count == len(copies)
    gathered = [
        (tuple(value_of(index, at) for index in copy), at)
        for copy in copies
        for at in positions(gather.target)
    ]
    assert len(set(gathered)) == len(gathered) and set(gathered) == pairs(move)
    assert gather.adjoint() == move


def test_the_windows_of_a_join_are_its_parts() -> None:
    join = moves.Join(1, ((2, 3), (2, 1), (2, 2)))
    assert join.target == (2, 6) and join.starts == (0, 3, 4)
    whole = np.arange(12).reshape(2, 6)
    for index, (start, end) in enumerate(((0, 3), (3, 4), (4, 6))):
        window = join.window(index)
        read = {at: int(whole[place]) for at, place in pairs(window)}
        assert read == {at: int(whole[:, start:end][at]) for at in positions(window.target)}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("slice", 0),
        ("flip", 0),
        ("pad", 1),
        ("behind", 1),
        ("apart", 2),
        ("roll", 0),
        ("expand", 0),
    ],
)
def test_only_what_may_be_filled_is_under_a_condition(name: str, count: int) -> None:
    move, _ = MOVES[name]
    assert len(move.read(coordinates(move.target))[1]) == count


def test_a_window_that_ends_at_the_edge_needs_no_condition_and_one_behind_it_does() -> None:
    edge = StridedWindow((4, 5), (4, 3), (Axis(), Axis(2)))
    assert edge.read(coordinates(edge.target))[1] == ()
    behind = StridedWindow((4, 5), (4, 3), (Axis(), Axis(3)))
    assert len(behind.read(coordinates(behind.target))[1]) == 1


def test_runs_are_as_short_as_they_can_be() -> None:
    assert moves.runs((2, 6, 5), (2, 3, 2, 5)) == [([0], [0]), ([1], [1, 2]), ([2], [3])]
    assert moves.runs((4, 6), (2, 12)) == [([0, 1], [0, 1])]
    assert moves.runs((1, 6), (6,)) == [([0, 1], [0])]


SUMS = st.lists(st.tuples(st.integers(0, 2), st.integers(-6, 6)), max_size=3)


def sum_of(terms: list[tuple[int, int]], constant: int, sizes: tuple[int, ...]) -> IndexSum:
    total = IndexSum((), constant)
    for dim, factor in terms:
        total = total.plus(coordinate(dim, sizes[dim]).times(factor))
    return total


@given(SUMS, st.integers(-9, 9), st.integers(1, 7))
def test_division_is_pythons_at_every_position(
    terms: list[tuple[int, int]], constant: int, by: int
) -> None:
    sizes = (4, 3, 5)
    terms = [(dim, abs(factor) if dim == 0 else factor) for dim, factor in terms]
    total = sum_of(terms, constant, sizes)
    quotient, rest = affine.divide(total, by)
    for at in positions(sizes):
        assert (value_of(quotient, at), value_of(rest, at)) == divmod(value_of(total, at), by)


@given(SUMS, st.integers(-9, 9))
def test_a_range_has_the_smallest_and_the_largest_value(
    terms: list[tuple[int, int]], constant: int
) -> None:
    sizes = (1, 3, 5)  # the first one counts as unbounded upwards: left out here
    total = sum_of([(dim, factor) for dim, factor in terms if dim], constant, sizes)
    values = [value_of(total, at) for at in positions(sizes)]
    assert total.range == (min(values), max(values))
    low, high = int(total.range[0]), int(total.range[1])
    assert Within(total, low, high).always and not Within(total, low, high).never
    assert not Within(total, low, high - 1).always and not Within(total, low + 1, high).always
    assert Within(total, high + 1, high + 2).never and Within(total, low - 2, low - 1).never
    assert not Within(total, high, high + 1).never and not Within(total, low - 1, low).never


def test_the_first_coordinate_has_no_end_and_may_not_fall() -> None:
    batch = coordinate(0, 4)
    assert batch.range == (0, math.inf)
    assert batch.times(-1).range == (-3, 0)
    assert affine.divide(batch, 4)[0].range == (0, math.inf)


def test_quotients_and_remainders_have_their_largest_values() -> None:
    column = coordinate(1, 10)
    quotient, rest = affine.divide(column, 4)
    assert quotient.range == (0, 2) and rest.range == (0, 3)
    twice = affine.divide(affine.divide(coordinate(1, 100), 4)[0], 3)[0]
    assert twice == affine.divide(coordinate(1, 100), 12)[0]


@pytest.mark.parametrize(
    ("source", "target"), [((4, 6), (2, 12)), ((24,), (2, 3, 4)), ((2, 6, 2, 5), (2, 3, 4, 5))]
)
def test_a_reshape_there_and_back_leaves_the_coordinates(
    source: tuple[int, ...], target: tuple[int, ...]
) -> None:
    there, back = moves.Reshape(source, target), moves.Reshape(target, source)
    at = coordinates(source)
    assert there.read(back.read(at)[0])[0] == at


def test_terms_that_cancel_leave_nothing() -> None:
    column = coordinate(1, 10)
    assert column.plus(column.times(-1)) == affine.ZERO
    assert column.plus(2).plus(-2) == column
    assert coordinate(1, 1) == affine.ZERO and coordinate(0, 1) != affine.ZERO
    assert affine.strides((2, 3, 4)) == (12, 4, 1)
