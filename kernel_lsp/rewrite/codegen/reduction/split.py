"""Few long rows: each row is shared by many programs, in two launches.

The first launch reduces chunks to partial results, the second combines them and writes what
depends on them. A full reduction is the case of one row. Covered: one level of reductions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.index import product, sizes_in
from kernel_lsp.rewrite.codegen.core.ir import REDUCTIONS, Operand, Output, Region, Value
from kernel_lsp.rewrite.codegen.pointwise import flat
from kernel_lsp.rewrite.codegen.reduction import accumulate
from kernel_lsp.rewrite.codegen.reduction.accumulate import LANES, VECTOR, ReductionAxis
from kernel_lsp.rewrite.codegen.reduction.rows import RowLayout, close, hoist, levels, size_lines
from kernel_lsp.rewrite.generated import GeneratedSource

CHUNKS = ReductionAxis(shape="[MAX_CHUNKS]", index=0)


def splittable(region: Region) -> bool:
    """Whether nothing in the region is reduced after a first reduction."""
    return len(levels(region.values)) == 1


def emit(region: Region, choice: Mapping[str, Any], summary: str) -> GeneratedSource:
    """Two kernels and their launcher. ``choice``: BLOCK_SIZE, MAX_CHUNKS (a power of two),
    num_warps."""
    (reductions,) = levels(region.values)
    first = _partial_kernel(region, reductions)
    second = _final_kernel(region, reductions)
    kernels = [text for text, _ in (first, second)]
    launcher = _launcher(region, choice, reductions, first[1], second[1], summary)
    return source.generate_source(region, kernels, launcher, summary)


def _whole(region: Region) -> bool:
    """True when there is just one row: one index then enumerates the whole tensor."""
    return not region.row_axes


def _names(region: Region) -> UniqueNames:
    taken = ["n_rows", "n_cols", "n_chunks", "chunk", "chunks", "present", "partial", "slot"]
    return UniqueNames([*(dim.name for dim in region.dims), *taken])


def _load(operand: Operand, region: Region) -> str:
    if _whole(region):
        return flat.flat_load(operand, region, "cols")
    return RowLayout(region=region, tiled=False, looped=True).load(operand)


def _row_line(region: Region) -> list[str]:
    if _whole(region):
        return []
    return ["    row = tl.program_id(1).to(tl.int64)  # int64: row * n_cols can pass 2**31"]


def _columns(region: Region) -> list[str]:
    lines = [
        "cols = start + tl.arange(0, BLOCK_SIZE)",
        "mask = cols < n_cols  # the last block is not full",
    ]
    return lines + (flat.index_lines(region) if _whole(region) and flat.narrow(region) else [])


def _start(region: Region) -> str:
    wide = ".to(tl.int64)" if _whole(region) else ""
    return f"tl.program_id(0){wide} * BLOCK_SIZE"


def _partial_kernel(region: Region, reductions: list[Value]) -> tuple[str, list[str]]:
    body = Body(_names(region), lambda operand: _load(operand, region))
    body.lines += [*_row_line(region), "    chunk, n_chunks = tl.program_id(0), tl.num_programs(0)"]
    hoist(body, [value.values[0] for value in reductions])
    lanes = {value: accumulate.declare(body, value, VECTOR) for value in reductions}
    body.add(f"for start in range({_start(region)}, n_cols, n_chunks * BLOCK_SIZE):")
    inner = body.inner()
    for line in _columns(region):
        inner.add(line)
    for value in reductions:
        accumulate.update(inner, value, lanes[value])
    body.lines += inner.lines
    slot = 0
    for value in reductions:
        results = accumulate.finish(body, value, lanes[value], VECTOR)
        for result in accumulate.partial_names(value, results):
            body.add(f"tl.store({_partial(region, reductions, slot)} + chunk, {result})")
            slot += 1
    operands = _used_operands(region, [value.values[0] for value in reductions])
    sizes = _sizes(body.lines, region)
    header = [
        *(f"{o.name}_ptr" for o in operands),
        "partial_ptr",
        "n_cols",
        *_constexpr(sizes),
        "BLOCK_SIZE: tl.constexpr",
    ]
    doc = "Each program reduces every n_chunks-th block to one partial result."
    return source.kernel_text(f"_{region.name}_partial_kernel", header, doc, body.lines), header


def _final_kernel(region: Region, reductions: list[Value]) -> tuple[str, list[str]]:
    body = Body(_names(region), lambda operand: _load(operand, region))
    body.lines += _row_line(region)
    body.add("chunks = tl.arange(0, MAX_CHUNKS)")
    body.add("present = chunks < n_chunks  # absent chunks weigh nothing")
    _combine_partials(body, region, reductions)
    full = [output for output in region.outputs if not output.rowwise]
    for output in region.outputs:
        if output.rowwise:
            body.add(_store(output, region, str(body.text(output.value))))
    if full:
        hoist(body, [output.value for output in full])
        body.add(f"start = {_start(region)}")
        for line in _columns(region):
            body.add(line)
        for output in full:
            body.add(_store(output, region, str(body.text(output.value))))
    operands = _used_operands(region, [output.value for output in region.outputs], stop=True)
    text = "\n".join(body.lines)
    header = [
        *(f"{operand.name}_ptr" for operand in operands),
        *(f"{output.name}_ptr" for output in region.outputs),
        *(["partial_ptr", "n_chunks"]),
        *(["n_cols"] if "n_cols" in text else []),
        *_constexpr(_sizes(body.lines, region)),
        "MAX_CHUNKS: tl.constexpr",
        *(["BLOCK_SIZE: tl.constexpr"] if full else []),
    ]
    doc = "Combines the partial results of a row" + (
        " and writes one block of it." if full else "."
    )
    return source.kernel_text(f"_{region.name}_kernel", header, doc, body.lines), header


def _combine_partials(body: Body, region: Region, reductions: list[Value]) -> None:
    """Each reduction's value, from what the chunks came to."""
    slot = 0
    for value in reductions:
        partials = []
        for suffix, identity in LANES[value.op]:
            where = f"{_partial(region, reductions, slot)} + chunks"
            load = f"tl.load({where}, mask=present, other={identity})"
            partials.append(body.assign(f"partial_{suffix}", load))
            slot += 1
        close(body, value, accumulate.finish(body, value, tuple(partials), CHUNKS))


