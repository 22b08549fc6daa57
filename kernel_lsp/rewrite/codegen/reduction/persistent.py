"""Row regions with sums over the rows as well: each program walks a run of rows and keeps those
sums.

The gradient of a norm's weight is a sum over all rows of what the same kernel has at hand for the
gradient of its input. Each program leaves its share in one line of a small tensor, which
``sum(0)`` adds up in a fixed order: no atomics, so results repeat. Where no row is reduced, a
program takes some of the columns, else a row is one block: values of that many columns leave room
for one or two programs on a multiprocessor, so the next rows are fetched while some are computed.
Covered: rows whose dimensions are the last ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kernel_lsp.devices import REFERENCE
from kernel_lsp.rewrite.codegen.core import source, strides
from kernel_lsp.rewrite.codegen.core.body import Body
from kernel_lsp.rewrite.codegen.core.index import sizes_in
from kernel_lsp.rewrite.codegen.core.ir import REDUCTIONS, Region
from kernel_lsp.rewrite.codegen.pointwise import dropping
from kernel_lsp.rewrite.codegen.reduction import accumulate
from kernel_lsp.rewrite.codegen.reduction.rows import RowLayout, body_of, size_lines
from kernel_lsp.rewrite.generated import GeneratedSource

MAX_COLUMNS = 8192
"""Longest row kept in registers, beside the sums of the same length."""
MIN_ROWS = 8
"""Each program leaves one line of sums, so it should have some rows to show for it."""
TILE, TILE_COLUMNS = 2048, 256
"""What a program takes at a time, and how many columns where no row is reduced."""
MAX_STAGES, STAGED_BYTES = 3, 80 * 1024
"""How many tiles are loaded at a time, and the shared memory in which the later ones wait. The
smallest devices have 99 kB for a program."""


def fits(region: Region, rows: tuple[int, ...]) -> bool:
    """The rows are the last dimensions and, where the region reduces them, short enough."""
    columns = math.prod(region.dims[axis].size for axis in rows)
    last = len(region.dims) - 1
    short = columns <= MAX_COLUMNS or not _is_reducing(region)
    return 0 < len(rows) < len(region.dims) and max(rows) == last and short


def is_aligned(region: Region, rows: tuple[int, ...]) -> bool:
    """Whether each row begins where 16 bytes do, so that a thread reads as many at a time. Else a
    sum over rows alone is torch's: a step that adds a bias was 8 % shorter with it on an H100."""
    return math.prod(region.dims[axis].size for axis in rows) % 8 == 0


