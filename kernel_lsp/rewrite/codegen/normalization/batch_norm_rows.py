"""The pointwise pass of a batch norm over ``(rows, channels)``: programs walk rows of a block of
channels and read what they need by channel once.

Four to six operands of float32 by channel weigh more than the two bytes of an element: read for
each element, they made the forward pass over [8192, 16384] in bfloat16 take 0.424 ms and the
backward one 0.626 ms; so they take 0.190 and 0.277 ms (H100, 2026-11-28). Where elements of a
channel lie in runs (images), operands by channel stay in the first cache, and the flat kernel is at
the roof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernel_lsp.rewrite.codegen.core import source, strides
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Region
from kernel_lsp.rewrite.codegen.pointwise import flat
from kernel_lsp.rewrite.codegen.reduction import channels

PROGRAMS = 4 * channels.PROGRAMS


def pieces(
    layout: channels.ChannelLayout, region: Region, choice: Mapping[str, Any], summary: str
) -> list[str]:
    """Source of kernel and launcher of a region without reductions, without the helpers that they
    call: a row of channels at a time where that is possible, else by `flat.pieces`."""
    if not _is_covered(layout, region):
        return flat.pieces(region, choice, summary)
    rows, columns = _block(layout, choice)
    return [_kernel(layout, region), _launcher(layout, region, choice, summary, rows, columns)]


def _is_covered(layout: channels.ChannelLayout, region: Region) -> bool:
    """Rows of channels, read and written in order, and operands for each element or channel."""
    if layout.is_inner or strides.argument_names(region) or source.draws(region):
        return False
    known = ((), (layout.channel,), (0, 1))
    return all(operand.axes in known for operand in region.operands)


def _block(layout: channels.ChannelLayout, choice: Mapping[str, Any]) -> tuple[int, int]:
    """(rows, channels) of a block with the chosen number of elements: as wide as may be."""
    size = int(choice["BLOCK_SIZE"])
    wide = source.next_power_of_two(layout.region.dims[layout.channel].size)
    columns = min(size, 1024, wide)
    return size // columns, columns


def _kernel(layout: channels.ChannelLayout, region: Region) -> str:
    dims = [dim.name for dim in region.dims]
    values = [output.value for output in region.outputs]
    body = Body(UniqueNames([*dims, "chunk", "n_chunks", "channel"]), layout.load)
    layout.prologue(body, values)
    block = layout.loop(body)
    for output in region.outputs:
        text = block.text(output.value)
        where = f"{output.name}_ptr + rows * {layout.size} + channel"
        block.add(f"tl.store({where}, {text}, mask=mask)")
    doc = "Each program walks some rows of a block of channels."
    header = layout.header(region.operands, [output.name for output in region.outputs])
    return source.kernel_text(f"_{region.name}_kernel", header, doc, body.lines + block.lines)


def _launcher(
    layout: channels.ChannelLayout,
    region: Region,
    choice: Mapping[str, Any],
    summary: str,
    rows: int,
    columns: int,
) -> str:
    dims = [dim.name for dim in region.dims]
    most = max(1, PROGRAMS // -(-region.dims[layout.channel].size // columns))
    blocks = [f"BLOCK_ROWS={rows}", f"BLOCK_SIZE={columns}", f"num_warps={choice['num_warps']}"]
    tensors = [item.name for item in source.tensors(region)]
    kernel = f"_{region.name}_kernel[grid]("
    lines = [
        f"def {region.name}({source.signature(region)}):",
        source.describe_region(summary, region),
        *source.make_contiguous(region.operands),
        *(source.allocate(o, f"{region.operands[0].name}.device") for o in region.outputs),
        *source.size_lines(region, dims),
        f"    n_chunks = min({most}, {source.blocks(dims[0], rows)})",
        f"    if {dims[0]} > 0:  # a grid of zero programs cannot be launched",
        f"        grid = ({source.blocks(layout.size, columns)}, n_chunks)",
        source.wrap_items(kernel, [*tensors, *dims, *blocks], ")", indent="        "),
        f"    return {source.result(region)}",
        "",
    ]
    return "\n".join(lines)
