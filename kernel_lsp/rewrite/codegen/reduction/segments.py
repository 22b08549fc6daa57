"""Row regions whose rows consist of segments: groups of channels, each with numbers of its own.

The weight of a group norm is the same along a segment, so it is read once for each, where an index
over the whole row would divide by the segment's length for every element. A sum over a segment is
the weight's gradient, up to the images of a batch: each block leaves its share, and ``sum`` adds
them up in a fixed order. A row is walked in blocks, once for each level of reductions and once
more for the outputs. Covered: long segments, which end where rows end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.index import IndexSpace, offset, product, sizes_in
from kernel_lsp.rewrite.codegen.core.ir import Operand, Output, Region
from kernel_lsp.rewrite.codegen.reduction import accumulate
from kernel_lsp.rewrite.codegen.reduction.rows import close, hoist, levels, size_lines
from kernel_lsp.rewrite.generated import GeneratedSource

MIN_LENGTH, MIN_ROWS = 512, 64
"""Shorter segments leave most of a block empty, fewer rows most of the device."""
BLOCKS, MAX_PADDED = (4096, 2048, 1024, 512), 1.35
"""Of the blocks that make a segment no longer than this the largest is taken."""


def fits(region: Region) -> bool:
    """Rows of several segments, where an operand is the same along each. Draws are made in the
    order of memory, which other kernels walk."""
    reduced, last = region.reduced, len(region.dims) - 1
    if (
        source.draws(region)
        or any(value.op in accumulate.FIRST for value in region.values)  # cols is within a segment
        or len(reduced) < 2
        or reduced[-1] != last
        or region.dims[last].size < MIN_LENGTH
    ):
        return False
    rows = math.prod(region.dims[axis].size for axis in region.row_axes)
    return rows >= MIN_ROWS and any(is_segmentwise(region, o.axes) for o in region.operands)


def is_segmentwise(region: Region, axes: tuple[int, ...]) -> bool:
    """One number for each segment of a row, which other rows may share."""
    return set(region.reduced[:-1]) <= set(axes) and region.reduced[-1] not in axes


def parameters(region: Region) -> dict[str, list[Any]]:
    """Finite search space, default first."""
    length = region.dims[-1].size
    padded = {block: -(-length // block) * block / length for block in BLOCKS}
    block = next(
        (b for b in BLOCKS if padded[b] <= MAX_PADDED), min(padded, key=padded.__getitem__)
    )
    warps = max(4, min(16, block // 256))
    return {"num_stages": [3, 1], "num_warps": [warps, warps * 2], "BLOCK_SIZE": [block]}


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentLayout:
    """One row for each program, a block of a segment at a time."""

    region: Region

    def address(self, name: str, axes: tuple[int, ...]) -> str:
        """The text of the address of a block, where the pointer has that name and the tensor these
        axes."""
        region = self.region
        spaces = [
            IndexSpace(variable="row", axes=region.row_axes),
            IndexSpace(variable="segment", axes=region.reduced[:-1]),
            IndexSpace(variable="cols", axes=region.reduced[-1:]),
        ]
        text = offset(Operand(name=name, dtype="float32", axes=axes), region.dims, spaces)
        return f"{name}_ptr + {text}" if text else f"{name}_ptr"

    def load(self, operand: Operand) -> str:
        """The text that loads a block of the operand."""
        mask = ", mask=mask" if self.region.reduced[-1] in operand.axes else ""
        return f"tl.load({self.address(operand.name, operand.axes)}{mask})"

    def store(self, output: Output, text: str) -> str:
        """The text that stores a full result, a number for the row, or a block's share of a
        segment's sum."""
        region = self.region
        if output.segments:
            where = self.address(output.name, (*region.row_axes, *region.reduced[:-1]))
            pointer, index = where.split(" + ", 1)
            return f"tl.store({pointer} + ({index}) * n_blocks + step % n_blocks, {text})"
        axes = region.row_axes if output.rowwise else tuple(range(len(region.dims)))
        mask = "" if output.rowwise else ", mask=mask"
        return f"tl.store({self.address(output.name, axes)}, {text}{mask})"