def parameters(region: Region) -> dict[str, list[Any]]:
    """Finite search space, default first."""
    columns = math.prod(region.dims[axis].size for axis in region.reduced)
    block = source.next_power_of_two(columns)
    if _is_reducing(region):
        tile = max(1, TILE // block)
        stages = _stages(region, block * tile)
        warps = _warps(region, block * tile)
    else:
        block, stages = min(block, TILE_COLUMNS), 1
        tile, warps = TILE // block, [4, 8] if is_aligned(region, region.reduced) else [8, 4]
    return {
        "num_stages": list(dict.fromkeys([stages, 2 if stages == 1 else 1])),
        "num_warps": warps,
        "BLOCK_ROWS": [tile],
        "BLOCK_SIZE": [block],
    }


def _warps(region: Region, elements: int) -> list[int]:
    """H100: 8 were faster than 4 up to 2048 elements, as fast as 16 at 4096. Of a row of 8192, 16
    hold seven numbers for each column, and spill more of them."""
    if elements <= 4096:
        return [8, 4] if elements <= 2048 else [8, 16]
    held = sum(bool(set(region.reduced) & set(operand.axes)) for operand in region.operands)
    held += sum(output.columns for output in region.outputs)
    return [16, 32] if held <= 7 else [32]


def _is_reducing(region: Region) -> bool:
    """Whether a row has to be known as a whole."""
    return any(value.op in REDUCTIONS for value in region.values)


def _stages(region: Region, elements: int) -> int:
    """As many as there is room for, where a tile has so many elements."""
    across, along = set(region.reduced), set(region.row_axes)
    wide = [o for o in region.operands if across & set(o.axes) and along & set(o.axes)]
    staged = elements * sum(source.itemsize(operand.dtype) for operand in wide)
    return max(1, min(MAX_STAGES, 1 + STAGED_BYTES // max(1, staged)))


def emit(region: Region, choice: Mapping[str, Any], summary: str) -> GeneratedSource:
    """Kernel and launcher of a region whose programs each go through many rows. ``choice``:
    BLOCK_ROWS, BLOCK_SIZE where no row is reduced, num_warps and num_stages."""
    layout = RowLayout(region=region, tiled=True, looped=False)
    lines = _kernel(layout, choice["num_stages"])
    text = "\n".join(lines)
    sizes = [name for name in sizes_in(text, region.dims) if name not in ("n_rows", "n_cols")]
    header = [
        *source.pointers(region),
        *("n_rows", "n_cols", "rows_per_program"),
        *strides.argument_names(region),
        *source.draw_parameters(region),
        *(f"{name}: tl.constexpr" for name in sizes),
        *("BLOCK_ROWS: tl.constexpr", "BLOCK_SIZE: tl.constexpr"),
    ]
    part = "" if _is_reducing(region) else "some columns of "
    doc = (
        f"Each program handles {part}rows_per_program rows, BLOCK_ROWS at a time, and keeps sums "
        "over them."
    )
    kernel = source.kernel_text(f"_{region.name}_kernel", header, doc, lines)
    return source.generate_source(
        region, [kernel], _launcher(region, choice, header, summary), summary
    )


def _kernel(layout: RowLayout, stages: int) -> list[str]:
    region, body = layout.region, body_of(layout)
    columns = [output for output in region.outputs if output.columns]
    start = "" if _is_reducing(region) else "tl.program_id(1) * BLOCK_SIZE + "
    body.add("program = tl.program_id(0).to(tl.int64)  # int64: row * n_cols can pass 2**31")
    body.add(f"cols = {start}tl.arange(0, BLOCK_SIZE)[None, :]")
    _load_columns(layout, body)
    sums = {
        o: body.assign(f"{o.name}_sum", "tl.full([BLOCK_ROWS, BLOCK_SIZE], 0.0, tl.float32)")
        for o in columns
    }
    steps = "0, rows_per_program, BLOCK_ROWS"
    if stages > 1:
        body.add("# The next rows are fetched while these are computed.")
        body.add(f"for start in tl.range({steps}, num_stages={stages}):")
    else:
        body.add(f"for start in range({steps}):")
    inner = body.inner()
    inner.add("rows = program * rows_per_program + start + tl.arange(0, BLOCK_ROWS)[:, None]")
    for line in layout.position_lines():
        inner.add(line)
    inner.add("mask = (rows < n_rows) & (cols < n_cols)  # the last rows and columns")
    if source.draws(region):
        first = "" if _is_reducing(region) else "tl.program_id(1) * (BLOCK_SIZE // 4)"
        inner.add(dropping.quads("rows * (n_cols // 4)", first, "[None, :]"))
    inner.need(*(output.value for output in region.outputs))
    for output in region.outputs:
        text = str(inner.text(output.value))
        if output.columns:
            inner.add(f"{sums[output]} += tl.where(mask, {text}, 0.0)")
        else:
            inner.add(layout.store(output, text))
    body.lines += inner.lines
    for output in columns:
        where = f"{output.name}_ptr + program * n_cols + cols"
        total = body.assign(f"{output.name}_total", f"tl.sum({sums[output]}, axis=0)[None, :]")
        body.add(f"tl.store({where}, {total}, mask=cols < n_cols)")
    return body.lines


def _load_columns(layout: RowLayout, body: Body) -> None:
    """What is the same for all rows is read once."""
    for value in layout.region.values:
        if value.operand is not None and set(value.operand.axes) <= set(layout.region.reduced):
            body.need(value)


def _launcher(region: Region, choice: Mapping[str, Any], header: list[str], summary: str) -> str:
    tile, reducing = choice["BLOCK_ROWS"], _is_reducing(region)
    block = source.power_of_two("n_cols") if reducing else choice["BLOCK_SIZE"]
    values = {"BLOCK_ROWS": f"BLOCK_ROWS={tile}", "BLOCK_SIZE": f"BLOCK_SIZE={block}"}
    values |= strides.named_arguments(region)
    names = [item.split(":")[0].removesuffix("_ptr") for item in header]
    arguments = [values.get(name, name) for name in names] + [f"num_warps={choice['num_warps']}"]
    arguments += accumulate.launch_options(region)
    rows, grid, blocks = "n_rows", "(n_programs,)", list[str]()
    if not reducing:
        rows, grid = "n_rows * n_blocks", "(n_programs, n_blocks)"
        blocks = [f"    n_blocks = {source.blocks('n_cols', choice['BLOCK_SIZE'])}"]
    share = source.blocks(rows, _programs(reducing, choice["num_warps"]) * tile) + (
        f" * {tile}" if tile > 1 else ""
    )
    return "\n".join(
        [
            f"def {region.name}({source.signature(region)}):",
            source.describe_region(summary, region),
            *source.make_contiguous([o for o in region.operands if o.inner is None]),
            *source.draw_lines(region),
            *size_lines(region, ["n_rows", "n_cols"]),
            *blocks,
            f"    rows_per_program = max({max(MIN_ROWS, tile)}, {share})",
            "    n_programs = (n_rows + rows_per_program - 1) // rows_per_program",
            *(
                source.allocate(output, f"{region.operands[0].name}.device")
                for output in region.outputs
            ),
            *strides.reshape_lines(region),
            "    if n_rows > 0:  # a grid of zero programs cannot be launched",
            source.wrap_items(f"_{region.name}_kernel[{grid}](", arguments, ")", indent="        "),
            f"    return {source.result(region)}",
            "",
        ]
    )


def _programs(reducing: bool, warps: int) -> int:
    """So many that they keep each multiprocessor busy; more lines of sums cost more than they
    gain."""
    return (max(2, min(8, 16 // warps)) if reducing else 16) * REFERENCE.processors
