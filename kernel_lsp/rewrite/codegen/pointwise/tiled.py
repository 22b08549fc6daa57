"""Pointwise regions over tensors of which one is transposed: tiles, so that both are read along
their memory.

One index over all elements would read a transposed operand in steps of a row, a whole sector of
memory for each element. A tile of rows and columns is loaded along whichever of the two is
contiguous; Triton turns it over in shared memory. Rows are the dimension along which the
transposed operand is contiguous, columns the last one. Not covered: operands that are contiguous
along different dimensions, all but one of them are read in steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kernel_lsp.rewrite.codegen.core import source, strides
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.index import IndexSpace, offset
from kernel_lsp.rewrite.codegen.core.ir import Operand, Region
from kernel_lsp.rewrite.generated import GeneratedSource

PARAMETERS: dict[str, list[Any]] = {
    "BLOCK_ROWS": [32, 64],
    "BLOCK_SIZE": [32, 64],
    "num_warps": [4, 8],
}
"""32 elements of 4 bytes are the four sectors of a cache line."""
MIN_SIDE = 16
"""Shorter rows or columns leave most of a tile empty."""


def rows_of(region: Region) -> int | None:
    """The dimension of the tiles' rows; None where no operand asks for tiles."""
    last = len(region.dims) - 1
    turned = [operand.inner for operand in region.operands if operand.inner not in (None, last)]
    if region.reduced or not turned:
        return None
    axis = Counter(turned).most_common(1)[0][0]
    assert axis is not None, "operands without an inner dimension were left out"
    return axis if min(region.dims[axis].size, region.dims[last].size) >= MIN_SIDE else None


def emit(region: Region, choice: Mapping[str, Any], summary: str) -> GeneratedSource:
    """``choice``: BLOCK_ROWS, BLOCK_SIZE and num_warps."""
    rows = rows_of(region)
    assert rows is not None, "ask rows_of first"
    kernel = _kernel(region, rows)
    return source.generate_source(
        region, [kernel], _launcher(region, rows, choice, summary), summary
    )


def _spaces(region: Region, rows: int) -> list[IndexSpace]:
    last = len(region.dims) - 1
    lead = tuple(axis for axis in range(last) if axis != rows)
    return [IndexSpace(variable="lead", axes=lead), IndexSpace(variable="rows", axes=(rows,)),
            IndexSpace(variable="cols", axes=(last,))]  # fmt: skip


def _kernel(region: Region, rows: int) -> str:
    down, across = region.dims[rows].name, region.dims[-1].name
    lines = [
        "    pid = tl.program_id(0).to(tl.int64)  # int64: offsets can pass 2**31",
        f"    row_blocks, col_blocks = tl.cdiv({down}, BLOCK_ROWS), tl.cdiv({across}, BLOCK_SIZE)",
        "    rows = pid // col_blocks % row_blocks * BLOCK_ROWS + tl.arange(0, "
        "BLOCK_ROWS)[:, None]",
        "    cols = pid % col_blocks * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]",
        f"    mask = (rows < {down}) & (cols < {across})  # the last tiles reach past the end",
    ]
    if len(region.dims) > 2:
        lines.append("    lead = pid // (row_blocks * col_blocks)")
    taken = ["pid", "row_blocks", "col_blocks", *(dim.name for dim in region.dims)]
    body = Body(
        UniqueNames([*taken, *strides.argument_names(region)]),
        lambda operand: _load(operand, region, rows),
    )
    body.need(*(output.value for output in region.outputs))
    every = tuple(range(len(region.dims)))
    for output in region.outputs:
        plain = Operand(name=output.name, dtype=output.dtype, axes=every)
        where = offset(plain, region.dims, _spaces(region, rows))
        body.add(f"tl.store({output.name}_ptr + {where}, {body.text(output.value)}, mask=mask)")
    header = [
        *source.pointers(region),
        *strides.argument_names(region),
        *(f"{dim.name}{': tl.constexpr' if axis else ''}" for axis, dim in enumerate(region.dims)),
        *("BLOCK_ROWS: tl.constexpr", "BLOCK_SIZE: tl.constexpr"),
    ]
    doc = "Each program handles a tile, whose loads follow the memory of each operand."
    return source.kernel_text(f"_{region.name}_kernel", header, doc, [*lines, *body.lines])


def _load(operand: Operand, region: Region, rows: int) -> str:
    spaces, last = _spaces(region, rows), len(region.dims) - 1
    if operand.inner is not None:
        positions = [
            offset(replace(operand, axes=(axis,)), region.dims, spaces) for axis in operand.axes
        ]
        where = strides.address(operand.name, positions)
    else:
        where = offset(operand, region.dims, spaces)
    down = f"rows < {region.dims[rows].name}" if rows in operand.axes else ""
    across = f"cols < {region.dims[-1].name}" if last in operand.axes else ""
    mask = "mask" if down and across else down or across
    address = f"{operand.name}_ptr" + (f" + {where}" if where else "")
    return f"tl.load({address}{f', mask={mask}' if mask else ''})"


def _launcher(region: Region, rows: int, choice: Mapping[str, Any], summary: str) -> str:
    dims = [dim.name for dim in region.dims]
    arguments = [
        *(item.name for item in source.tensors(region)),
        *strides.arguments(region),
        *dims,
        *(f"{name}={choice[name]}" for name in ("BLOCK_ROWS", "BLOCK_SIZE", "num_warps")),
    ]
    lead = [name for axis, name in enumerate(dims[:-1]) if axis != rows]
    blocks = [
        f"({source.blocks(dims[rows], choice['BLOCK_ROWS'])})",
        f"({source.blocks(dims[-1], choice['BLOCK_SIZE'])})",
    ]
    device = f"{region.operands[0].name}.device"
    lines = [
        f"def {region.name}({source.signature(region)}):",
        source.describe_region(summary, region),
        *source.make_contiguous([operand for operand in region.operands if operand.inner is None]),
        *(source.allocate(output, device) for output in region.outputs),
        *source.size_lines(region, dims),
        *strides.reshape_lines(region),
        f"    n_tiles = {' * '.join([*lead, *blocks])}",
        "    if n_tiles > 0:  # a grid of zero programs cannot be launched",
        source.wrap_items(f"_{region.name}_kernel[(n_tiles,)](", arguments, ")", indent="        "),
        f"    return {source.result(region)}",
        "",
    ]
    return "\n".join(lines)
