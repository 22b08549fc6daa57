"""Row regions: each program reduces whole rows and writes what depends on them.

Rows on both sides of what is reduced (channels of images) are counted apart where neighbors in
memory would otherwise not be known to be neighbors: `counts_apart`.

A row that fits in one block is read once and stays in registers. A longer one is walked in
blocks, once for each level of reductions and once more for the outputs that wait for one; what
waits for none is written on the first walk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_lsp.rewrite.codegen.core import source, strides
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.index import IndexSpace, offset, product, sizes_in
from kernel_lsp.rewrite.codegen.core.ir import (
    REDUCTIONS,
    Operand,
    Output,
    Region,
    Value,
    topological,
)
from kernel_lsp.rewrite.codegen.pointwise import dropping
from kernel_lsp.rewrite.codegen.reduction import accumulate
from kernel_lsp.rewrite.generated import GeneratedSource

MAX_PADDED = 2.0
"""Rows of whole tiles for each row that exists, at most: the rest of the last tile is empty."""


def counts_apart(region: Region, tile: int) -> bool:
    """Whether a tile of so many rows stays within one index of the dimensions before those that are
    reduced. ``rows % n_inner`` of an odd ``n_inner`` tells Triton nothing of neighbors: it gave
    neighboring threads elements of one row, ``n_inner`` apart (Triton 3.9, sm_90)."""
    inner = math.prod(region.dims[axis].size for axis in _inner_axes(region))
    fits = -(-inner // tile) * tile <= inner * MAX_PADDED
    return tile > 1 and inner > 1 and inner % 2 == 1 and fits and bool(_outer_axes(region))


def _outer_axes(region: Region) -> tuple[int, ...]:
    return tuple(axis for axis in region.row_axes if axis < min(region.reduced))


def _inner_axes(region: Region) -> tuple[int, ...]:
    return tuple(axis for axis in region.row_axes if axis > max(region.reduced))


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLayout:
    """One row for each program, or a tile of several."""

    region: Region
    tiled: bool
    looped: bool
    apart: bool = False
    """See `counts_apart`."""

    @property
    def row(self) -> str:
        """The name of a program's row, or of its rows."""
        return "rows" if self.tiled else "row"

    @property
    def inside(self) -> str:
        """The text that is true of the rows of a tile that exist."""
        if not self.apart:
            return "rows < n_rows"
        return f"inner < {product(_inner_axes(self.region), self.region.dims)}"

    @property
    def axis(self) -> accumulate.ReductionAxis:
        """How a block is reduced."""
        return accumulate.MATRIX if self.tiled else accumulate.VECTOR

    @property
    def spaces(self) -> list[IndexSpace]:
        """The iteration space: which variable runs over which axes."""
        region = self.region
        if self.apart:
            return [
                IndexSpace(variable="outer", axes=_outer_axes(region)),
                IndexSpace(variable="cols", axes=region.reduced),
                IndexSpace(variable="inner", axes=_inner_axes(region)),
            ]
        return [
            IndexSpace(variable=self.row, axes=region.row_axes),
            IndexSpace(variable="cols", axes=region.reduced),
        ]

    def address(self, name: str, axes: tuple[int, ...]) -> str:
        """The text of the address of a block, where the pointer has that name and the tensor these
        axes."""
        operand = Operand(name=name, dtype="float32", axes=axes)
        text = offset(operand, self.region.dims, self.spaces)
        return f"{name}_ptr + {text}" if text else f"{name}_ptr"

    def mask(self, axes: tuple[int, ...]) -> str:
        """The text of the mask for a tensor with these axes; "": no block reaches over its end."""
        by_row = self.tiled and any(axis in self.region.row_axes for axis in axes)
        by_col = any(axis in self.region.reduced for axis in axes)
        if by_row and by_col:
            return "mask"
        if by_row:
            return self.inside
        return ("cols < n_cols" if self.tiled else "mask") if by_col else ""

    def load(self, operand: Operand) -> str:
        """The text that loads a block of the operand."""
        mask = self.mask(operand.axes)
        where = self.address(operand.name, operand.axes)
        if operand.inner is not None:
            where = f"{operand.name}_ptr + {strides.address(operand.name, self._positions())}"
        return f"tl.load({where}{f', mask={mask}' if mask else ''})"

    def _positions(self) -> list[str]:
        """Of an element, along each dimension; those of `position_lines` by their names."""
        named = self.region.row_axes if len(self.region.row_axes) > 1 else ()
        every = range(len(self.region.dims))
        return [f"at_{axis}" if axis in named else self._position(axis) for axis in every]

    def _position(self, axis: int) -> str:
        one = Operand(name="", dtype="", axes=(axis,))
        return offset(one, self.region.dims, self.spaces)

    def position_lines(self) -> list[str]:
        """The position of a row along each dimension, for operands that are read by their
        strides."""
        rows = self.region.row_axes
        if len(rows) < 2 or all(operand.inner is None for operand in self.region.operands):
            return []
        return [f"at_{axis} = {self._position(axis)}" for axis in rows]

    def store(self, output: Output, text: str) -> str:
        """The text that stores ``text`` as a block of the output."""
        axes = self.region.row_axes if output.rowwise else tuple(range(len(self.region.dims)))
        mask = self.mask(axes)
        where = self.address(output.name, axes)
        return f"tl.store({where}, {text}{f', mask={mask}' if mask else ''})"


