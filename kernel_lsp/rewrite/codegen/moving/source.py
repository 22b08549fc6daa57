"""Triton source of regions that move elements: a kernel over the elements of the result, or over those
that are summed. Sizes of all dimensions but 0 are written into the source."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.moves import DimSizes
from kernel_lsp.rewrite.codegen.moving.jobs import (
    RESERVED,
    MovedJob,
    MovedOutput,
    PlannedKernel,
    count,
    lead,
    stored_at,
)
from kernel_lsp.rewrite.codegen.moving.neighbors import WIDTHS
from kernel_lsp.rewrite.codegen.moving.writing import Writer

NAMES = re.compile(r"\b\w+\b(?!=[^=])")
"""Of an expression, without those of keyword arguments."""
PROGRAMS = 1024
"""Of a kernel that sums: eight programs of four warps on each multiprocessor of an H200, and few
enough that adding up what each has summed takes no time."""


def texts(planned: PlannedKernel, choice: Mapping[str, Any]) -> list[str]:
    """Kernel and launcher."""
    return [_kernel(planned), _launcher(planned, choice)]


# --- kernel ------------------------------------------------------------------------------


def _kernel(planned: PlannedKernel) -> str:
    job = planned.job
    pointers = [f"{t.operand.name}_ptr" for t in planned.read]
    pointers += [f"{output.name}_ptr" for output in _targets(job)]
    steps = [name for tensor in planned.read for name in tensor.stride_names]
    more = [*steps, *planned.shares.values(), *_means(job)]
    taken = UniqueNames([*RESERVED, *pointers, *more, *(out.name for out in job.outputs)])
    writer = Writer(planned.tiling, taken, planned.shares, planned.runs)
    writer.widths |= {planned.width} - {1}
    ends = [_end(planned, writer, place) for place in range(len(job.outputs))]
    header = [
        *pointers, "n_rows", *(["each"] if job.totals or job.row_sums else []), *more,
        "BLOCK_ROWS: tl.constexpr", "BLOCK_COLS: tl.constexpr", "WIDE: tl.constexpr",
    ]  # fmt: skip
    lines = _body(planned, writer, ends)
    return source.kernel_text(f"_{job.name}_kernel", header, _doc(planned), lines)


def _doc(planned: PlannedKernel) -> str:
    job = planned.job
    doing = "writes a tile"
    if job.totals:
        doing = "sums some tiles"
    elif job.row_sums:
        doing = "takes tiles below one another, whose rows it sums"
    doc = f"Each program {doing}; a row has {planned.columns} elements of {_words(job.shape)}"
    return doc + (f", {planned.width} a column." if planned.width > 1 else ".")


def _targets(job: MovedJob) -> tuple[MovedOutput, ...]:
    """What has a pointer of its own; numbers share one."""
    return job.outputs if not job.totals else (replace(job.outputs[0], name="partial"),)


def _means(job: MovedJob) -> list[str]:
    """Parameters of the kernel, by which sums are multiplied."""
    return [f"{output.name}_share" for output in job.totals if output.total == "mean"]


def _end(planned: PlannedKernel, writer: Writer, place: int) -> str:
    """The line that stores an output's tile, or adds it to the sum."""
    job, output = planned.job, planned.job.outputs[place]
    text = writer.joined([str(writer.text(one)) for one in planned.results[place]])
    if output.total:
        under = job.within(output)
        where = " & ".join(["mask", *([writer.conditions(under)] if under else [])])
        return f"    {output.name} += tl.where({where}, {text}, 0.0)"
    if output.via:
        where = writer.index(stored_at(job, output))
        return f"    tl.store({output.name}_ptr + {where}, {text}, mask=mask)"
    wide = planned.tiling.widened(planned.width)
    cols = f"cols{wide.suffix}"
    where = f"rows * {wide.columns} + {cols}" if wide.columns != 1 else f"rows + {cols}"
    return f"    tl.store({output.name}_ptr + {where}, {text}, mask=mask{wide.suffix})"


ROWS = "    rows = {} * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]"


