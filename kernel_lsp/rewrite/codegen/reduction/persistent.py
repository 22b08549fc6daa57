"""Row regions with sums over the rows as well: each program walks a run of rows and keeps those
sums.

The gradient of a norm's weight is a sum over all rows of what the same kernel has at hand for the
gradient of its input. Each program leaves its share in one line of a small tensor, which
``sum(0)`` adds up in a fixed order: no atomics, so results repeat. Covered: rows of one block
whose dimensions are the last ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernel_lsp.devices import REFERENCE
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.index import sizes_in
from kernel_lsp.rewrite.codegen.core.ir import Region
from kernel_lsp.rewrite.codegen.pointwise import dropping
from kernel_lsp.rewrite.codegen.reduction import accumulate
from kernel_lsp.rewrite.codegen.reduction.rows import RowLayout, body_of, size_lines
from kernel_lsp.rewrite.generated import GeneratedSource

MAX_COLUMNS = 8192
"""Longest row kept in registers, beside the sums of the same length."""
PROGRAMS, MIN_ROWS = 8 * REFERENCE.processors, 8
"""Eight programs for each multiprocessor: several waves even out whatever number of them
the registers allow at a time. Each leaves one line of sums, so it should have some rows to show
for it."""


def fits(region: Region, rows: tuple[int, ...]) -> bool:
    """The rows are the last dimensions and short enough."""
    columns = 1
    for axis in rows:
        columns *= region.dims[axis].size
    last = len(region.dims) - 1
    return 0 < len(rows) < len(region.dims) and max(rows) == last and columns <= MAX_COLUMNS


def parameters(columns: int) -> dict[str, list[Any]]:
    block = source.next_power_of_two(columns)
    tile = max(1, 2048 // block)
    warps = max(2, min(16, block * tile // 512))
    return {"BLOCK_ROWS": [tile], "num_warps": [warps]}


def emit(region: Region, choice: Mapping[str, Any], summary: str) -> GeneratedSource:
    """``choice``: BLOCK_ROWS and num_warps."""
    layout = RowLayout(region=region, tiled=True, looped=False)
    lines = _kernel(layout)
    text = "\n".join(lines)
    sizes = [name for name in sizes_in(text, region.dims) if name not in ("n_rows", "n_cols")]
    header = [
        *source.pointers(region),
        *("n_rows", "n_cols", "rows_per_program"),
        *source.draw_parameters(region),
        *(f"{name}: tl.constexpr" for name in sizes),
        *("BLOCK_ROWS: tl.constexpr", "BLOCK_SIZE: tl.constexpr"),
    ]
    doc = (
        "Each program handles rows_per_program rows, BLOCK_ROWS at a time, and keeps sums "
        "over them."
    )
    kernel = source.kernel_text(f"_{region.name}_kernel", header, doc, lines)
    return source.generate_source(
        region, [kernel], _launcher(region, choice, header, summary), summary
    )


def _kernel(layout: RowLayout) -> list[str]:
    region, body = layout.region, body_of(layout)
    columns = [output for output in region.outputs if output.columns]
    body.add("program = tl.program_id(0).to(tl.int64)  # int64: row * n_cols can pass 2**31")
    body.add("cols = tl.arange(0, BLOCK_SIZE)[None, :]")
    sums = {
        o: body.assign(f"{o.name}_sum", "tl.full([BLOCK_ROWS, BLOCK_SIZE], 0.0, tl.float32)")
        for o in columns
    }
    body.add("for start in range(0, rows_per_program, BLOCK_ROWS):")
    inner = body.inner()
    inner.add("rows = program * rows_per_program + start + tl.arange(0, BLOCK_ROWS)[:, None]")
    inner.add(
        "mask = (rows < n_rows) & (cols < n_cols)  # the last rows, and a power of two of columns"
    )
    if source.draws(region):
        inner.add(dropping.quads("rows * (n_cols // 4)", "", "[None, :]"))
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


def _launcher(region: Region, choice: Mapping[str, Any], header: list[str], summary: str) -> str:
    tile = choice["BLOCK_ROWS"]
    values = {
        "BLOCK_ROWS": f"BLOCK_ROWS={tile}",
        "BLOCK_SIZE": f"BLOCK_SIZE={source.power_of_two('n_cols')}",
    }
    names = [item.split(":")[0].removesuffix("_ptr") for item in header]
    arguments = [values.get(name, name) for name in names] + [f"num_warps={choice['num_warps']}"]
    arguments += accumulate.launch_options(region)
    least, rounded = max(MIN_ROWS, tile), f" * {tile}" if tile > 1 else ""
    return "\n".join(
        [
            f"def {region.name}({source.signature(region)}):",
            source.describe_region(summary, region),
            *source.make_contiguous(region.operands),
            *source.draw_lines(region),
            *size_lines(region, ["n_rows", "n_cols"]),
            f"    rows_per_program = max({least}, "
            f"{source.blocks('n_rows', PROGRAMS * tile)}{rounded})",
            "    n_programs = (n_rows + rows_per_program - 1) // rows_per_program",
            *(
                source.allocate(output, f"{region.operands[0].name}.device")
                for output in region.outputs
            ),
            "    if n_rows > 0:  # a grid of zero programs cannot be launched",
            source.wrap_items(
                f"_{region.name}_kernel[(n_programs,)](", arguments, ")", indent="        "
            ),
            f"    return {source.result(region)}",
            "",
        ]
    )