def emit(region: Region, choice: Mapping[str, Any], summary: str) -> GeneratedSource:
    """Kernel and launcher for a region whose rows are reduced by one program each.

    ``choice``: BLOCK_SIZE (columns; the launcher rounds up itself when a row is one block),
    BLOCK_ROWS, num_warps, and ``looped``.
    """
    tile = choice["BLOCK_ROWS"]
    apart = counts_apart(region, tile)
    layout = RowLayout(region=region, tiled=tile > 1, looped=choice["looped"], apart=apart)
    lines = [*_prologue(layout), *(f"    {line}" for line in layout.position_lines())]
    lines += _loop_lines(layout) if layout.looped else _one_block(layout)
    text = "\n".join(lines)
    sizes = [name for name in sizes_in(text, region.dims) if name not in ("n_rows", "n_cols")]
    header = _header(layout, sizes, text)
    kernel = source.kernel_text(f"_{region.name}_kernel", header, _doc(layout), lines)
    return source.generate_source(
        region, [kernel], _launcher(layout, choice, header, summary), summary
    )


def _doc(layout: RowLayout) -> str:
    if layout.tiled:
        return "Each program handles BLOCK_ROWS rows."
    return (
        "Each program handles one row, a block at a time."
        if layout.looped
        else "Each program handles one row."
    )


def _prologue(layout: RowLayout) -> list[str]:
    if not layout.tiled:
        return ["    row = tl.program_id(0).to(tl.int64)  # int64: row * n_cols can pass 2**31"]
    if layout.apart:
        inner = product(_inner_axes(layout.region), layout.region.dims)
        return [
            f"    n_blocks: tl.constexpr = ({inner} + BLOCK_ROWS - 1) // BLOCK_ROWS",
            "    outer = (tl.program_id(0) // n_blocks).to(tl.int64)  # int64: offsets can pass 2**31",
            "    inner = tl.program_id(0) % n_blocks * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]",
        ]
    return [
        "    start_row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS  # int64: offsets can "
        "pass 2**31",
        "    rows = start_row + tl.arange(0, BLOCK_ROWS)[:, None]",
    ]


def _columns(layout: RowLayout, start: str) -> list[str]:
    columns = f"{start}tl.arange(0, BLOCK_SIZE)" + ("[None, :]" if layout.tiled else "")
    mask = f"({layout.inside}) & (cols < n_cols)" if layout.tiled else "cols < n_cols"
    reason = (
        "the last block is not full"
        if layout.looped
        else "BLOCK_SIZE is rounded up to a power of two"
    )
    quads = [_quads(layout, start)] if source.draws(layout.region) else []
    return [f"cols = {columns}", f"mask = {mask}  # {reason}", *quads]


def _quads(layout: RowLayout, start: str) -> str:
    """For a kernel that draws: its launcher has seen that four divides a row."""
    first = f"{layout.row} * (n_cols // 4)"
    spread = "[None, :]" if layout.tiled else ""
    return dropping.quads(first, start and "start // 4", spread)


TAKEN = ("start_row", "n_rows", "n_cols", "outer", "inner", "n_blocks")
"""Names of the prologue."""


def body_of(layout: RowLayout) -> Body:
    """An empty body whose values are loaded and reduced by the layout."""
    dims, steps = layout.region.dims, strides.argument_names(layout.region)
    places = (f"at_{axis}" for axis in range(len(dims)))
    names = UniqueNames([*(dim.name for dim in dims), *steps, *places, *TAKEN])
    return Body(names, layout.load, lambda body, value: accumulate.whole(body, value, layout.axis))


def _one_block(layout: RowLayout) -> list[str]:
    body = body_of(layout)
    for line in _columns(layout, ""):
        body.add(line)
    body.need(*(output.value for output in layout.region.outputs))
    for output in layout.region.outputs:
        body.add(layout.store(output, str(body.text(output.value))))
    return body.lines


def _loop_lines(layout: RowLayout) -> list[str]:
    region, body = layout.region, body_of(layout)
    waiting = waits(region)
    early = [output for output in region.outputs if not (output.rowwise or output in waiting)]
    for level in levels(region.values):
        hoist(body, [value.values[0] for value in level])
        hoist(body, [output.value for output in early])
        lanes = {value: accumulate.declare(body, value, layout.axis) for value in level}
        inner = _open_loop(layout, body)
        for value in level:
            accumulate.update(inner, value, lanes[value])
        for output in early:
            inner.add(layout.store(output, str(inner.text(output.value))))
        early = []
        body.lines += inner.lines
        for value in level:
            close(body, value, accumulate.finish(body, value, lanes[value], layout.axis))
    _write(layout, body, [*early, *waiting])
    return body.lines


def waits(region: Region) -> list[Output]:
    """Outputs of one number an element that need a finished reduction."""
    full = (output for output in region.outputs if not output.rowwise)
    return [o for o in full if any(value.op in REDUCTIONS for value in topological([o.value]))]