def _body(planned: PlannedKernel, writer: Writer, ends: Sequence[str]) -> list[str]:
    """One tile; or a loop over tiles, and what is stored behind it."""
    job, columns = planned.job, planned.tiling.columns
    walked = "at_tile" if job.totals else "pid"
    cols = [
        f"    cols = {walked} % n_blocks * BLOCK_COLS + tl.arange(0, BLOCK_COLS)[None, :]",
        f"    col_mask = cols < {columns}",
    ]
    masks = [
        "    row_mask = rows < n_rows",
        "    mask = row_mask & col_mask  # the last tiles reach past the end",
    ]
    for width in sorted(writer.widths):
        masks += _wide_lines(walked, width, columns)
    first = [
        "    # int64 where offsets can pass 2**31",
        "    pid = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)",
        f"    n_blocks: tl.constexpr = ({columns} + BLOCK_COLS - 1) // BLOCK_COLS",
    ]
    if job.stored == job.outputs:
        return [*first, ROWS.format("pid // n_blocks"), *cols, *masks, *writer.lines, *ends]
    if job.totals:
        walk = ["    at_tile = pid * each + tile", ROWS.format("at_tile // n_blocks"), *cols]
        turn = [*walk, *masks, *writer.lines, *ends]
    else:
        same, other = _apart(writer.lines)
        first += [*cols, *same]
        turn = [ROWS.format("(pid // n_blocks * each + tile)"), *masks, *other, *ends]
    zeros = [
        f"    {output.name} = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)"
        for output in job.outputs
        if output.total
    ]
    loop = ["    for tile in range(0, each):", *(f"    {line}" for line in turn)]
    return [*first, *zeros, *loop, *_sums(job, columns)]


