"""Pointwise regions: one pass over all elements, each read and written once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernel_lsp.rewrite.codegen.core import source, strides
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.index import IndexSpace, offset, product, sizes_in
from kernel_lsp.rewrite.codegen.core.ir import Operand, Output, Region
from kernel_lsp.rewrite.codegen.pointwise import dropping
from kernel_lsp.rewrite.generated import GeneratedSource

# 1024 elements and 4 warps are 8 elements a thread: one or two 16-byte accesses.
PARAMETERS: dict[str, list[Any]] = {"BLOCK_SIZE": [1024, 2048, 512], "num_warps": [4, 8]}


def emit(region: Region, choice: Mapping[str, Any], summary: str) -> GeneratedSource:
    """Kernel and launcher for a region without reductions."""
    kernel, launcher = pieces(region, choice, summary)
    return source.generate_source(region, [kernel], launcher, summary)


def pieces(region: Region, choice: Mapping[str, Any], summary: str) -> list[str]:
    """Source of kernel and launcher, without the helpers that they call."""
    kernel, sizes = _kernel(region)
    return [kernel, _launcher(region, choice, sizes, summary)]


def _kernel(region: Region) -> tuple[str, list[str]]:
    lines = [
        "    start = tl.program_id(0).to(tl.int64) * BLOCK_SIZE  # int64: offsets can pass 2**31",
        "    offs = start + tl.arange(0, BLOCK_SIZE)",
        "    mask = offs < n_elements  # the last block reaches past the end",
    ]
    steps = strides.argument_names(region)
    if narrow(region) or (steps and len(region.dims) > 1):
        lines += [f"    {line}" for line in index_lines(region)]
    if steps and len(region.dims) > 1:
        lines += [f"    {line}" for line in _position_lines(region)]
    if source.draws(region):
        lines.append(f"    {dropping.quads('', 'start // 4')}")
    names = UniqueNames(
        [*(dim.name for dim in region.dims), *steps, *(f"at_{i}" for i in range(len(region.dims)))]
    )
    body = Body(names, lambda operand: _load(operand, region))
    body.need(*(output.value for output in region.outputs))
    for output in region.outputs:
        body.add(_store(output, region, str(body.text(output.value))))
    lines += body.lines
    sizes = sizes_in("\n".join(lines), region.dims)
    header = [
        *source.pointers(region),
        "n_elements",
        *steps,
        *source.draw_parameters(region),
        *(f"{name}: tl.constexpr" for name in sizes),
        "BLOCK_SIZE: tl.constexpr",
    ]
    doc = "Each program handles BLOCK_SIZE consecutive elements."
    return source.kernel_text(f"_{region.name}_kernel", header, doc, lines), sizes


def index_lines(region: Region) -> list[str]:
    """Position inside one slice of the first dimension, in 32 bits, from ``start``."""
    period = product(tuple(range(1, len(region.dims))), region.dims)
    period = f"({period})" if " " in period else period
    lines = [
        "# Broadcasts are resolved in 32 bits: 64-bit division is many times slower.",
        f"index = (start % {period}).to(tl.int32) + tl.arange(0, BLOCK_SIZE)",
    ]
    if strides.argument_names(region) or any(
        operand.axes[:1] == (0,) for operand in narrow(region)
    ):
        lines.append(f"lead = start // {period}")
    return lines


def narrow(region: Region) -> list[Operand]:
    """Operands that are broadcast along some dimensions and not along others."""
    return [operand for operand in region.operands if 0 < len(operand.axes) < len(region.dims)]


def _load(operand: Operand, region: Region) -> str:
    if operand.inner is None:
        return flat_load(operand, region, "offs")
    where = strides.address(operand.name, _positions(region))
    return f"tl.load({operand.name}_ptr + {where}, mask=mask)"


def _store(output: Output, region: Region, text: str) -> str:
    short = output.rowwise or output.columns
    assert not short, f"{output.name} is shorter than what would be stored"
    strided = output.inner is not None
    where = strides.address(output.name, _positions(region)) if strided else "offs"
    return f"tl.store({output.name}_ptr + {where}, {text}, mask=mask)"


def _positions(region: Region) -> list[str]:
    """Of an element, along each dimension."""
    count = len(region.dims)
    return ["offs"] if count == 1 else [f"at_{axis}" for axis in range(count)]


def _position_lines(region: Region) -> list[str]:
    """The position along each dimension, for operands that are read by their strides."""
    every = IndexSpace(variable="index", axes=tuple(range(len(region.dims))), lead="lead")
    lines = []
    for axis in every.axes:
        where = offset(Operand(name="", dtype="", axes=(axis,)), region.dims, [every])
        lines.append(f"at_{axis} = {where}" if axis == 0 else f"at_{axis} = ({where}).to(tl.int64)")
    return lines


def flat_load(operand: Operand, region: Region, offs: str) -> str:
    """Load when one index enumerates all dimensions; see :func:`index_lines`."""
    if not operand.axes:
        return f"tl.load({operand.name}_ptr)"
    if operand not in narrow(region):
        return f"tl.load({operand.name}_ptr + {offs}, mask=mask)"
    space = IndexSpace(variable="index", axes=tuple(range(len(region.dims))), lead="lead")
    return f"tl.load({operand.name}_ptr + {offset(operand, region.dims, [space])}, mask=mask)"


def _launcher(region: Region, choice: Mapping[str, Any], sizes: list[str], summary: str) -> str:
    first, named = region.outputs[0], sizes
    if strides.argument_names(region):  # to reshape operands with
        named = [dim.name for dim in region.dims]
    device = f"{region.operands[0].name}.device"
    arguments = [
        *(item.name for item in source.tensors(region)),
        "n_elements",
        *strides.arguments(region),
        *source.draw_parameters(region),
        *sizes,
        f"BLOCK_SIZE={choice['BLOCK_SIZE']}",
        f"num_warps={choice['num_warps']}",
    ]
    lines = [
        f"def {region.name}({source.signature(region)}):",
        source.describe_region(summary, region),
        *source.make_contiguous([operand for operand in region.operands if operand.inner is None]),
        *(source.allocate(output, device) for output in region.outputs if output.inner is None),
        *source.size_lines(region, named),
        *strides.reshape_lines(region),
        *source.draw_lines(region),
        f"    n_elements = {first.name}.numel()",
        "    if n_elements > 0:  # a grid of zero programs cannot be launched",
        f"        grid = ({source.blocks('n_elements', choice['BLOCK_SIZE'])},)",
        source.wrap_items(f"_{region.name}_kernel[grid](", arguments, ")", indent="        "),
        *([f"    return {result}"] if (result := source.result(region)) else []),
        "",
    ]
    return "\n".join(lines)
