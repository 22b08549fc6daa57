"""Kernels of regions that move elements, before any text: what is written, how programs walk, and
which parameters are worth trying.

A program takes tiles of rows and columns. Columns are the last dimensions as far as everything that
is read walks them as one, rows the others: quotients and remainders are taken of rows and of
columns apart, never of each element."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kernel_lsp.rewrite.codegen.core import affine, source
from kernel_lsp.rewrite.codegen.core.affine import IndexSum, Within
from kernel_lsp.rewrite.codegen.core.ir import Operand, Value, topological
from kernel_lsp.rewrite.codegen.core.moves import (
    DimSizes,
    ElementMove,
    Expand,
    Gather,
    Join,
    Position,
)
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported
from kernel_lsp.rewrite.codegen.moving import neighbors
from kernel_lsp.rewrite.codegen.moving.evaluate import (
    Expression,
    MovedRead,
    MovedTensor,
    ReadPlan,
)
from kernel_lsp.rewrite.codegen.moving.neighbors import LoadRun
from kernel_lsp.rewrite.codegen.moving.writing import Tiling

MIN_COLUMNS = 64
"""Fewer leave a row of a tile shorter than a cache line of 16-bit elements."""
BLOCKS = (1024, 512, 256, 128, 64, 32)
MAX_SUMMED = 512
"""Columns of a tile whose rows are summed: the shorter, the fewer sums are stored."""
MAX_IDLE = 1.25
"""Columns of a tile over those that are there, where a wider tile is chosen."""
FEW = 8
"""Elements that may lie apart, next to others that are neighbors: channels of an image."""
BATCH = re.compile(r"IndexTerm\(kind='dim', of=0, by=\d+\)")
RESERVED = ("row_mask", "col_mask", "n_rows", "n_tiles", "n_blocks", "wide", "max", "each", "tile",
            "at_tile", "n_programs", "n_sums", "partial")  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedOutput:
    """A tensor that is written, contiguous."""

    name: str
    value: Value
    dtype: str
    like: str = ""
    """The tensor whose shape it has; empty: another shape, by its sizes."""
    shape: DimSizes = ()
    """Where it is not the job's: the same elements in another order."""
    via: tuple[ElementMove, ...] = ()
    """From a position of the job's shape to that of the element that is made there."""
    total: str = ""
    """``sum`` or ``mean``: all elements as one number; ``rows``: summed over the first dimensions,
    a row of sums for each program."""
    kept: DimSizes = ()
    """Sizes that are not summed, of ``rows``."""

    def place(self, at: Position) -> Position:
        """Where in the output the element lies that is made at a position of the job's shape."""
        for move in self.via:
            assert not isinstance(move, Gather | Join)
            at, _ = move.read(at)
        return at


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedJob:
    """One kernel: outputs of one shape, or with the same elements."""

    name: str
    doc: str
    shape: DimSizes
    outputs: tuple[MovedOutput, ...]
    tensors: tuple[MovedTensor, ...]
    """Everything that can be read."""

    @property
    def totals(self) -> tuple[MovedOutput, ...]:
        """Outputs that are numbers: all of them, or none."""
        return tuple(out for out in self.outputs if out.total in ("sum", "mean"))

    @property
    def row_sums(self) -> tuple[MovedOutput, ...]:
        """Outputs that are summed over rows, behind those that are stored."""
        return tuple(out for out in self.outputs if out.total == "rows")

    @property
    def stored(self) -> tuple[MovedOutput, ...]:
        """Outputs whose elements are written, not summed."""
        return tuple(out for out in self.outputs if not out.total)

    def within(self, output: MovedOutput) -> tuple[Within, ...]:
        """Where the output has elements: totals of smaller tensors share a kernel."""
        if not output.shape or output.via:
            return ()
        sizes = enumerate(zip(self.shape, output.shape, strict=True))
        return tuple(
            Within(affine.coordinate(dim, size), 0, own - 1).simple
            for dim, (size, own) in sizes
            if own != size
        )

    def shape_of(self, output: MovedOutput) -> DimSizes:
        """The shape of an output: its own, or the job's."""
        return output.shape or self.shape


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedKernel:
    """What a kernel loads and computes, and how its programs walk."""

    job: MovedJob
    results: tuple[tuple[Expression, ...], ...]
    """Of each output, the ``width`` neighbors that a position stands for."""
    loads: tuple[MovedRead, ...]
    tiling: Tiling
    is_turned: bool
    """Something is contiguous along the rows: tiles are square."""

    @property
    def width(self) -> int:
        """How many neighboring elements of an output one position stands for."""
        return len(self.results[0])

    @property
    def columns(self) -> int:
        """Elements of an output in a row."""
        return self.tiling.columns * self.width

    @property
    def runs(self) -> tuple[LoadRun, ...]:
        """What is loaded as one."""
        return () if self.is_turned else neighbors.load_runs(self.loads)

    @property
    def read(self) -> tuple[MovedTensor, ...]:
        """The tensors that are loaded, in the launcher's order."""
        loaded = {load.tensor for load in self.loads}
        return tuple(tensor for tensor in self.job.tensors if tensor in loaded)

    @property
    def given(self) -> tuple[MovedTensor, ...]:
        """What the launcher is called with: also those whose shapes the results have."""
        if self.job.outputs[0].name == "out":  # whatever the program's call hands over
            return self.job.tensors
        shapes = [self.job.shape] if self.job.totals else []
        alike = {output.like for output in self.job.outputs}
        shapes += [self.job.shape_of(output) for output in self.job.outputs if not output.like]
        first = [_lead_tensor(self.job, shape) for shape in (*shapes, *self.shares)]
        needed = {tensor for tensor in first if tensor is not None}
        needed |= set(self.read)
        return tuple(t for t in self.job.tensors if t in needed or t.operand.name in alike)

    @property
    def shares(self) -> dict[DimSizes, str]:
        """Parameters of the kernel, by the shape of what is averaged."""
        every = topological(output.value for output in self.job.outputs)
        found = (value.move for value in every if value.op == "share")
        shapes = dict.fromkeys(move.target for move in found if isinstance(move, Expand))
        return {shape: f"share_{place + 1}" for place, shape in enumerate(shapes)}

    @property
    def sizes(self) -> str:
        """What the source holds of the sizes, but for steps along dimension 0."""
        loads = [
            (
                load.tensor.operand.name,
                load.tensor.shape[1:],
                [
                    "lead"
                    if dim == 0 and index in (affine.ZERO, affine.coordinate(0, 0))
                    else index
                    for dim, index in enumerate(load.at)
                ],
                load.under,
            )
            for load in self.loads
        ]
        whole = all(output.like for output in self.job.outputs)
        first = "" if whole else lead(self.job, self.job.shape)
        first += "".join(f", {count(self.job, shape)}" for shape in self.shares)
        outputs = self.job.outputs
        stores = [stored_at(self.job, output) for output in outputs if output.via]
        inside = [self.job.within(output) for output in outputs if output.total]
        held = repr(
            (first, self.job.shape[1:], self.tiling.columns, self.width, loads, stores, inside)
        )
        return BATCH.sub("lead", held)


