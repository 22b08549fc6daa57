"""A Triton kernel that sums an input once for each tap of a (transposed) convolution, reading it
once.

`kernel(graph, convolution, outputs) -> Generated`: x (N, C, *sizes) to sums (N, C, *kernel).
The sum over outputs of a convolution is these sums times the weight; which inputs a tap meets is
convolution.positions, spelled here as a comparison of the position each input is used for.
"""

from __future__ import annotations

import math

from kernel_lsp.rewrite.algebra.convolution import Convolution, ConvolutionDim
from kernel_lsp.rewrite.codegen.core.launching import unique_name
from kernel_lsp.rewrite.codegen.core.source import IMPORTS, next_power_of_two
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph

TILE = 2048
"""Elements of a tile: 16 for each thread of 4 warps."""
MAX_TAPS = 128
"""Sums that one program keeps: more would spill."""
LETTERS = "dhw"


def kernel(graph: Graph, convolution: Convolution, outputs: int | None) -> GeneratedSource:
    """The kernel that sums an input once for each tap, with its launcher. ``outputs``: what the
    sums are divided by for a mean; None for a sum."""
    axes = convolution.axes
    letters = LETTERS[-len(axes) :]
    name = unique_name(graph, "sum_by_tap")
    block_w = min(next_power_of_two(axes[-1].size), 256 if len(axes) > 1 else 1024)
    rows = math.prod(axis.size for axis in axes[:-1])
    block_rows = max(1, min(next_power_of_two(rows), TILE // block_w))
    taps = math.prod(axis.kernel for axis in axes)
    mean = f" / {outputs}  # the mean over the outputs" if outputs is not None else ""
    dtype = str(graph.val(convolution.input).dtype).removeprefix("torch.")
    text = "\n".join(
        [
            *_head(name, taps),
            *_tap_lines(axes, letters),
            "    row = tl.arange(0, BLOCK_ROWS)[:, None]",
            "    column = tl.arange(0, BLOCK_W)[None, :]",
            f"    sums = tl.zeros((BLOCK_ROWS, TAPS), dtype=tl.{dtype})",
            *_row_loop(convolution, letters, rows),
            *_column_loop(convolution, letters, rows),
            f"    sums_of_plane = sums_ptr + plane * {taps} + tap",
            f"    total = tl.sum(sums, axis=0)[None, :]{mean}",
            f"    tl.store(sums_of_plane, total, mask=tap < {taps})  # rounded up",
            "",
            "",
            *_launcher(
                name,
                convolution,
                dtype,
                (block_rows, block_w, next_power_of_two(taps)),
                outputs,
            ),
        ]
    )
    return GeneratedSource(
        name=name, imports=IMPORTS, definitions=text, summary="sum the input for each tap"
    )


def fits(convolution: Convolution) -> bool:
    """Whether the convolution has few enough taps for one kernel."""
    return math.prod(axis.kernel for axis in convolution.axes) <= MAX_TAPS


def _head(name: str, taps: int) -> list[str]:
    return [
        "@triton.jit",
        f"def _{name}_kernel(",
        "    x_ptr, sums_ptr, BLOCK_ROWS: tl.constexpr, BLOCK_W: tl.constexpr, TAPS: tl.constexpr",
        "):",
        '    """Each program reads one channel of one sample and sums it once for each tap of the '
        'kernel."""',
        "    plane = tl.program_id(0).to(tl.int64)  # int64: offsets can pass 2**31",
        f"    tap = tl.arange(0, TAPS)[None, :]  # {taps} taps, rounded up to a power of two",
    ]


def _tap_lines(axes: tuple[ConvolutionDim, ...], letters: str) -> list[str]:
    """The tap's place along each dimension."""
    lines: list[str] = []
    after = 1
    for axis, letter in reversed(list(zip(axes, letters, strict=True))):
        text = "tap" if after == 1 else f"tap // {after}"
        first = letter == letters[0]
        lines.insert(0, f"    tap_{letter} = {text}" + ("" if first else f" % {axis.kernel}"))
        after *= axis.kernel
    return lines


def _row_loop(convolution: Convolution, letters: str, rows: int) -> list[str]:
    if len(letters) == 1:
        return ["    in_tap = row == 0  # one row: the samples and channels are the programs"]
    lines = [
        f"    for first_row in range(0, {rows}, BLOCK_ROWS):",
        "        rows = first_row + row",
    ]
    after = 1
    places: list[str] = []
    for axis, letter in reversed(list(zip(convolution.axes[:-1], letters[:-1], strict=True))):
        text = "rows" if after == 1 else f"rows // {after}"
        wrap = "" if letter == letters[0] else f" % {axis.size}"
        places.insert(0, f"        {letter} = {text}{wrap}")
        after *= axis.size
    lines += places
    tests = []
    for axis, letter in zip(convolution.axes[:-1], letters[:-1], strict=True):
        place, test = _used_for(axis, convolution.transposed, letter, f"tap_{letter}")
        lines.append(f"        at_{letter} = {place}")
        tests.append(test.replace("at", f"at_{letter}"))
    lines.append(f"        in_tap = {' & '.join(tests)}  # rows that this tap meets")
    return lines


def _column_loop(convolution: Convolution, letters: str, rows: int) -> list[str]:
    axis, several = convolution.axes[-1], len(letters) > 1
    pad = "        " if several else "    "
    index = f"(plane * {rows} + rows) * {axis.size} + w" if several else f"plane * {axis.size} + w"
    mask = f"(rows < {rows}) & (w < {axis.size})" if several else f"w < {axis.size}"
    place, test = _used_for(axis, convolution.transposed, "w", "k")
    return [
        f"{pad}for first_column in range(0, {axis.size}, BLOCK_W):",
        f"{pad}    w = first_column + column",
        f"{pad}    inside = {mask}  # the last tile is not full",
        f"{pad}    x = tl.load(x_ptr + {index}, mask=inside, other=0.0)",
        f"{pad}    for k in tl.static_range({axis.kernel}):",
        f"{pad}        at_w = {place}",
        f"{pad}        met = tl.where({test.replace('at', 'at_w')}, x, 0.0)  # columns that this "
        f"tap meets",
        f"{pad}        sums += tl.where(in_tap & (tap_w == k), tl.sum(met, axis=1)[:, None], 0.0)",
    ]


def _used_for(axis: ConvolutionDim, transposed: bool, position: str, tap: str) -> tuple[str, str]:
    """(where the tap uses an input position, test that this is an output position), over a name
    ``at``."""
    if transposed:
        place = _sum(_times(position, axis.stride), -axis.padding, _times(tap, axis.dilation), "+")
        return place, f"(at >= 0) & (at < {axis.out})"
    place = _sum(position, axis.padding, _times(tap, axis.dilation), "-")
    whole = f" & (at % {axis.stride} == 0)" if axis.stride > 1 else ""
    return place, f"(at >= 0) & (at < {axis.out * axis.stride}){whole}"


def _times(name: str, factor: int) -> str:
    return name if factor == 1 else f"{name} * {factor}"


def _sum(first: str, number: int, last: str, sign: str) -> str:
    middle = f" {'-' if number < 0 else '+'} {abs(number)}" if number else ""
    return f"{first}{middle} {sign} {last}"


def _launcher(
    name: str,
    convolution: Convolution,
    dtype: str,
    blocks: tuple[int, int, int],
    outputs: int | None,
) -> list[str]:
    sizes = ", ".join(str(axis.size) for axis in convolution.axes)
    kernel_sizes = ", ".join(str(axis.kernel) for axis in convolution.axes)
    block_rows, block_w, taps = blocks
    done = "summed over" if outputs is None else "averaged over"
    return [
        f"def {name}(x):",
        f'    """What each tap of the kernel meets, {done} all outputs.',
        "",
        f"    x: {dtype} (n, channels, {sizes})",
        f"    sums: {dtype} (n, channels, {kernel_sizes})",
        '    """',
        "    x = x.contiguous()",
        "    n, channels = x.shape[:2]",
        f"    sums = torch.empty((n, channels, {kernel_sizes}), dtype=torch.{dtype}, "
        f"device=x.device)",
        "    if n > 0:  # a grid of zero programs cannot be launched",
        f"        _{name}_kernel[(n * channels,)](",
        f"            x, sums, BLOCK_ROWS={block_rows}, BLOCK_W={block_w}, TAPS={taps}, "
        f"num_warps=4",
        "        )",
        "    return sums",
    ]
