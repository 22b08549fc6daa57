"""A strided transposed convolution as one plain convolution and an interleave.

Output o of a transposed convolution meets ``o + padding = i * stride + k``. With k = stride * a +
phase, only taps of phase (o + padding) % stride reach it, and among them it is a stride-1
convolution at position (o + padding) // stride. `phase_weight` puts the taps of all phases side by
side as output channels (channel, phase by axis), `interleave` is the kernel that puts their
results in place and adds the bias. Not covered: dilation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import fx

from kernel_lsp.rewrite.algebra.convolution import Convolution, ConvolutionDim, aten
from kernel_lsp.rewrite.algebra.phase_tail import LoweredTail, lower_tail
from kernel_lsp.rewrite.codegen.core.launching import unique_name
from kernel_lsp.rewrite.codegen.core.source import module, wrap_items
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph

LETTERS = "dhw"


def taps(axis: ConvolutionDim) -> int:
    """Taps of one phase, those that are padded with zeros included."""
    return -(-axis.kernel // axis.stride)


def places(axis: ConvolutionDim) -> int:
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
    groups, inside, outside = (
        made.groups,
        made.in_channels // made.groups,
        made.out_channels // made.groups,
    )
    split = [size for axis in axes for size in (taps(axis), axis.stride)]
    weight = graph.call(
        aten.reshape.default, (weight, [groups, inside, outside, *split]), before=here
    )
    order = [0, 2, *(4 + 2 * d for d in range(rank)), 1, *(3 + 2 * d for d in range(rank))]
    weight = graph.call(aten.permute.default, (weight, order), before=here, name="taps")
    phases = math.prod(axis.stride for axis in axes)
    shape = [groups * outside * phases, inside, *(taps(axis) for axis in axes)]
    weight = graph.call(aten.reshape.default, (weight, shape), before=here)
    several = [d + 2 for d, axis in enumerate(axes) if taps(axis) > 1]
    if several:
        weight = graph.call(aten.flip.default, (weight, several), before=here)
    weight.meta["name"] = "phase_weight"
    return weight


def interleave(
    graph: Graph, made: Convolution, tail: Sequence[fx.Node], block: int
) -> tuple[GeneratedSource, LoweredTail]:
    """phases (n, out * phases, *places) and the operands of ``tail`` to (n, out, *sizes of the
    output).

    The bias is the first operand where there is one; the launcher takes the phases, then the
    operands."""
    found = lower_tail(graph, made, tail)
    dtype = str(graph.val(tail[-1] if tail else made.node).dtype).removeprefix("torch.")
    name = unique_name(graph, "interleave_phases")
    kernel = _kernel(name, made, found)
    launcher = _launcher(graph, name, made, found, dtype, block)
    text = "\n".join([*kernel, "", "", *launcher])
    summary = "put the phases in place" + (" and do what follows" if tail else "")
    return module(name, [text], summary, found.numbers), found


def _kernel(name: str, made: Convolution, found: LoweredTail) -> list[str]:
    axes = made.axes
    letters = LETTERS[-len(axes) :]
    size = math.prod(axis.out for axis in axes)
    pointers = ["phases_ptr", *(f"{operand}_ptr" for _, operand, _ in found.operands), "out_ptr"]
    lines = [
        "@triton.jit",
        wrap_items(
            f"def _{name}_kernel(", [*pointers, "n_planes", "BLOCK_SIZE: tl.constexpr"], "):"
        ),
        '    """Each program writes a block of one channel of one sample."""',
        "    plane = tl.program_id(1).to(tl.int64) * 65535 + tl.program_id(2)  # offsets can "
        "pass 2**31",
        "    if plane >= n_planes:",
        "        return",
        f"    start = plane * {size}",
        "    position = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)",
        f"    inside = position < {size}  # the last block is not full",
    ]
    after = size
    for axis, letter in zip(axes, letters, strict=True):
        after //= axis.out
        text = "position" if after == 1 else f"position // {after}"
        wrap = "" if letter == letters[0] else f" % {axis.out}"
        shift = f" + {axis.padding}" if axis.padding else ""
        lines.append(f"    out_{letter} = {text}{wrap}{shift}")
    lines += [*_source(axes, letters), *found.lines]
    lines.append(f"    tl.store(out_ptr + start + position, {found.result}, mask=inside)")
    return lines


def _source(axes: tuple[ConvolutionDim, ...], letters: str) -> list[str]:
    """Where an output position comes from: its phase, and the place within it."""
    count, stored = (
        math.prod(axis.stride for axis in axes),
        math.prod(places(axis) for axis in axes),
    )
    phase, place, tests = "", "", ["inside"]
    for axis, letter in zip(axes, letters, strict=True):
        name = f"out_{letter}"
        at = name if axis.stride == 1 else f"{name} // {axis.stride}"
        if axis.stride > 1:
            now = f"{name} % {axis.stride}"
            phase = f"({phase}) * {axis.stride} + {now}" if phase else now
        place = f"({place}) * {places(axis)} + {at}" if place else at
        if axis.padding + axis.out > places(axis) * axis.stride:
            # output_padding reaches past every tap.
            tests.append(f"({at} < {places(axis)})")
    why = (
        "beyond the last tap nothing is added up"
        if len(tests) > 1
        else "some tap reaches every position"
    )
    return [
        f"    phase = {phase}  # which taps of the kernel reach this position",
        f"    place = {place}",
        f"    reached = {' & '.join(tests)}  # {why}",
        f"    source = phases_ptr + (plane * {count} + phase) * {stored} + place",
    ]


def _launcher(
    graph: Graph, name: str, made: Convolution, found: LoweredTail, dtype: str, block: int
) -> list[str]:
    axes, channels = made.axes, made.out_channels
    count = math.prod(axis.stride for axis in axes)
    before, after = (
        ", ".join(map(str, sizes)) for sizes in ([places(a) for a in axes], [a.out for a in axes])
    )
    size = math.prod(axis.out for axis in axes)
    names = ["phases", *(operand for _, operand, _ in found.operands)]
    given = str(graph.val(made.node).dtype).removeprefix("torch.")
    sizes = {
        "channel": f"({channels} values)",
        "scalar": "(1 value)",
        "element": f"(n, {channels}, {after})",
    }
    shapes = [
        f"    {operand}: {str(graph.val(node).dtype).removeprefix('torch.')} {sizes[kind]}"
        for node, operand, kind in found.operands
    ]
    more = ", then the steps that follow" if found.numbers or len(found.operands) > 1 else ""
    return [
        f"def {name}({', '.join(names)}):",
        f'    """Put {count} phases in '
        f'place{", add the bias" if made.bias is not None else ""}{more}.',
        "",
        f"    phases: {given} (n, {channels} * {count}, {before})",
        *shapes,
        f"    out: {dtype} (n, {channels}, {after})",
        '    """',
        *(f"    {operand} = {operand}.contiguous()" for operand in names),
        f"    n_planes = phases.shape[0] * {channels}",
        f"    out = phases.new_empty((phases.shape[0], {channels}, {after}), dtype=torch.{dtype})",
        "    if n_planes > 0:  # a grid of zero programs cannot be launched",
        f"        grid = ({-(-size // block)}, (n_planes + 65534) // 65535, min(n_planes, 65535))",
        wrap_items(
            f"_{name}_kernel[grid](",
            [*names, "out", "n_planes", f"BLOCK_SIZE={block}", "num_warps=4"], ")",
            indent="        ",
        ),
        "    return out",
    ]  # fmt: skip