def _open_loop(layout: RowLayout, body: Body) -> Body:
    body.add("for start in range(0, n_cols, BLOCK_SIZE):")
    inner = body.inner()
    for line in _columns(layout, "start + "):
        inner.add(line)
    return inner


def _write(layout: RowLayout, body: Body, full: list[Output]) -> None:
    """What is a number a row, and after another walk what is one an element."""
    rowwise = [output for output in layout.region.outputs if output.rowwise]
    for output in rowwise:
        body.add(layout.store(output, str(body.text(output.value))))
    if full:
        hoist(body, [output.value for output in full])
        inner = _open_loop(layout, body)
        inner.need(*(output.value for output in full))
        for output in full:
            inner.add(layout.store(output, str(inner.text(output.value))))
        body.lines += inner.lines


def levels(values: tuple[Value, ...]) -> list[list[Value]]:
    """Reductions in the order of passes: those of a level need only the levels before it."""
    depth: dict[Value, int] = {}
    for value in values:
        below = max((depth[arg] for arg in value.values), default=0)
        depth[value] = below + (value.op in REDUCTIONS)
    deepest = max(depth.values(), default=0)
    return [
        [value for value in values if value.op in REDUCTIONS and depth[value] == level]
        for level in range(1, deepest + 1)
    ]


def hoist(body: Body, roots: list[Value]) -> None:
    """Emit before the loop whatever is the same for the whole row."""
    seen: set[Value] = set()

    def visit(value: Value) -> Iterator[Value]:
        if value in seen or value in body.known:
            return
        seen.add(value)
        if value.rowwise:
            yield value
            return
        for arg in value.values:
            yield from visit(arg)

    for root in roots:
        body.need(*visit(root))


def close(body: Body, value: Value, results: tuple[str, ...]) -> None:
    """Makes a finished reduction known to the body, by the names of its results."""
    body.pairs[value] = results
    body.known[value] = results[0]


def _header(layout: RowLayout, sizes: list[str], text: str) -> list[str]:
    rows = ["n_rows"] if "n_rows" in text else []
    blocks = ["BLOCK_ROWS: tl.constexpr"] if layout.tiled else []
    return [
        *source.pointers(layout.region),
        *rows,
        "n_cols",
        *strides.argument_names(layout.region),
        *source.draw_parameters(layout.region),
        *(f"{name}: tl.constexpr" for name in sizes),
        *blocks,
        "BLOCK_SIZE: tl.constexpr",
    ]


def size_lines(region: Region, needed: list[str]) -> list[str]:
    """Sizes in the launcher; n_rows and n_cols are products unless a dimension has that name."""
    own = {dim.name for dim in region.dims}
    products = {
        "n_rows": product(region.row_axes, region.dims) or "1",
        "n_cols": product(region.reduced, region.dims),
    }
    lines = [
        f"    {dim.name} = {dim.source}"
        for dim in region.dims
        if dim.name in needed or dim.name not in products
    ]
    for name, text in products.items():
        if name not in own:
            lines.append(f"    {name} = {text}")
        elif name not in needed:
            dim = next(dim for dim in region.dims if dim.name == name)
            lines.append(f"    {name} = {dim.source}")
    return lines


def _programs(layout: RowLayout, tile: int) -> str:
    """Source of how many programs there are."""
    if not layout.apart:
        return source.blocks("n_rows", tile)
    region = layout.region
    outer, inner = (product(axes(region), region.dims) for axes in (_outer_axes, _inner_axes))
    blocks = source.blocks(f"({inner})" if " " in inner else inner, tile)
    return f"{outer} * ({blocks})"


def _launcher(layout: RowLayout, choice: Mapping[str, Any], header: list[str], summary: str) -> str:
    region = layout.region
    names = [item.split(":")[0].removesuffix("_ptr") for item in header]
    block = str(choice["BLOCK_SIZE"]) if layout.looped else source.power_of_two("n_cols")
    values = {
        "BLOCK_ROWS": f"BLOCK_ROWS={choice['BLOCK_ROWS']}",
        "BLOCK_SIZE": f"BLOCK_SIZE={block}",
    }
    values |= strides.named_arguments(region)
    arguments = [values.get(name, name) for name in names] + [f"num_warps={choice['num_warps']}"]
    arguments += accumulate.launch_options(region)
    programs = _programs(layout, choice["BLOCK_ROWS"])
    lines = [
        f"def {region.name}({source.signature(region)}):",
        source.describe_region(summary, region),
        *source.make_contiguous([operand for operand in region.operands if operand.inner is None]),
        *source.draw_lines(region),
        *size_lines(region, ["n_rows", "n_cols"]),
        *(
            source.allocate(output, f"{region.operands[0].name}.device")
            for output in region.outputs
        ),
        *strides.reshape_lines(region),
        "    if n_rows > 0:  # a grid of zero programs cannot be launched",
        source.wrap_items(
            f"_{region.name}_kernel[({programs},)](", arguments, ")", indent="        "
        ),
        f"    return {source.result(region)}",
        "",
    ]
    return "\n".join(lines)
