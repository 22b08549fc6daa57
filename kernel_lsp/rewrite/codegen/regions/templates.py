"""Which template runs a region, with its finite parameter space, and the source that comes out of
it.

Chosen from the workload's sizes alone; the emitted launchers take any size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_lsp.devices import REFERENCE
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.ir import Region
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported
from kernel_lsp.rewrite.codegen.core.source import next_power_of_two
from kernel_lsp.rewrite.codegen.core.space import RegionShape
from kernel_lsp.rewrite.codegen.pointwise import flat, tiled
from kernel_lsp.rewrite.codegen.reduction import accumulate, persistent, rows, segments, split
from kernel_lsp.rewrite.generated import GeneratedSource

ONE_BLOCK = 16384
"""Longest row that stays in registers: 16 elements a thread at 32 warps."""
FEW_ROWS = REFERENCE.processors
"""Fewer rows than an H200 has multiprocessors leave some idle: split the rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    kind: str
    """flat, tiled, rows, split, persistent or segments."""
    parameters: dict[str, list[Any]]
    launches: int = 1
    passes: float = 1.0
    """How often operands are read."""


def template_for(region: Region, space: RegionShape) -> Template:
    """How the region is run, from the workload's sizes. Raises Unsupported for a draw in a kernel
    whose blocks are no runs of memory."""
    template = _template_for(region, space)
    if source.draws(region):
        last = region.reduced[-1:] in ((), (len(region.dims) - 1,))
        if template.kind not in ("flat", "rows", "persistent") or not last:
            raise Unsupported("a dropout in a kernel that walks its elements in another order")
    strided = any(operand.inner is not None for operand in region.operands)
    if strided and template.kind in ("split", "segments"):
        raise Unsupported("an operand that is not contiguous, in rows that are walked in parts")
    return template


def _template_for(region: Region, space: RegionShape) -> Template:
    if not space.reduced:
        return _pointwise_template(region)
    if any(output.columns for output in region.outputs):
        return Template(kind="persistent", parameters=persistent.parameters(region))
    if any(output.segments for output in region.outputs):
        return _segments_template(region)
    return _rows_template(region, space)


def _rows_template(region: Region, space: RegionShape) -> Template:
    columns, lines = (
        points(region.dims[axis].size for axis in axes)
        for axes in (region.reduced, region.row_axes)
    )
    # The batch may be larger in another call: a row that contains it is never one block.
    free = 0 in space.reduced
    if any(axis > max(region.reduced) for axis in region.row_axes):
        return _strided_template(region, columns, free)
    is_long = columns > 4096 and columns * lines > 2**18
    if lines < FEW_ROWS and is_long and split.splittable(region):
        return _split(region, lines)
    if columns > ONE_BLOCK and segments.fits(region):
        return _segments_template(region)
    if columns > ONE_BLOCK or free:
        return _looped_template(region, columns)
    return _one_block(region, columns, lines)


def _pointwise_template(region: Region) -> Template:
    if tiled.rows_of(region) is not None:
        return Template(kind="tiled", parameters=dict(tiled.PARAMETERS))
    blocks = [2048, 1024, 4096] if _is_low(region) else flat.PARAMETERS["BLOCK_SIZE"]
    return Template(kind="flat", parameters={**flat.PARAMETERS, "BLOCK_SIZE": blocks})


def _is_low(region: Region) -> bool:
    """Whether all that is read for each element has 16 bits."""
    full = (operand for operand in region.operands if len(operand.axes) == len(region.dims))
    return all(operand.dtype in ("bfloat16", "float16") for operand in full)


def _finds_places(region: Region) -> bool:
    return any(value.op in accumulate.FIRST for value in region.values)


def _one_block(region: Region, columns: int, lines: int) -> Template:
    block = next_power_of_two(columns)
    tile = max(1, min(1024 // block, next_power_of_two(max(1, lines // FEW_ROWS))))
    warps = max(1, min(16, block * tile // (512 if _is_low(region) else 256)))
    choices = list(dict.fromkeys([warps, min(32, warps * 2), max(1, warps // 2)]))
    rows_ = list(dict.fromkeys([tile, max(1, tile // 2)]))
    return Template(
        kind="rows", parameters={"BLOCK_ROWS": rows_, "num_warps": choices, "BLOCK_SIZE": [0]}
    )


def _looped_template(region: Region, columns: int) -> Template:
    parameters: dict[str, list[Any]] = {
        "BLOCK_SIZE": [4096, 8192, 2048],
        "num_warps": [16, 8],
        "BLOCK_ROWS": [1],
    }
    if columns <= 2048:
        parameters |= {"BLOCK_SIZE": [next_power_of_two(columns)], "num_warps": [4, 8]}
    return Template(kind="rows", parameters=parameters, passes=2.0 if rows.waits(region) else 1.0)


def _segments_template(region: Region) -> Template:
    full = any(not (output.rowwise or output.segments) for output in region.outputs)
    parameters = segments.parameters(region)
    return Template(kind="segments", parameters=parameters, passes=2.0 if full else 1.0)


def _strided_template(region: Region, columns: int, free: bool) -> Template:
    """Neighbors in memory belong to different rows: a tile takes 128 bytes of them at a time. What
    is written for each element is worth twice the registers: a row that is walked in blocks is
    read twice."""
    full = any(not output.rowwise for output in region.outputs)
    block = min(next_power_of_two(columns), 256 if full else 128)
    looped = columns > block or free
    if looped:
        # Of 151 channels, a lane for each of 128 columns and its place took twice the instructions
        # for an element, and 119 registers instead of 56 (ahead of time for sm_90).
        block = min(block, 32 if _finds_places(region) else 128)
    large = block > 128
    neighbors = [32, 16] if large else [64, 128] if _is_low(region) and block <= 64 else [32, 64]
    parameters: dict[str, list[Any]] = {
        "BLOCK_SIZE": [block if looped else 0],
        "BLOCK_ROWS": neighbors,
        "num_warps": [8, 4] if large else [4, 8],
    }
    twice = looped and bool(rows.waits(region))
    return Template(kind="rows", parameters=parameters, passes=2.0 if twice else 1.0)


def _split(region: Region, lines: int) -> Template:
    full = any(not output.rowwise for output in region.outputs)
    most = next_power_of_two(max(8, (512 if full else 1024) // lines))
    more = [] if full else [most * 4]  # each block of a full result reads all partial ones
    parameters: dict[str, list[Any]] = {
        "BLOCK_SIZE": [4096, 2048, 8192],
        "MAX_CHUNKS": [most, most // 2, *more],
        "num_warps": [8, 4],
    }
    return Template(kind="split", parameters=parameters, launches=2, passes=2.0 if full else 1.0)


def emit(
    region: Region, template: Template, choice: Mapping[str, Any], summary: str
) -> GeneratedSource:
    """The source of the region by that template and choice of parameters."""
    if template.kind == "flat":
        return flat.emit(region, choice, summary)
    if template.kind == "tiled":
        return tiled.emit(region, choice, summary)
    if template.kind == "split":
        return split.emit(region, choice, summary)
    if template.kind == "persistent":
        return persistent.emit(region, choice, summary)
    if template.kind == "segments":
        return segments.emit(region, choice, summary)
    return rows.emit(region, {**choice, "looped": choice["BLOCK_SIZE"] > 0}, summary)


def points(sizes: Iterable[int]) -> int:
    """The product of the sizes; 1 for none."""
    total = 1
    for size in sizes:
        total *= size
    return total