def emit(region: Region, choice: Mapping[str, Any], summary: str) -> GeneratedSource:
    """Kernel and launcher of a region whose rows consist of segments. ``choice``: BLOCK_SIZE,
    num_warps and num_stages."""
    layout = SegmentLayout(region=region)
    lines = _kernel(layout, choice["num_stages"])
    text = "\n".join(lines)
    sizes = [name for name in sizes_in(text, region.dims) if name not in ("n_rows", "n_cols")]
    header = [
        *source.pointers(region),
        *(["n_cols"] if "n_cols" in text else []),
        "n_steps",
        *(f"{name}: tl.constexpr" for name in (*sizes, "n_blocks", "BLOCK_SIZE")),
    ]
    doc = "Each program handles one row, a block of a segment at a time."
    kernel = source.kernel_text(f"_{region.name}_kernel", header, doc, lines)
    return source.generate_source(
        region, [kernel], _launcher(region, choice, header, summary), summary
    )


def _kernel(layout: SegmentLayout, stages: int) -> list[str]:
    region = layout.region
    taken = ["segment", "step", "n_rows", "n_cols", "n_steps", "n_blocks"]
    body = Body(UniqueNames([*(dim.name for dim in region.dims), *taken]), layout.load)
    body.add("row = tl.program_id(0).to(tl.int64)  # int64: offsets can pass 2**31")
    for level in levels(region.values):
        hoist(body, [value.values[0] for value in level])
        sums = {value: accumulate.declare(body, value, accumulate.VECTOR) for value in level}
        inner = _open_loop(layout, body, stages)
        for value in level:
            accumulate.update(inner, value, sums[value])
        body.lines += inner.lines
        for value in level:
            close(body, value, accumulate.finish(body, value, sums[value], accumulate.VECTOR))
    _write(layout, body, stages)
    return body.lines


def _write(layout: SegmentLayout, body: Body, stages: int) -> None:
    rowwise = [output for output in layout.region.outputs if output.rowwise]
    others = [output for output in layout.region.outputs if not output.rowwise]
    for output in rowwise:
        body.add(layout.store(output, str(body.text(output.value))))
    if not others:
        return
    hoist(body, [output.value for output in others])
    inner = _open_loop(layout, body, stages)
    inner.need(*(output.value for output in others))
    for output in others:
        text = str(inner.text(output.value))
        total = f"tl.sum(tl.where(mask, {text}, 0.0), axis=0)"
        inner.add(layout.store(output, total if output.segments else text))
    body.lines += inner.lines


def _open_loop(layout: SegmentLayout, body: Body, stages: int) -> Body:
    length = layout.region.dims[-1].name
    steps = f"tl.range(0, n_steps, num_stages={stages})" if stages > 1 else "range(0, n_steps)"
    body.add(f"for step in {steps}:")
    inner = body.inner()
    inner.add("segment = step // n_blocks")
    inner.add("cols = step % n_blocks * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)")
    inner.add(f"mask = cols < {length}  # the last block of a segment is not full")
    return inner


def _launcher(region: Region, choice: Mapping[str, Any], header: list[str], summary: str) -> str:
    names = [item.split(":")[0].removesuffix("_ptr") for item in header]
    values = {"BLOCK_SIZE": f"BLOCK_SIZE={choice['BLOCK_SIZE']}"}
    arguments = [values.get(name, name) for name in names] + [f"num_warps={choice['num_warps']}"]
    arguments += accumulate.launch_options(region)
    length = region.dims[region.reduced[-1]].name
    return "\n".join(
        [
            f"def {region.name}({source.signature(region)}):",
            source.describe_region(summary, region),
            *source.make_contiguous(region.operands),
            *size_lines(region, ["n_rows", "n_cols"]),
            f"    n_blocks = {source.blocks(length, choice['BLOCK_SIZE'])}",
            f"    n_steps = {product(region.reduced[:-1], region.dims)} * n_blocks",
            *(
                source.allocate(output, f"{region.operands[0].name}.device")
                for output in region.outputs
            ),
            "    if n_rows > 0:  # a grid of zero programs cannot be launched",
            source.wrap_items(
                f"_{region.name}_kernel[(n_rows,)](", arguments, ")", indent="        "
            ),
            f"    return {source.result(region)}",
            "",
        ]
    )
