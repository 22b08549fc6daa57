"""Offsets of operands as source text: evaluated with numbers and compared with strides."""

import itertools

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from kernel_lsp.rewrite.codegen.core.index import IndexSpace, offset  # noqa: E402
from kernel_lsp.rewrite.codegen.core.ir import Dim, Operand  # noqa: E402

SIZES = {"a": 3, "b": 4, "c": 5}
DIMS = tuple(Dim(name=name, size=size, source=name) for name, size in SIZES.items())
SUBSETS = [axes for n in range(1, 4) for axes in itertools.combinations(range(3), n)]


def strided(axes: tuple[int, ...], point: tuple[int, ...]) -> int:
    """Row-major offset in a tensor that has only these axes."""
    total = 0
    for axis in axes:
        total = total * DIMS[axis].size + point[axis]
    return total


@pytest.mark.parametrize("axes", SUBSETS)
def test_one_index_over_all_dimensions_finds_every_operand(axes):
    text = offset(
        Operand(name="t", dtype="float32", axes=axes),
        DIMS,
        [IndexSpace(variable="i", axes=(0, 1, 2))],
    )
    for position, point in enumerate(itertools.product(range(3), range(4), range(5))):
        assert eval(text, {**SIZES, "i": position}) == strided(axes, point)


@pytest.mark.parametrize("axes", SUBSETS)
@pytest.mark.parametrize("reduced", [(2,), (1, 2), (1,), (0,)])
def test_rows_and_columns_find_every_operand(axes, reduced):
    rows = tuple(axis for axis in range(3) if axis not in reduced)
    spaces = [IndexSpace(variable="row", axes=rows), IndexSpace(variable="col", axes=reduced)]
    text = offset(Operand(name="t", dtype="float32", axes=axes), DIMS, spaces)
    for point in itertools.product(range(3), range(4), range(5)):
        names = {**SIZES, "row": strided(rows, point), "col": strided(reduced, point)}
        assert eval(text, names) == strided(axes, point)


@pytest.mark.parametrize("axes", SUBSETS)
def test_a_block_may_start_in_any_slice_and_run_into_the_next(axes):
    space = IndexSpace(variable="index", axes=(0, 1, 2), lead="lead")
    text = offset(Operand(name="t", dtype="float32", axes=axes), DIMS, [space])
    period = 20
    for start, step in itertools.product(range(0, 60, 7), range(7)):
        if start + step < 60:
            point = ((start + step) // 20, (start + step) // 5 % 4, (start + step) % 5)
            names = {**SIZES, "lead": start // period, "index": start % period + step}
            assert eval(text, names) == strided(axes, point)