def _partial(region: Region, reductions: list[Value], slot: int) -> str:
    """Address of the first chunk's partial result: one line of chunks for each lane and row."""
    slots = sum(len(LANES[value.op]) for value in reductions)
    if _whole(region):
        return f"partial_ptr + {slot} * n_chunks" if slot else "partial_ptr"
    line = f"row * {slots} + {slot}" if slot else (f"row * {slots}" if slots > 1 else "row")
    return (
        f"partial_ptr + ({line}) * n_chunks" if " " in line else f"partial_ptr + {line} * n_chunks"
    )


def _store(output: Output, region: Region, text: str) -> str:
    if not _whole(region):
        return RowLayout(region=region, tiled=False, looped=True).store(output, text)
    if output.rowwise:
        return f"tl.store({output.name}_ptr, {text})"
    return f"tl.store({output.name}_ptr + cols, {text}, mask=mask)"


def _used_operands(region: Region, roots: list[Value], *, stop: bool = False) -> list[Operand]:
    """Operands that the roots load; with ``stop`` only outside of reductions."""
    found: set[Operand] = set()
    stack, seen = list(roots), set()
    while stack:
        value = stack.pop()
        if value in seen or (stop and value.op in REDUCTIONS):
            continue
        seen.add(value)
        stack += value.values
        if value.operand is not None:
            found.add(value.operand)
    return [operand for operand in region.operands if operand in found]


def _sizes(lines: list[str], region: Region) -> list[str]:
    return [
        name for name in sizes_in("\n".join(lines), region.dims) if name not in ("n_rows", "n_cols")
    ]


def _constexpr(names: list[str]) -> list[str]:
    return [f"{name}: tl.constexpr" for name in names]


def _launcher(
    region: Region,
    choice: Mapping[str, Any],
    reductions: list[Value],
    first: list[str],
    second: list[str],
    summary: str,
) -> str:
    block, most = choice["BLOCK_SIZE"], choice["MAX_CHUNKS"]
    slots = sum(len(LANES[value.op]) for value in reductions)
    rows = "" if _whole(region) else "n_rows * "
    device = f"{region.operands[0].name}.device"
    full = any(not output.rowwise for output in region.outputs)
    exact = accumulate.launch_options(region)
    grids = ("n_chunks", source.blocks("n_cols", block) if full else "1")
    if not _whole(region):
        grids = (f"{grids[0]}, n_rows", f"{grids[1]}, n_rows")
    elif not full:
        grids = ("n_chunks,", "1,")
    else:
        grids = (f"{grids[0]},", f"{grids[1]},")
    indent = "    "
    guard: list[str] = []
    if not _whole(region) or full:
        indent, guard = (
            "        ",
            [f"    if {region.outputs[-1].name}.numel() > 0:  # an empty grid cannot be launched"],
        )
    lines = [
        f"def {region.name}({source.signature(region)}):",
        source.describe_region(summary, region),
        *source.make_contiguous(region.operands),
        *_launch_sizes(region),
        *(source.allocate(output, device) for output in region.outputs),
        f"    n_chunks = max(1, min({source.blocks('n_cols', block)}, {most}))",
        f"    partial = torch.empty({rows}{slots} * n_chunks, dtype=torch.float32, "
        f"device={device})".replace(" 1 * ", " ").replace("(1 * ", "("),
        *guard,
        source.wrap_items(
            f"_{region.name}_partial_kernel[({grids[0]})](",
            [*_arguments(first, choice), *exact],
            ")",
            indent=indent,
        ),
        source.wrap_items(
            f"_{region.name}_kernel[({grids[1]})](",
            [*_arguments(second, choice), *exact],
            ")",
            indent=indent,
        ),
        f"    return {source.result(region)}",
        "",
    ]
    return "\n".join(lines)


def _launch_sizes(region: Region) -> list[str]:
    if not _whole(region):
        return size_lines(region, ["n_rows", "n_cols"])
    lines = [f"    {dim.name} = {dim.source}" for dim in region.dims if dim.name != "n_cols"]
    if len(region.dims) == 1:
        return [f"    n_cols = {region.dims[0].source}"]
    return [*lines, f"    n_cols = {product(region.reduced, region.dims)}"]


def _arguments(header: list[str], choice: Mapping[str, Any]) -> list[str]:
    names = [item.split(":")[0].removesuffix("_ptr") for item in header]
    fixed = ("BLOCK_SIZE", "MAX_CHUNKS")
    return [f"{n}={choice[n]}" if n in fixed else n for n in names] + [
        f"num_warps={choice['num_warps']}"
    ]