def plan_kernel(job: MovedJob) -> PlannedKernel:
    """Raises Unsupported where no tile reads its elements along memory."""
    if not job.shape or 0 in job.shape:
        raise Unsupported("no elements, or no dimensions")
    plain = _planned(job, 1)
    if plain.is_turned or any(output.via or output.total for output in job.outputs):
        return plain
    best, least = plain, _weight(plain)
    for width in neighbors.candidates(job.shape, _indices(plain.loads, plain.results)):
        try:
            found = _planned(job, width)
        except Unsupported:
            continue
        if not found.is_turned and (weight := _weight(found)) < neighbors.WORTH * least:
            best, least = found, weight
    return best


def _weight(planned: PlannedKernel) -> float:
    return neighbors.weight(planned.tiling.sizes, planned.width, planned.loads)


def _planned(job: MovedJob, width: int) -> PlannedKernel:
    """The kernel whose positions stand for ``width`` neighbors each."""
    sizes = neighbors.shape_with(job.shape, width)
    plan = ReadPlan(sizes, {tensor.operand: tensor for tensor in job.tensors})
    places = neighbors.places(job.shape, width)
    results = list[tuple[Expression, ...]]()
    for output in job.outputs:
        under = job.within(output)
        made = [plan.at(output.value, output.place(place), under) for place in places]
        results.append(tuple(one for one in made if isinstance(one, Expression)))
    loads = tuple(plan.loads)
    tiling, is_turned = _walk(job, sizes, results, loads)
    return PlannedKernel(
        job=job, results=tuple(results), loads=loads, tiling=tiling, is_turned=is_turned
    )


