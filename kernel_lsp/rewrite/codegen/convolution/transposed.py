"""A transposed convolution inside the kernel of source.py: which inputs and taps reach a pixel, by
phases.

Output o meets input i and tap k where ``o + padding = i * stride + k * dilation``. Outputs whose
``(o + padding) % stride`` agree form a phase: the same taps reach all of them, every stride-th of
the filter, and among them it is a convolution of stride 1 without zeros in between. A program
computes pixels of one phase. Not covered: dilation along an axis with a stride, groups, pools and
sums over pixels in the tail."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernel_lsp.rewrite.codegen.convolution.facts import Conv
from kernel_lsp.rewrite.codegen.core import source


def count(conv: Conv) -> int:
    """Phases of the output."""
    return math.prod(conv.phases)


def head(conv: Conv, axes: Sequence[str], sizes: Sequence[str]) -> list[str]:
    """Coordinates of the tile's pixels: ``y`` inside of the phase, ``out_y`` in the result."""
    lines, later = list[str](), count(conv)
    for position, (axis, size, step) in enumerate(zip(axes, sizes, conv.phases, strict=True)):
        later //= step
        inner = " * ".join(f"phase_{s}" for s in sizes[position + 1 :])
        spot = (
            f"pixels // ({inner})"
            if " * " in inner
            else f"pixels // {inner}"
            if inner
            else "pixels"
        )
        lines.append(f"in_{axis} = {spot}" + (f" % phase_{size}" if position else ""))
        if step == 1:
            lines.append(f"out_{axis} = in_{axis}")
            continue
        own = f"phase // {later}" if later > 1 else "phase"
        own = f"{own} % {step}" if position else own
        padding = f" + {conv.before[position]}" if conv.before[position] else ""
        lines += [
            f"shift_{axis} = {own}{padding}",
            f"first_{axis} = shift_{axis} % {step}  # the taps of this phase are first, first + "
            f"{step}, ...",
            f"taps_{axis} = ({conv.kernel[position] + step - 1} - first_{axis}) // {step}",
            f"out_{axis} = in_{axis} * {step} + ({own})",
        ]
    cut = [
        f"(out_{axis} < out_{size})"
        for axis, size, out, step in zip(axes, sizes, conv.out, conv.phases, strict=True)
        if out % step
    ]
    lines += (
        ["# Some phases are shorter.", f"pixel_mask = pixel_mask & {' & '.join(cut)}"]
        if cut
        else []
    )
    return [*lines, f"place = {_flat(axes, sizes)}  # in the result"]


def _flat(axes: Sequence[str], sizes: Sequence[str]) -> str:
    """The number of a pixel in the plane of the result."""
    parts = []
    for position, axis in enumerate(axes):
        inner = " * ".join(f"out_{s}" for s in sizes[position + 1 :])
        inner = f" * ({inner})" if " " in inner else f" * {inner}" if inner else ""
        parts.append(f"out_{axis}{inner}")
    return " + ".join(parts)


def _turn(counts: Sequence[str], position: int) -> str:
    """Which tap along one axis a step is, as source."""
    if counts[position] == "1":
        return "0"
    later = " * ".join(text for text in counts[position + 1 :] if text != "1")
    turn = f"step // ({later})" if " " in later else f"step // {later}" if later else "step"
    return f"{turn} % {counts[position]}"


def steps(conv: Conv, axes: Sequence[str]) -> tuple[str, list[str]]:
    """How many taps a phase has, as source; and for ``step`` the lines that find the tap and its
    inputs."""
    counts = [
        f"taps_{axis}" if step > 1 else str(kernel)
        for axis, step, kernel in zip(axes, conv.phases, conv.kernel, strict=True)
    ]
    every = " * ".join(text for text in counts if text != "1") or "1"
    lines, taps = list[str](), list[str]()
    for position, axis in enumerate(axes):
        step, stretch = conv.phases[position], conv.dilation[position]
        lead = f"shift_{axis} // {step}" if step > 1 else str(conv.before[position])
        lines += [
            f"turn_{axis} = {_turn(counts, position)}",
            f"{axis} = (in_{axis} + {lead} - "
            f"turn_{axis}{f' * {stretch}' if stretch > 1 else ''})[None, :]",
        ]
        tap = f"(first_{axis} + turn_{axis} * {step})" if step > 1 else f"turn_{axis}"
        inner = math.prod(conv.kernel[position + 1 :])
        taps.append(f"{tap} * {inner}" if inner > 1 else tap)
    return every, [*lines, f"tap = {' + '.join(taps)}"]


def launcher_lines(conv: Conv, sizes: Sequence[str]) -> list[str]:
    """Sizes of a phase: as many pixels as the longest one has."""
    return [
        f"    phase_{size} = {source.blocks(f'out_{size}', step)}"
        for size, step in zip(sizes, conv.phases, strict=True)
    ]
