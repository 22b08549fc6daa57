"""Triton source of regions that move elements: a kernel over the elements of the result.

A program takes a tile of rows and columns. Columns are the last dimensions as far as everything
that is read walks them as one, rows the others: quotients and remainders are taken of rows and of
columns apart, never of each element. DimSizes behind dimension 0 are written into the source, which
says which in ``sizes``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kernel_lsp.rewrite.codegen.core import affine, source
from kernel_lsp.rewrite.codegen.core.affine import IndexSum
from kernel_lsp.rewrite.codegen.core.body import UniqueNames
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
from kernel_lsp.rewrite.codegen.moving import lanes
from kernel_lsp.rewrite.codegen.moving.evaluate import (
    Expression,
    MovedRead,
    MovedTensor,
    ReadPlan,
)
from kernel_lsp.rewrite.codegen.moving.lanes import LoadRun
from kernel_lsp.rewrite.codegen.moving.writing import Tiling, Writer

MIN_COLUMNS = 64
"""Fewer leave a row of a tile shorter than a cache line of 16-bit elements."""
BLOCKS = (1024, 512, 256, 128, 64, 32)
MAX_IDLE = 1.25
"""Columns of a tile over those that are there, where a wider tile is chosen."""
FEW = 8
"""Elements that may lie apart, next to others that are neighbors: channels of an image."""
BATCH = re.compile(r"IndexTerm\(kind='dim', of=0, by=\d+\)")
RESERVED = ("row_mask", "col_mask", "n_rows", "n_tiles", "n_blocks", "wide", "max")


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

    def place(self, at: Position) -> Position:
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
    total: str = ""
    """``sum`` or ``mean``: the only output is that of its value, as one number."""

    def shape_of(self, output: MovedOutput) -> DimSizes:
        return output.shape or self.shape


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedKernel:
    """What a kernel loads and computes, and how its programs walk."""

    job: MovedJob
    results: tuple[tuple[Expression, ...], ...]
    """Of each output so many neighbors as there are lanes."""
    loads: tuple[MovedRead, ...]
    tiling: Tiling
    is_turned: bool
    """Something is contiguous along the rows: tiles are square."""

    @property
    def lanes(self) -> int:
        """Elements of an output that one position stands for."""
        return len(self.results[0])

    @property
    def columns(self) -> int:
        """Elements of an output in a row."""
        return self.tiling.columns * self.lanes

    @property
    def runs(self) -> tuple[LoadRun, ...]:
        """What is loaded as one."""
        return () if self.is_turned else lanes.load_runs(self.loads)

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
        shapes = [self.job.shape] if self.job.total else []
        alike = {output.like for output in self.job.outputs}
        shapes += [self.job.shape_of(output) for output in self.job.outputs if not output.like]
        needed = {
            lead for shape in (*shapes, *self.shares) if (lead := _lead_tensor(self.job, shape))
        }
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
        lead = "" if whole else _lead(self.job, self.job.shape)
        lead += "".join(f", {_count(self.job, shape)}" for shape in self.shares)
        stores = [_stored(self.job, output) for output in self.job.outputs if output.via]
        held = repr((lead, self.job.shape[1:], self.tiling.columns, self.lanes, loads, stores))
        return BATCH.sub("lead", held)


def plan_kernel(job: MovedJob) -> PlannedKernel:
    """Raises Unsupported where no tile reads its elements along memory."""
    if not job.shape or 0 in job.shape:
        raise Unsupported("no elements, or no dimensions")
    plain = _planned(job, 1)
    if job.total or plain.is_turned or any(output.via for output in job.outputs):
        return plain
    best, least = plain, _weight(plain)
    wide = lanes.candidates(job.shape, _indices(plain.loads, plain.results))
    for count in wide:
        try:
            found = _planned(job, count)
        except Unsupported:
            continue
        if not found.is_turned and (weight := _weight(found)) < lanes.WORTH * least:
            best, least = found, weight
    return best


def _weight(planned: PlannedKernel) -> float:
    return lanes.weight(planned.tiling.sizes, planned.lanes, planned.loads)


def _planned(job: MovedJob, count: int) -> PlannedKernel:
    """With so many lanes."""
    sizes = lanes.shape_with(job.shape, count)
    plan = ReadPlan(sizes, {tensor.operand: tensor for tensor in job.tensors})
    places = lanes.places(job.shape, count)
    results = list[tuple[Expression, ...]]()
    for output in job.outputs:
        made = [plan.at(output.value, output.place(place)) for place in places]
        results.append(tuple(one for one in made if isinstance(one, Expression)))
    loads = tuple(plan.loads)
    stored = [_stored(job, output) for output in job.outputs if output.via]
    indices = [*_indices(loads, results), *affine.parts(stored)]
    memory = [affine.linear(load.at, load.tensor.steps) for load in loads]
    tiling, is_turned = _tiling(sizes, [*memory, *stored], indices, count)
    return PlannedKernel(
        job=job, results=tuple(results), loads=loads, tiling=tiling, is_turned=is_turned
    )


def _stored(job: MovedJob, output: MovedOutput) -> IndexSum:
    """Where an element that is made is stored."""
    at = tuple(affine.coordinate(dim, size) for dim, size in enumerate(job.shape))
    return affine.linear(output.place(at), affine.strides(job.shape_of(output)))


def _tiling(
    sizes: DimSizes, memory: Sequence[IndexSum], indices: Sequence[IndexSum], count: int
) -> tuple[Tiling, bool]:
    """The widest columns of which everything is read and written along memory."""
    splits = _splits(sizes, indices, -(-MIN_COLUMNS // count))
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
    todo = [one for neighbors in results for one in neighbors]
    seen = set(todo)
    while todo:
        yield (one := todo.pop())
        new = [arg for arg in one.args if isinstance(arg, Expression) and arg not in seen]
        seen.update(new)
        todo += new


def _addresses(load: MovedRead) -> list[IndexSum]:
    if load.tensor.is_strided:
        return list(load.at)
    return [lanes.address(load)]


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


# --- parameters --------------------------------------------------------------------------


def parameters(planned: PlannedKernel) -> dict[str, list[Any]]:
    """Finite search space, default first."""
    if planned.is_turned:
        return {"BLOCK_ROWS": [64, 32], "BLOCK_COLS": [64, 32], "num_warps": [4, 8]}
    columns = _block(planned.columns)
    low = all(t.operand.dtype in ("float16", "bfloat16") for t in planned.read)
    elements = 2048 if low else 1024
    rows = [max(1, n // columns) for n in (elements, 2 * elements, elements // 2)]
    return {
        "BLOCK_ROWS": list(dict.fromkeys(rows)),
        "BLOCK_COLS": [columns // planned.lanes],
        "num_warps": [4, 8],
    }


def _block(columns: int) -> int:
    """The widest block that leaves few lanes idle."""
    if columns <= BLOCKS[-1]:
        return source.next_power_of_two(columns)
    covered = {block: -(-columns // block) * block for block in BLOCKS}
    few = [block for block in BLOCKS if covered[block] <= MAX_IDLE * columns]
    return few[0] if few else min(BLOCKS, key=lambda block: (covered[block], -block))


# --- text --------------------------------------------------------------------------------


def texts(planned: PlannedKernel, choice: Mapping[str, Any]) -> list[str]:
    """Kernel and launcher."""
    return [_kernel(planned), _launcher(planned, choice)]


def _kernel(planned: PlannedKernel) -> str:
    job, columns = planned.job, planned.tiling.columns
    pointers = [f"{t.operand.name}_ptr" for t in planned.read]
    pointers += [f"{output.name}_ptr" for output in job.outputs]
    steps = [name for tensor in planned.read for name in tensor.stride_names]
    shares = planned.shares
    taken = UniqueNames([*RESERVED, *pointers, *steps, *shares.values()])
    writer = Writer(planned.tiling, taken, shares, planned.runs)
    stores = []
    wide = planned.tiling.widened(planned.lanes)
    writer.widths |= {wide.width} - {1}
    for output, result in zip(job.outputs, planned.results, strict=True):
        text = writer.joined([str(writer.text(one)) for one in result])
        if job.total:
            summed = f"tl.sum(tl.sum(tl.where(mask, {text}, 0.0), axis=1), axis=0)"
            stores.append(f"    tl.store(partial_ptr + pid, {summed})")
            continue
        cols = f"cols{wide.suffix}"
        if output.via:
            where = writer.index(_stored(job, output))
            stores.append(f"    tl.store({output.name}_ptr + {where}, {text}, mask=mask)")
            continue
        where = f"rows * {wide.columns} + {cols}" if wide.columns != 1 else f"rows + {cols}"
        stores.append(f"    tl.store({output.name}_ptr + {where}, {text}, mask=mask{wide.suffix})")
    lines = [
        "    # int64 where offsets can pass 2**31",
        "    pid = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)",
        f"    n_blocks: tl.constexpr = ({columns} + BLOCK_COLS - 1) // BLOCK_COLS",
        "    rows = pid // n_blocks * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]",
        "    cols = pid % n_blocks * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]",
        f"    row_mask, col_mask = rows < n_rows, cols < {columns}",
        "    mask = row_mask & col_mask  # the last tiles reach past the end",
        *(line for width in sorted(writer.widths) for line in _wide_lines(width, columns)),
        *writer.lines,
        *stores,
    ]
    header = [
        *pointers, "n_rows", *steps, *shares.values(),
        "BLOCK_ROWS: tl.constexpr", "BLOCK_COLS: tl.constexpr", "WIDE: tl.constexpr",
    ]  # fmt: skip
    doing = "sums" if job.total else "writes"
    doc = f"Each program {doing} a tile; a row has {wide.columns} elements of {_words(job.shape)}"
    doc += f", {planned.lanes} a column." if planned.lanes > 1 else "."
    return source.kernel_text(f"_{job.name}_kernel", header, doc, lines)


def _wide_lines(width: int, columns: int) -> list[str]:
    """The neighbors of each column."""
    block = f"{width} * BLOCK_COLS"
    return [
        f"    cols_{width} = pid % n_blocks * ({block}) + tl.arange(0, {block})[None, :]",
        f"    mask_{width} = row_mask & (cols_{width} < {width * columns})",
    ]


def _words(shape: DimSizes) -> str:
    return f"({', '.join(['n', *map(str, shape[1:])])}{',' if len(shape) == 1 else ''})"


def _launcher(planned: PlannedKernel, choice: Mapping[str, Any]) -> str:
    job, columns = planned.job, planned.columns
    plain = [t.operand for t in planned.read if not t.is_strided]
    furthest = [t.furthest for t in planned.read] + [f"n_rows * {columns}"]
    shapes = [(t.operand.name, t.operand.dtype, _words(t.shape)) for t in planned.given]
    if not job.total:
        outputs = job.outputs
        shapes += [(out.name, out.dtype, _words(job.shape_of(out))) for out in outputs]
    call = f"_{job.name}_kernel[(n_tiles,)]("
    lines = [
        f"def {job.name}({', '.join(t.operand.name for t in planned.given)}):",
        *source.docstring(job.doc, shapes),
        *source.make_contiguous(plain),
        *_made_lines(planned, choice),
        "    if n_tiles > 0:  # a grid of zero programs cannot be launched",
        f"        wide = max({', '.join(furthest)}) >= 2**31",
        source.wrap_items(call, _arguments(planned, choice), ")", indent="        "),
        f"    return {_returned(planned, columns)}",
        "",
    ]
    return "\n".join(lines)


def _arguments(planned: PlannedKernel, choice: Mapping[str, Any]) -> list[str]:
    """Of the kernel."""
    return [
        *(t.operand.name for t in planned.read),
        *(output.name for output in planned.job.outputs),
        "n_rows",
        *(text for t in planned.read for text in t.stride_arguments),
        *planned.shares.values(),
        *(f"{name}={choice[name]}" for name in ("BLOCK_ROWS", "BLOCK_COLS")),
        "WIDE=wide",
        f"num_warps={choice['num_warps']}",
    ]


def _made_lines(planned: PlannedKernel, choice: Mapping[str, Any]) -> list[str]:
    """What is written to, and how many rows and tiles there are."""
    job, columns = planned.job, planned.columns
    tiles = f"({source.blocks('n_rows', choice['BLOCK_ROWS'])})"
    tiles += f" * {-(-planned.tiling.columns // choice['BLOCK_COLS'])}"
    shares = [
        f"    {name} = 1.0 / max({_count(job, shape)}, 1)" for shape, name in planned.shares.items()
    ]
    if job.total:
        device = f"{planned.given[0].operand.name}.device"
        return [
            f"    n_rows = {_count(job, planned.tiling.row_sizes)}",
            *shares,
            f"    n_tiles = {tiles}",
            f"    partial = torch.empty(n_tiles, dtype=torch.float32, device={device})",
        ]
    rows = f"{job.outputs[0].name}.numel()" + (f" // {columns}" if columns != 1 else "")
    made = [_allocate(output, planned) for output in job.outputs]
    return [*made, f"    n_rows = {rows}", *shares, f"    n_tiles = {tiles}"]


def _returned(planned: PlannedKernel, columns: int) -> str:
    job = planned.job
    if not job.total:
        return ", ".join(output.name for output in job.outputs)
    whole = f"partial.sum() / (n_rows * {columns})" if job.total == "mean" else "partial.sum()"
    dtype = job.outputs[0].dtype
    if dtype == "float32":
        return whole
    return f"({whole}).to(torch.{dtype})" if job.total == "mean" else f"{whole}.to(torch.{dtype})"


def _allocate(output: MovedOutput, planned: PlannedKernel) -> str:
    job, device = planned.job, f"{planned.given[0].operand.name}.device"
    shape = f"{output.like}.shape"
    if not output.like:
        own = job.shape_of(output)
        sizes = ", ".join([_lead(job, own), *map(str, own[1:])])
        shape = f"({sizes}{',' if len(own) == 1 else ''})"
    return f"    {output.name} = torch.empty({shape}, dtype=torch.{output.dtype}, device={device})"


def _count(job: MovedJob, shape: DimSizes) -> str:
    """Source of the number of elements of that shape."""
    inner = math.prod(shape[1:])
    return f"{_lead(job, shape)} * {inner}" if inner != 1 else _lead(job, shape)


def _lead(job: MovedJob, shape: DimSizes) -> str:
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
