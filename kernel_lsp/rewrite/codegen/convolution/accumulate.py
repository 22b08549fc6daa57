"""The sum over (input channel, tap) of a generated convolution, in one of several ways:

``gather``  both at once, in blocks of the flattened filter: for few input channels, reads the
            weight as it is
``rows``    one row of the filter in all input channels at a time: for few channels and large
            filters
``taps``    tap by tap over blocks of input channels: for many; filters are repacked so that the
            channels of a tap are neighbors, which is one small kernel before
``library`` the sum is cuDNN's, in channels_last and without bias; bias and tail are one kernel
            behind it
``depthwise``  no matrix product: each channel has a filter of its own

Its lines leave the sum in ``acc``, (pixels of the tile, channels of the tile) in float32. They
read what the lines of source.py set: ``base``, ``channels``, ``pixel_mask``, ``channel_mask``, and
where the pixels lie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kernel_lsp.rewrite.codegen.convolution import transposed
from kernel_lsp.rewrite.codegen.convolution.launcher import SIZES, ConvolutionJob, group, times
from kernel_lsp.rewrite.codegen.core.nodes import dtype_name

AXES = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x")}

ROUND = '''\
@triton.jit
def _round_to_tf32(x):
    """To the 10 bits of mantissa that tensor cores read: they would cut the rest off and err twice as far."""
    bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(tl.abs(x) < float("inf"), bits.to(tl.float32, bitcast=True), x)  # NaN, infinity stay
'''


class SumWriter:
    """The lines of a kernel, as far as they compute the sum."""

    def __init__(self, job: ConvolutionJob, choice: Mapping[str, Any]) -> None:
        self.job, self.conv, self.tail, self.choice = job, job.conv, job.tail, choice
        self.axes, self.sizes = AXES[self.conv.rank], SIZES[self.conv.rank]
        self.x, self.weight = job.names[self.conv.x], job.names[self.conv.weight]
        self.packed = choice["way"] == "taps" and (self.conv.taps > 1 or self.conv.transposed)
        self.depthwise = choice["way"] == "depthwise"
        self.library = choice["way"] == "library"
        self.rounds = choice["precision"] == "tf32" and not (self.depthwise or self.library)
        self.lines: list[str] = []

    def _add(self, *lines: str, indent: str = "    ") -> None:
        self.lines += [indent + line for line in lines]

    def _sum(self, indent: str) -> None:
        if self.depthwise:
            self._depthwise(indent)
        elif self.library:
            self._read(indent)
        elif self.choice["way"] == "gather":
            self._gather(indent)
        elif self.choice["way"] == "rows":
            self._rows(indent)
        else:
            self._taps(indent)

    def _read(self, indent: str) -> None:
        """The library's result, where the channels of a pixel are neighbors."""
        full = " * ".join(f"out_{s}" for s in self.sizes) if self.tail.pool else "n_pixels"
        wide = "" if dtype_name(self.conv.dtype) == "float32" else ".to(tl.float32)"
        self._add(
            f"place = (image * {group(full)} + {self._flat_pixel()}) * out_channels + "
            f"channels[None, :]",
            "acc = tl.load(convolved_ptr + place,",
            f"              mask=pixel_mask[:, None] & channel_mask[None, :], other=0.0){wide}",
            indent=indent,
        )

    def _gather(self, indent: str) -> None:
        taps, deeper = self.conv.taps, indent + "    "
        blocks = -(-self.conv.depth // self.choice["BLOCK_K"])
        self._add("acc = tl.zeros((BLOCK_PIXELS, BLOCK_CHANNELS), tl.float32)", indent=indent)
        if blocks > 1:
            self._add(
                "for start in range(0, in_channels * " + str(taps) + ", BLOCK_K):", indent=indent
            )
        else:
            deeper = indent
        first = "start + " if blocks > 1 else ""
        self._add(
            f"terms = {first}tl.arange(0, BLOCK_K)  # (input channel, tap), as in the filter",
            indent=deeper,
        )
        self._add(
            f"term_mask = terms < in_channels * {taps}  # the block is filled up with zeros",
            indent=deeper,
        )
        offset = [f"(terms // {taps})[:, None] * ({' * '.join(self.sizes)})" if taps > 1 else
                  f"terms[:, None] * ({' * '.join(self.sizes)})"]  # fmt: skip
        self._positions("terms", deeper, per_term=True)
        offset += self._inner_offset()
        valid = " & ".join(["term_mask[:, None]", *self._valid(deeper)])
        self._add(f"patch = tl.load(base + {' + '.join(offset)},", indent=deeper)
        self._add(f"                mask={valid}, other=0.0)", indent=deeper)
        self._add(
            f"row = channels[None, :] * (in_channels * {taps})",
            f"filters = tl.load({self.weight}_ptr + row + terms[:, None],",
            "                  mask=term_mask[:, None] & channel_mask[None, :], other=0.0)",
            indent=deeper,
        )
        self._dot(deeper, round_filters=True)

    def _rows(self, indent: str) -> None:
        """One row of the filter in all input channels at a time: most of the address never
        changes."""
        conv, deeper, width = self.conv, indent + "    ", self.conv.kernel[-1]
        plane = " * ".join(self.sizes)
        pixel = (
            "out_x" + times(conv.stride[-1]) + (f" - {conv.before[-1]}" if conv.before[-1] else "")
        )
        column = f"terms % {width}" + times(conv.dilation[-1])
        masks = ["term_mask[:, None]", "pixel_mask[None, :]"]
        masks += ["(x >= 0) & (x < width)"] if conv.padded else []
        self._add(
            "acc = tl.zeros((BLOCK_PIXELS, BLOCK_CHANNELS), tl.float32)",
            "terms = tl.arange(0, BLOCK_K)  # (input channel, tap in a row of the filter)",
            f"term_mask = terms < in_channels * {width}  # the block is filled up with zeros",
            f"x = {group(pixel)}[None, :] + ({column})[:, None]",
            f"in_row = (terms // {width})[:, None] * {group(plane)} + x",
            "# What lies left or right of the image is padding, and zero."
            if conv.padded
            else "# Pixels of the image.",
            f"in_row_mask = {' & '.join(masks)}",
            f"taps = terms // {width} * {conv.taps} + terms % {width}",
            f"for row in range({conv.taps // width}):",
            indent=indent,
        )
        self._row_step(deeper)

    def _row_step(self, indent: str) -> None:
        conv, parts, valid = self.conv, list[str](), list[str]()
        for position, axis in enumerate(self.axes[:-1]):
            later = math.prod(conv.kernel[position + 1 : -1])
            tap = "row" if later == 1 else f"row // {later}"
            tap = f"{tap} % {conv.kernel[position]}" if position else tap
            tap = (
                f"{group(tap)}{times(conv.dilation[position])}"
                if conv.dilation[position] > 1
                else tap
            )
            shift = f" - {conv.before[position]}" if conv.before[position] else ""
            self._add(
                f"{axis} = out_{axis}{times(conv.stride[position])}{shift} + {tap}", indent=indent
            )
            parts.append(f"{axis} * {group(' * '.join(self.sizes[position + 1 :]))}")
            valid.append(f"({axis} >= 0) & ({axis} < {self.sizes[position]})")
        inside = f" & ({' & '.join(valid)})[None, :]" if conv.padded else ""
        self._add(
            f"patch = tl.load(base + in_row + ({' + '.join(parts)})[None, :],",
            f"                mask=in_row_mask{inside}, other=0.0)",
            f"place = channels[None, :] * (in_channels * {conv.taps}) + taps[:, None]",
            f"filters = tl.load({self.weight}_ptr + place + row * {conv.kernel[-1]},",
            "                  mask=term_mask[:, None] & channel_mask[None, :], other=0.0)",
            indent=indent,
        )
        self._dot(indent, round_filters=True)

    def _taps(self, indent: str) -> None:
        """Tap by tap over blocks of input channels."""
        taps, deeper = self.conv.taps, indent + "    "
        count = f" * {taps}" if taps > 1 else ""
        self._add("acc = tl.zeros((BLOCK_PIXELS, BLOCK_CHANNELS), tl.float32)", indent=indent)
        (self._transposed_steps if self.conv.transposed else self._steps)(indent)
        even = self.conv.group_in % self.choice["BLOCK_K"] == 0
        if not even:
            self._add(
                "term_mask = terms < in_channels  # the last block is filled up with zeros",
                indent=deeper,
            )
        if not self.conv.transposed:  # there the steps have found them
            self._positions("tap", deeper, per_term=False)
        offset = [f"terms[:, None] * ({' * '.join(self.sizes)})", *self._inner_offset()]
        masks = [*([] if even else ["term_mask[:, None]"]), *self._valid(deeper)]
        self._add(f"patch = tl.load(base + {' + '.join(offset)},", indent=deeper)
        self._add(f"                mask={' & '.join(masks)}, other=0.0)", indent=deeper)
        row = f"channels[None, :] * (in_channels{count})" + (
            " + tap * in_channels" if taps > 1 else ""
        )
        mask = "channel_mask[None, :]" + ("" if even else " & term_mask[:, None]")
        self._add(
            f"filters = tl.load({'packed' if self.packed else self.weight}_ptr + {row} + "
            f"terms[:, None],",
            f"                  mask={mask}, other=0.0)",
            indent=deeper,
        )
        self._dot(deeper, round_filters=not self.packed)

    def _steps(self, indent: str) -> None:
        """The loop's head: which tap and which input channels."""
        taps, deeper = self.conv.taps, indent + "    "
        if taps == 1:
            self._add("for step in range(tl.cdiv(in_channels, BLOCK_K)):", indent=indent)
            self._add("terms = step * BLOCK_K + tl.arange(0, BLOCK_K)", indent=deeper)
            return
        self._add(f"for step in range(tl.cdiv(in_channels, BLOCK_K) * {taps}):", indent=indent)
        self._add(
            f"tap = step % {taps}  # varies fastest: neighbors read the same pixels", indent=deeper
        )
        self._add(f"terms = step // {taps} * BLOCK_K + tl.arange(0, BLOCK_K)", indent=deeper)

    def _transposed_steps(self, indent: str) -> None:
        """The same where only some taps meet a pixel: how many, and which, depends on the tile."""
        every, find = transposed.steps(self.conv, self.axes)
        self._add(
            f"n_taps = {every}",
            "for step in range(tl.cdiv(in_channels, BLOCK_K) * n_taps):  # taps vary fastest",
            indent=indent,
        )
        self._add(
            *find,
            "terms = step // n_taps * BLOCK_K + tl.arange(0, BLOCK_K)",
            indent=indent + "    ",
        )

    def _depthwise(self, indent: str) -> None:
        """No matrix product: each channel has its own filter, and memory is what it waits for."""
        conv, deeper = self.conv, indent + "    "
        multiplier = conv.out_channels // conv.groups
        plane = " * ".join(self.sizes)
        source_channel = f"(channels // {multiplier})" if multiplier > 1 else "channels"
        self._add("acc = tl.zeros((BLOCK_PIXELS, BLOCK_CHANNELS), tl.float32)", indent=indent)
        self._add(f"for tap in tl.static_range({conv.taps}):", indent=indent)
        self._positions("tap", deeper, per_term=False, column="[:, None]")
        offset = [f"{source_channel}[None, :] * {group(plane)}", *self._inner_offset()]
        valid = ["pixel_mask[:, None]", "channel_mask[None, :]", *self._valid(deeper)[1:]]
        wide = "" if dtype_name(conv.dtype) == "float32" else ".to(tl.float32)"
        self._add(
            f"patch = tl.load(base + {' + '.join(offset)},",
            f"                mask={' & '.join(valid)}, other=0.0){wide}",
            f"filters = tl.load({self.weight}_ptr + channels * {conv.taps} + tap, "
            f"mask=channel_mask){wide}",
            "acc += patch * filters[None, :]",
            indent=deeper,
        )

    def _positions(
        self, index: str, indent: str, *, per_term: bool, column: str = "[None, :]"
    ) -> None:
        """Input coordinates of each pixel (row) under each tap (column)."""
        conv = self.conv
        for position, axis in enumerate(self.axes):
            later = math.prod(conv.kernel[position + 1 :])
            tap = index if later == 1 else f"{index} // {later}"
            tap = f"{tap} % {conv.kernel[position]}" if position or per_term else tap
            pixel = f"out_{axis}" + times(conv.stride[position])
            shift = f" - {conv.before[position]}" if conv.before[position] else ""
            if conv.kernel[position] == 1:
                text = f"{pixel}{shift}"
                self._add(f"{axis} = {group(text)}{column}", indent=indent)
                continue
            step = (
                f"{group(tap)}{times(conv.dilation[position])}"
                if conv.dilation[position] > 1
                else tap
            )
            if per_term:
                self._add(
                    f"{axis} = {group(pixel + shift)}[None, :] + ({step})[:, None]", indent=indent
                )
            else:
                self._add(f"{axis} = ({pixel}{shift} + {step}){column}", indent=indent)

    def _inner_offset(self) -> list[str]:
        parts = []
        for position, axis in enumerate(self.axes):
            inner = " * ".join(self.sizes[position + 1 :])
            parts.append(f"{axis} * {group(inner)}" if inner else axis)
        return parts

    def _valid(self, indent: str) -> list[str]:
        """Padding reads as zero; a pixel past the image's end must not read at all."""
        if not self.conv.padded:
            return ["pixel_mask[None, :]"]
        lines = [
            f"({axis} >= 0) & ({axis} < {size})"
            for axis, size in zip(self.axes, self.sizes, strict=True)
        ]
        self._add(f"inside = {' & '.join(lines)}  # beyond lies padding", indent=indent)
        return ["pixel_mask[None, :]", "inside"]

    def _dot(self, indent: str, *, round_filters: bool) -> None:
        patch, filters = "tl.trans(patch)", "filters"
        precision = self.choice["precision"]
        if self.rounds:
            patch = "_round_to_tf32(tl.trans(patch))"
            filters = "_round_to_tf32(filters)" if round_filters else filters
        how = "" if precision == "native" else f', input_precision="{precision}"'
        self._add(f"acc = tl.dot({patch}, {filters}, acc{how})", indent=indent)

    def _flat_pixel(self) -> str:
        if self.tail.pool is None:
            return "place[:, None]" if self.conv.transposed else "pixels[:, None]"
        parts = []
        for position, axis in enumerate(self.axes):
            inner = " * ".join(f"out_{s}" for s in self.sizes[position + 1 :])
            parts.append(f"out_{axis} * {group(inner)}" if inner else f"out_{axis}")
        return f"({' + '.join(parts)})[:, None]"
