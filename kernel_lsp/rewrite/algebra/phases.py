"""A strided transposed convolution as one plain convolution and an interleave.

Output o of a transposed convolution meets ``o + padding = i * stride + k``. With k = stride * a + phase,
only taps of phase (o + padding) % stride reach it, and among them it is a stride-1 convolution at position
(o + padding) // stride. `phase_weight` puts the taps of all phases side by side as output channels
(channel, phase by axis), `interleave` is the kernel that puts their results in place and adds the bias.
Not covered: dilation.
"""

from __future__ import annotations

import math

from torch import fx

from kernel_lsp.rewrite.algebra.convolution import Axis, Convolution, aten
from kernel_lsp.rewrite.codegen.source import IMPORTS
from kernel_lsp.rewrite.generated import Generated
from kernel_lsp.rewrite.graph import Graph

LETTERS = "dhw"


def taps(axis: Axis) -> int:
    """Taps of one phase, those that are padded with zeros included."""
    return -(-axis.kernel // axis.stride)


def places(axis: Axis) -> int:
    """Positions at which the plain convolution is computed."""
    return axis.size + taps(axis) - 1


def phase_weight(graph: Graph, made: Convolution, here: fx.Node) -> fx.Node:
    """(out * phases, in / groups, *taps), from the weight (in, out / groups, *kernel)."""
    axes, rank = made.axes, len(made.axes)
    missing = [taps(axis) * axis.stride - axis.kernel for axis in axes]
    weight = made.weight
    if any(missing):
        border = [size for count in reversed(missing) for size in (0, count)]
        weight = graph.call(aten.pad.default, (weight, border), before=here)
    groups, inside, outside = made.groups, made.in_channels // made.groups, made.out_channels // made.groups
    split = [size for axis in axes for size in (taps(axis), axis.stride)]
    weight = graph.call(aten.reshape.default, (weight, [groups, inside, outside, *split]), before=here)
    order = [0, 2, *(4 + 2 * d for d in range(rank)), 1, *(3 + 2 * d for d in range(rank))]
    weight = graph.call(aten.permute.default, (weight, order), before=here)
    phases = math.prod(axis.stride for axis in axes)
    shape = [groups * outside * phases, inside, *(taps(axis) for axis in axes)]
    weight = graph.call(aten.reshape.default, (weight, shape), before=here)
    several = [d + 2 for d, axis in enumerate(axes) if taps(axis) > 1]
    if several:
        weight = graph.call(aten.flip.default, (weight, several), before=here)
    weight.meta["name"] = "phase_weight"
    return weight


def interleave(graph: Graph, made: Convolution, block: int) -> Generated:
    """phases (n, out * phases, *places), bias (out,) or None -> (n, out, *sizes of the output)."""
    axes = made.axes
    letters = LETTERS[-len(axes) :]
    dtype = str(graph.val(made.node).dtype).removeprefix("torch.")
    name = _free_name(graph, "interleave_phases")
    biased = made.bias is not None
    text = "\n".join(
        [*_kernel(name, made, letters, biased), "", "", *_launcher(name, made, dtype, biased, block)]
    )
    return Generated(name=name, imports=IMPORTS, definitions=text, summary="put the phases in place")


def _free_name(graph: Graph, stem: str) -> str:
    taken = {item.name for item in graph.generated}
    names = (stem, *(f"{stem}_{count}" for count in range(2, 999)))
    return next(name for name in names if name not in taken and name not in graph.origin.program)


def _kernel(name: str, made: Convolution, letters: str, biased: bool) -> list[str]:
    axes = made.axes
    size, count = math.prod(axis.out for axis in axes), math.prod(axis.stride for axis in axes)
    stored = math.prod(places(axis) for axis in axes)
    bias = ", bias_ptr" if biased else ""
    lines = [
        "@triton.jit",
        f"def _{name}_kernel(phases_ptr{bias}, out_ptr, n_planes, BLOCK_SIZE: tl.constexpr):",
        '    """Each program writes a block of one channel of one sample."""',
        "    plane = tl.program_id(1).to(tl.int64) * 65535 + tl.program_id(2)  # offsets can pass 2**31",
        "    if plane >= n_planes:",
        "        return",
        "    position = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)",
        f"    inside = position < {size}  # the last block is not full",
    ]
    after = size
    for axis, letter in zip(axes, letters, strict=True):
        after //= axis.out
        text = "position" if after == 1 else f"position // {after}"
        wrap = "" if letter == letters[0] else f" % {axis.out}"
        shift = f" + {axis.padding}" if axis.padding else ""
        inner = f"({text})" if wrap and after > 1 else text
        lines.append(f"    {letter} = {inner}{wrap}{shift}")
    lines += _source(axes, letters, stored, count)
    if biased:
        lines.append(f"    value += tl.load(bias_ptr + plane % {made.out_channels})")
    lines.append(f"    tl.store(out_ptr + plane * {size} + position, value, mask=inside)")
    return lines


def _source(axes: tuple[Axis, ...], letters: str, stored: int, count: int) -> list[str]:
    """Where an output position comes from: its phase, and the place within it."""
    phase, place, tests = "", "", ["inside"]
    for axis, letter in zip(axes, letters, strict=True):
        one = axis.stride == 1
        now, at = (
            ("" if one else f"{letter} % {axis.stride}"),
            (letter if one else f"{letter} // {axis.stride}"),
        )
        if now:
            phase = f"({phase}) * {axis.stride} + {now}" if phase else now
        place = f"({place}) * {places(axis)} + {at}" if place else at
        if axis.padding + axis.out > places(axis) * axis.stride:  # output_padding reaches past every tap
            tests.append(f"({at} < {places(axis)})")
    return [
        f"    phase = {phase}  # which taps of the kernel reach this position",
        f"    place = {place}",
        f"    reached = {' & '.join(tests)}  # beyond the last tap there is only the bias"
        if len(tests) > 1
        else "    reached = inside  # some tap reaches every position",
        f"    source = phases_ptr + (plane * {count} + phase) * {stored} + place",
        "    value = tl.load(source, mask=reached, other=0.0)",
    ]


def _launcher(name: str, made: Convolution, dtype: str, biased: bool, block: int) -> list[str]:
    axes = made.axes
    count = math.prod(axis.stride for axis in axes)
    before, after = (
        ", ".join(map(str, sizes)) for sizes in ([places(a) for a in axes], [a.out for a in axes])
    )
    size = math.prod(axis.out for axis in axes)
    return [
        f"def {name}(phases{', bias' if biased else ''}):",
        f'    """Put {count} phases in place{" and add the bias" if biased else ""}.',
        "",
        f"    phases: {dtype} (n, {made.out_channels} * {count}, {before})",
        *([f"    bias: {dtype} ({made.out_channels},)"] if biased else []),
        f"    out: {dtype} (n, {made.out_channels}, {after})",
        '    """',
        "    phases = phases.contiguous()",
        f"    n_planes = phases.shape[0] * {made.out_channels}",
        f"    out = phases.new_empty((phases.shape[0], {made.out_channels}, {after}))",
        f"    grid = (triton.cdiv({size}, {block}), triton.cdiv(n_planes, 65535), min(n_planes, 65535))",
        f"    _{name}_kernel[grid](",
        f"        phases, {'bias, ' if biased else ''}out, n_planes, BLOCK_SIZE={block}, num_warps=4",
        "    )",
        "    return out",
    ]