def _apart(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is the same in each turn of a loop over rows, and the rest: a weight that is loaded in
    each would wait for other threads in each."""
    same, other = list[str](), list[str]()
    changing = {"rows", "row_mask", "mask", *(f"mask_{width}" for width in WIDTHS)}
    for line in lines:
        made, text = line.split(" = ", 1)
        if changing.isdisjoint(NAMES.findall(text)):
            same.append(line)
        else:
            other.append(line)
            changing.update(NAMES.findall(made))
    return same, other


def _sums(job: MovedJob, columns: int) -> list[str]:
    """What each program stores of its sums."""
    if job.row_sums:
        where = f"pid // n_blocks * {columns} + cols"
        return [
            f"    tl.store({out.name}_ptr + {where}, tl.sum({out.name}, axis=0)[None, :], "
            "mask=col_mask)"
            for out in job.row_sums
        ]
    lines = []
    for place, output in enumerate(job.totals):
        where = "pid" if not place else f"{place} * tl.num_programs(0) + pid"
        summed = f"tl.sum(tl.sum({output.name}, axis=1), axis=0)"
        summed += f" * {output.name}_share" if output.total == "mean" else ""
        lines.append(f"    tl.store(partial_ptr + {where}, {summed})")
    return lines


def _wide_lines(walked: str, width: int, columns: int) -> list[str]:
    """The neighbors of each column."""
    block = f"{width} * BLOCK_COLS"
    return [
        f"    cols_{width} = {walked} % n_blocks * ({block}) + tl.arange(0, {block})[None, :]",
        f"    mask_{width} = row_mask & (cols_{width} < {width * columns})",
    ]


def _words(shape: DimSizes) -> str:
    return f"({', '.join(['n', *map(str, shape[1:])])}{',' if len(shape) == 1 else ''})"


# --- launcher ----------------------------------------------------------------------------


def _launcher(planned: PlannedKernel, choice: Mapping[str, Any]) -> str:
    job = planned.job
    plain = [t.operand for t in planned.read if not t.is_strided]
    furthest = [t.furthest for t in planned.read] + [f"n_rows * {planned.columns}"]
    shapes = [(t.operand.name, t.operand.dtype, _words(t.shape)) for t in planned.given]
    shapes += [(out.name, out.dtype, _words(job.shape_of(out))) for out in job.stored]
    reach = f"max({', '.join(furthest)})" if len(furthest) > 1 else furthest[0]
    wide = f"wide = {reach} >= 2**31"
    call = f"_{job.name}_kernel[(n_programs,)]("
    inside = "    " if job.totals else "        "
    launch = [
        f"{inside}{wide}",
        source.wrap_items(call, _arguments(planned, choice), ")", indent=inside),
    ]
    if not job.totals:
        launch.insert(0, "    if n_programs > 0:  # a grid of zero programs cannot be launched")
    lines = [
        f"def {job.name}({', '.join(t.operand.name for t in planned.given)}):",
        *source.docstring(job.doc, shapes),
        *source.make_contiguous(plain),
        *_made_lines(planned, choice),
        *launch,
        f"    return {_returned(job)}",
        "",
    ]
    return "\n".join(lines)


def _arguments(planned: PlannedKernel, choice: Mapping[str, Any]) -> list[str]:
    """Of the kernel."""
    job = planned.job
    return [
        *(t.operand.name for t in planned.read),
        *(output.name for output in _targets(job)),
        "n_rows",
        *(["each"] if job.totals or job.row_sums else []),
        *(text for t in planned.read for text in t.stride_arguments),
        *planned.shares.values(),
        *_means(job),
        *(f"{name}={choice[name]}" for name in ("BLOCK_ROWS", "BLOCK_COLS")),
        "WIDE=wide",
        f"num_warps={choice['num_warps']}",
    ]


def _made_lines(planned: PlannedKernel, choice: Mapping[str, Any]) -> list[str]:
    """What is written to, and how many rows and programs there are."""
    job = planned.job
    rows = f"({source.blocks('n_rows', choice['BLOCK_ROWS'])})"
    blocks = -(-planned.tiling.columns // choice["BLOCK_COLS"])
    shares = [
        f"    {name} = 1.0 / max({count(job, shape)}, 1)" for shape, name in planned.shares.items()
    ]
    made = [_allocate(output, planned) for output in job.stored]
    lines = [*made, f"    n_rows = {_rows(planned)}", *shares]
    if job.totals:
        return [*lines, f"    n_tiles = {rows} * {blocks}", *_totals_lines(planned)]
    if not job.row_sums:
        return [*lines, f"    n_programs = {rows} * {blocks}"]
    device = f"{planned.given[0].operand.name}.device"
    return [
        *lines,
        f"    n_tiles = {rows}",
        f"    each = max(1, n_tiles * {blocks} // {PROGRAMS})",
        "    n_sums = (n_tiles + each - 1) // each",
        f"    n_programs = n_sums * {blocks}",
        *(
            f"    {output.name} = torch.empty((n_sums, {planned.columns}), dtype=torch.float32, "
            f"device={device})"
            for output in job.row_sums
        ),
    ]


def _totals_lines(planned: PlannedKernel) -> list[str]:
    job, device = planned.job, f"{planned.given[0].operand.name}.device"
    several = f"({len(job.totals)}, n_programs)" if len(job.totals) > 1 else "n_programs"
    lines = [
        f"    each = max(1, n_tiles // {PROGRAMS})",
        "    n_programs = max(1, (n_tiles + each - 1) // each)  # one also of no elements",
        f"    partial = torch.empty({several}, dtype=torch.float32, device={device})",
    ]
    for output in job.totals:
        if output.total == "mean":
            many = count(job, job.shape_of(output))
            lines.append(f'    {output.name}_share = 1.0 / ({many} or float("nan"))')
    return lines


def _rows(planned: PlannedKernel) -> str:
    """Source of the number of rows."""
    job, columns = planned.job, planned.columns
    first = job.outputs[0]
    if first.total:
        return count(job, planned.tiling.row_sizes)
    return f"{first.name}.numel()" + (f" // {columns}" if columns != 1 else "")


def _returned(job: MovedJob) -> str:
    if not job.totals:
        return ", ".join(output.name for output in job.outputs)
    several, dtype = len(job.totals) > 1, job.outputs[0].dtype
    whole = "partial.sum(1)" if several else "partial.sum()"
    whole += f".to(torch.{dtype})" if dtype != "float32" else ""
    return f"{whole}.unbind(0)" if several else whole


def _allocate(output: MovedOutput, planned: PlannedKernel) -> str:
    job, device = planned.job, f"{planned.given[0].operand.name}.device"
    shape = f"{output.like}.shape"
    if not output.like:
        own = job.shape_of(output)
        sizes = ", ".join([lead(job, own), *map(str, own[1:])])
        shape = f"({sizes}{',' if len(own) == 1 else ''})"
    return f"    {output.name} = torch.empty({shape}, dtype=torch.{output.dtype}, device={device})"