def _walk(
    job: MovedJob,
    sizes: DimSizes,
    results: Sequence[tuple[Expression, ...]],
    loads: Sequence[MovedRead],
) -> tuple[Tiling, bool]:
    """Tiles of the job, and whether they are square."""
    stored = [stored_at(job, output) for output in job.outputs if output.via]
    within = [item.index for output in job.outputs for item in job.within(output)]
    indices = [*_indices(loads, results), *affine.parts(stored), *within]
    memory = [affine.linear(load.at, load.tensor.steps) for load in loads]
    split = len(sizes) - len(job.row_sums[0].kept) if job.row_sums else None
    tiling, is_turned = _tiling(sizes, [*memory, *stored], indices, len(results[0]), split)
    if is_turned and split is not None:
        raise Unsupported("sums of rows that are read across")
    return tiling, is_turned


def stored_at(job: MovedJob, output: MovedOutput) -> IndexSum:
    """Where an element that is made is stored."""
    at = tuple(affine.coordinate(dim, size) for dim, size in enumerate(job.shape))
    return affine.linear(output.place(at), affine.strides(job.shape_of(output)))


def _tiling(
    sizes: DimSizes,
    memory: Sequence[IndexSum],
    indices: Sequence[IndexSum],
    width: int,
    split: int | None,
) -> tuple[Tiling, bool]:
    """The widest columns of which everything is read and written along memory. ``split``: those
    that are asked for."""
    splits = [split] if split else _splits(sizes, indices, -(-MIN_COLUMNS // width))
    for split in reversed(splits):
        tiling = Tiling(sizes=sizes, split=split)
        turned = [_is_turned(index, tiling) for index in memory]
        if None not in turned:
            return tiling, any(turned)
    raise Unsupported("neighbors in memory that no tile reads as neighbors")


def _indices(
    loads: Iterable[MovedRead], results: Iterable[Sequence[Expression]]
) -> Iterable[IndexSum]:
    """Every sum that the kernel takes of coordinates."""
    for load in loads:
        yield from affine.parts(_addresses(load))
        yield from affine.parts(condition.index for condition in load.under)
    for expression in _expressions(results):
        yield from affine.parts(condition.index for condition in expression.under)


def _expressions(results: Iterable[Sequence[Expression]]) -> Iterable[Expression]:
    """Everything that is computed, each once."""
    todo = [one for expressions in results for one in expressions]
    seen = set(todo)
    while todo:
        yield (one := todo.pop())
        new = [arg for arg in one.args if isinstance(arg, Expression) and arg not in seen]
        seen.update(new)
        todo += new


def _addresses(load: MovedRead) -> list[IndexSum]:
    if load.tensor.is_strided:
        return list(load.at)
    return [neighbors.address(load)]


def _splits(sizes: DimSizes, indices: Sequence[IndexSum], few: int) -> list[int]:
    """Where columns can begin, from the last place on: with all that is walked as one, and with
    more where they are fewer; never with dimension 0, if there are others."""
    found = [_factors(index) for index in indices]
    split, columns, splits = len(sizes) - 1, sizes[-1], list[int]()
    while split > 1:
        if not _walks_as_one(found, split, sizes):
            splits.append(split)
            if columns >= few:
                break
        split -= 1
        columns *= sizes[split]
    return splits if splits and splits[-1] == split else [*splits, split]


def _factors(index: IndexSum) -> dict[int, int]:
    return {item.of: factor for item, factor in index.terms if isinstance(item.of, int)}


def _walks_as_one(found: Sequence[dict[int, int]], split: int, sizes: DimSizes) -> bool:
    """All of the dimensions from the split on, and the one before them."""
    if sizes[split - 1] == 1:
        return True
    wide = [dim for dim in range(split, len(sizes)) if sizes[dim] != 1]
    if not wide:
        return True
    run = [split - 1, *wide]
    return all(
        factors.get(left, 0) == factors.get(right, 0) * sizes[right]
        for factors in found
        for left, right in pairwise(run)
    )


def _is_turned(index: IndexSum, tiling: Tiling) -> bool | None:
    """Whether neighbors in memory are rows of a tile; None where they are neither rows nor
    columns."""
    found = _factors(index)
    wide = [dim for dim, size in enumerate(tiling.sizes) if size != 1]
    columns = [dim for dim in wide if dim >= tiling.split]
    if not columns or found.get(columns[-1], 0) in range(-4, 5):
        return False
    behind = 1
    for dim in reversed(columns):
        if abs(found.get(dim, 0)) == 1 and behind <= FEW:
            return False
        behind *= tiling.sizes[dim]
    rows = [dim for dim in wide if dim < tiling.split]
    return True if rows and abs(found.get(rows[-1], 0)) == 1 else None


def count(job: MovedJob, shape: DimSizes) -> str:
    """Source of the number of elements of that shape."""
    inner = math.prod(shape[1:])
    return f"{lead(job, shape)} * {inner}" if inner != 1 else lead(job, shape)


def lead(job: MovedJob, shape: DimSizes) -> str:
    """Size of dimension 0, by a tensor's: the largest one's, where several have it."""
    tensor, size = _lead_tensor(job, shape), shape[0]
    if tensor is None:
        return str(size)
    own = tensor.shape[0]
    text = f"{tensor.operand.name}.shape[0]"
    if own == size:
        return text
    return f"{size // own} * {text}" if size > own else f"{text} // {own // size}"


def _lead_tensor(job: MovedJob, shape: DimSizes) -> MovedTensor | None:
    size = shape[0]
    large = sorted(job.tensors, key=lambda tensor: -math.prod(tensor.shape))
    with_lead = [tensor for tensor in large if tensor.shape]
    exact = [tensor for tensor in with_lead if tensor.shape[0] == size]
    parts = [t for t in with_lead if size % t.shape[0] == 0 or t.shape[0] % size == 0]
    return next(iter([*exact, *parts]), None)


def operand_tensor(operand: Operand, value: Any) -> MovedTensor:
    """The record of a fake tensor that the kernel reads."""
    shape = tuple(int(size) for size in value.shape)
    return MovedTensor(
        operand=operand,
        shape=shape,
        steps=tuple(int(step) for step in value.stride()),
        is_strided=not value.is_contiguous(),
    )


# --- parameters --------------------------------------------------------------------------


def parameters(planned: PlannedKernel) -> dict[str, list[Any]]:
    """Finite search space, default first."""
    if planned.is_turned:
        return {"BLOCK_ROWS": [64, 32], "BLOCK_COLS": [64, 32], "num_warps": [4, 8]}
    columns = min(_block(planned.columns), MAX_SUMMED if planned.job.row_sums else BLOCKS[0])
    low = all(t.operand.dtype in ("float16", "bfloat16") for t in planned.read)
    few = not low or is_uneven(planned)
    elements = 1024 if few else 2048
    rows = [max(1, n // columns) for n in (elements, 2 * elements, elements // 2)]
    return {
        "BLOCK_ROWS": list(dict.fromkeys(rows)),
        "BLOCK_COLS": [columns // planned.width],
        "num_warps": [8, 4] if low and few else [4, 8],
    }


def is_uneven(planned: PlannedKernel) -> bool:
    """Something is read from places that vectors do not begin at: each element of a thread's vector
    is a load of its own, and loads of a warp lie the farther apart the longer it is."""
    last = len(planned.tiling.sizes) - 1
    alone = {load for load in planned.loads if not load.tensor.is_strided}
    alone -= {load for run in planned.runs for load in run.loads}
    return any(neighbors.is_uneven(neighbors.address(load), last) for load in alone)


def _block(columns: int) -> int:
    """The widest block that leaves few of its columns idle."""
    if columns <= BLOCKS[-1]:
        return source.next_power_of_two(columns)
    covered = {block: -(-columns // block) * block for block in BLOCKS}
    few = [block for block in BLOCKS if covered[block] <= MAX_IDLE * columns]
    return few[0] if few else min(BLOCKS, key=lambda block: (covered[block], -block))
