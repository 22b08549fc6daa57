"""Convolution as a matrix product on tensor cores that gathers its own patches, with the tail in registers.

One program computes a tile of BLOCK_PIXELS pixels x BLOCK_CHANNELS output channels of one image and never
writes the convolution's own result. Ways to the sum over (input channel, tap):

``gather``  both at once, in blocks of the flattened filter: for few input channels, reads the weight as it is
``rows``    one row of the filter in all input channels at a time: for few channels and large filters
``taps``    tap by tap over blocks of input channels: for many; filters are repacked so that the channels of
            a tap are neighbors, which is one small kernel before
``library`` the sum is cuDNN's, in channels_last and without bias; bias and tail are one kernel behind it
``depthwise``  no matrix product: each channel has a filter of its own

conv_launch.py writes the function around it; conv_transposed.py finds inputs and taps of transposed ones,
which go the way ``taps``. Not covered: gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen import conv_transposed, source
from kernel_lsp.rewrite.codegen.conv_body import TailWriter, Tile
from kernel_lsp.rewrite.codegen.conv_facts import Pool
from kernel_lsp.rewrite.codegen.conv_launch import BLOCKS, SIZES, Job, Parts, group, launcher, pack, times
from kernel_lsp.rewrite.codegen.ops import helpers_for
from kernel_lsp.rewrite.codegen.pointwise import dtype_name, op_name
from kernel_lsp.rewrite.generated import Generated

AXES = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x")}

ROUND = '''\
@triton.jit
def _round_to_tf32(x):
    """To the 10 bits of mantissa that tensor cores read: they would cut the rest off and err twice as far."""
    bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(tl.abs(x) < float("inf"), bits.to(tl.float32, bitcast=True), x)  # NaN, infinity stay
'''


def emit(job: Job, choice: Mapping[str, Any]) -> Generated:
    """Kernel and launcher; ``choice`` has way, precision, BLOCK_PIXELS, BLOCK_CHANNELS, BLOCK_K, num_warps,
    num_stages."""
    row = job.conv.group_in * job.conv.kernel[-1]
    if choice["way"] == "rows" and row > choice["BLOCK_K"]:
        raise RewriteError(f"a row of the filter has {row} terms", f"choose BLOCK_K of at least {row}")
    if job.conv.transposed and choice["way"] != "taps":
        raise RewriteError(f"a transposed convolution goes no way {choice['way']}", "choose the way taps")
    kernel = _Kernel(job, choice)
    texts = [kernel.text(), launcher(job, choice, kernel.parts())]
    if kernel.packed:
        texts.insert(0, pack(job, kernel.rounds))
    text = "\n\n".join(texts)
    helpers = [*helpers_for(text), *([ROUND] if "_round_to_tf32(" in text else [])]
    return Generated(
        name=job.name,
        imports=source.IMPORTS,
        definitions="\n\n".join([*helpers, text]),
        summary=job.summary,
        numbers=_numbers(job),
    )


def _numbers(job: Job) -> tuple[float, ...]:
    conv, window = job.conv, job.tail.pool.window if job.tail.pool else ()
    sizes = [*conv.stride, *conv.before, *conv.dilation, conv.groups, *conv.kernel, *window]
    numbers = [arg for node in job.tail.nodes for arg in node.args if isinstance(arg, (int, float))]
    return tuple(float(n) for n in [*sizes, *numbers])


class _Kernel:
    """The text of the main kernel."""

    def __init__(self, job: Job, choice: Mapping[str, Any]) -> None:
        self.job, self.conv, self.tail, self.choice = job, job.conv, job.tail, choice
        self.axes, self.sizes = AXES[self.conv.rank], SIZES[self.conv.rank]
        self.x, self.weight = job.names[self.conv.x], job.names[self.conv.weight]
        self.packed = choice["way"] == "taps" and (self.conv.taps > 1 or self.conv.transposed)
        self.depthwise = choice["way"] == "depthwise"
        self.library = choice["way"] == "library"
        self.rounds = choice["precision"] == "tf32" and not (self.depthwise or self.library)
        self.lines: list[str] = []

    def text(self) -> str:
        self._head()
        if self.conv.transposed:
            self._add(*conv_transposed.head(self.conv, self.axes, self.sizes))
            name = self._tile_value("    ")
        elif self.tail.pool is None:
            self._pixel_axes("pixels", "out", "    ")
            name = self._tile_value("    ")
        elif self.stacked:
            name = self._stacked_value()
        else:
            name = self._pooled_value()
        self._store(name)
        header = [*self.pointers(), *(f"{name}: tl.constexpr" for name in self.constants()),
                  *(f"{name}: tl.constexpr" for name in self.blocks)]  # fmt: skip
        doc = "One tile of BLOCK_PIXELS pixels of an image x BLOCK_CHANNELS output channels."
        return source.kernel_text(f"_{self.job.name}_kernel", header, doc, self.lines)

    @property
    def blocks(self) -> list[str]:
        return [name for name in BLOCKS if name != "BLOCK_K" or not (self.depthwise or self.library)]

    def parts(self) -> Parts:
        """What the launcher must know; after ``text``."""
        count = self.tail.pool.count if self.stacked and self.tail.pool else 1
        return Parts(
            x=self.x,
            weight=self.weight,
            packed=self.packed,
            library=self.library,
            depthwise=self.depthwise,
            tile_pixels=self.choice["BLOCK_PIXELS"] // count,
            tensors=tuple(self.tensors()),
            constants=tuple(name for name in self.constants() if name not in BLOCKS),
            blocks=tuple(self.blocks),
        )

    def pointers(self) -> list[str]:
        return [f"{name}_ptr" for name in (*self.tensors(), "out")]

    def tensors(self) -> list[str]:
        """What the kernel reads, in the launcher's names."""
        if self.library:
            kept = [node for node in self.job.names if node is self.conv.bias or node in self.tail.operands]
            return ["convolved", *dict.fromkeys(self.job.names[node] for node in kept)]
        named = ["packed" if self.packed and n == self.weight else n for n in self.job.names.values()]
        return list(dict.fromkeys(named))

    def constants(self) -> list[str]:
        """Sizes that the text uses, in the launcher's names."""
        words = set("".join(c if c.isalnum() or c == "_" else " " for c in "\n".join(self.lines)).split())
        known = ["in_channels", "out_channels", *self.sizes, *(f"out_{s}" for s in self.sizes),
                 *(f"phase_{s}" for s in self.sizes),
                 *(f"kernel_{s}" for s in self.sizes), "n_pixels"]  # fmt: skip
        return [name for name in known if name in words]

    @property
    def stacked(self) -> bool:
        """All pixels of a window lie in one tile; else the tile is computed for each position in it."""
        return self.tail.pool is not None and bool(self.choice.get("whole_windows"))

    # --- where the tile lies -------------------------------------------------------------

    def _add(self, *lines: str, indent: str = "    ") -> None:
        self.lines += [indent + line for line in lines]

    def _head(self) -> None:
        groups = 1 if self.depthwise or self.library else self.conv.groups
        per_group = f"out_channels // {groups}" if groups > 1 else "out_channels"
        self._add(
            f"channel_tiles = tl.cdiv({per_group}, BLOCK_CHANNELS)" + (f" * {groups}" if groups > 1 else ""),
            f"pixel_tiles = tl.cdiv(n_pixels, {self.tile_pixels})",
            *self._tile_lines(),
            "image = (tile // pixel_tiles).to(tl.int64)  # int64: offsets can pass 2**31",
        )
        if self.stacked:
            count = self.tail.pool.count if self.tail.pool else 1
            self._add(
                f"rows = tl.arange(0, BLOCK_PIXELS)  # the {count} pixels of a window are neighbors",
                f"pixels = tile % pixel_tiles * ({self.tile_pixels}) + rows // {count}",
                f"window = rows % {count}",
            )
        else:
            self._add("pixels = tile % pixel_tiles * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)")
        self._add("pixel_mask = pixels < n_pixels  # the last tile of an image reaches past its end")
        if groups > 1:
            self._add(
                f"group = tl.program_id(0) % channel_tiles // (channel_tiles // {groups})",
                f"local = tl.program_id(0) % (channel_tiles // {groups}) * BLOCK_CHANNELS"
                " + tl.arange(0, BLOCK_CHANNELS)",
                f"channel_mask = local < {per_group}  # as the last tile of a group's channels does",
                f"channels = group * ({per_group}) + local",
            )
        else:
            self._add(
                "channels = tl.program_id(0) % channel_tiles * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)",
                "channel_mask = channels < out_channels  # as the last tile of channels does",
            )
        if self.library:
            return
        plane = " * ".join(self.sizes)
        first = f" + group * {self.conv.group_in} * {group(plane)}" if groups > 1 else ""
        all_channels = (
            f"in_channels * {self.conv.groups}"
            if self.conv.in_channels != self.conv.group_in
            else "in_channels"
        )
        self._add(f"base = {self.x}_ptr + image * ({all_channels} * {plane}){first}")

    def _tile_lines(self) -> list[str]:
        if not self.conv.transposed or conv_transposed.count(self.conv) == 1:
            return ["tile = tl.program_id(0) // channel_tiles  # channels vary fastest: they share the input"]
        phases = conv_transposed.count(self.conv)
        return [
            f"phase = tl.program_id(0) // channel_tiles % {phases}  # phases share input and cache lines",
            f"tile = tl.program_id(0) // (channel_tiles * {phases})",
        ]

    def _pixel_axes(self, index: str, prefix: str, indent: str) -> None:
        """Coordinates of the tile's pixels."""
        left = ""
        for position, (axis, _size) in enumerate(zip(self.axes, self.sizes, strict=True)):
            inner = " * ".join(f"{prefix}_{s}" for s in self.sizes[position + 1 :])
            text = f"{index} // {group(inner)}" if inner else index
            if position:
                text = f"{text} % {prefix}_{self.sizes[position]}"
            self._add(f"{prefix}_{axis} = {text}", indent=indent)
            left = axis
        assert left == "x"

    @property
    def tile_pixels(self) -> str:
        """Pixels of the result that a tile yields, as source."""
        count = self.tail.pool.count if self.stacked and self.tail.pool else 1
        return f"BLOCK_PIXELS // {count}" if count > 1 else "BLOCK_PIXELS"

    def _stacked_value(self) -> str:
        """The tail's value for each pooled pixel, from a tile that holds whole windows."""
        pool = self.tail.pool
        assert pool is not None
        for position, axis in enumerate(self.axes):
            inner = " * ".join(self._pooled_size(i) for i in range(position + 1, len(self.axes)))
            spot = f"pixels // {group(inner)}" if inner else "pixels"
            spot = f"{spot} % {self._pooled_size(position)}" if position else spot
            self._add(f"out_{axis} = {spot} * {pool.window[position]} + {self._window(position)}")
        name = self._tile_value("    ")
        width = "1" if self._after_channel_reduction() else "BLOCK_CHANNELS"
        self._add(f"windows = tl.reshape({name}, ({self.tile_pixels}, {pool.count}, {width}))")
        if pool.kind == "max":
            self._add("pooled = tl.reduce(windows, 1, _nan_max)")
        else:
            self._add(f"pooled = tl.sum(windows, axis=1) / {float(pool.count)}")
        self._add(
            f"pixels = tile % pixel_tiles * ({self.tile_pixels}) + tl.arange(0, {self.tile_pixels})",
            "pixel_mask = pixels < n_pixels",
        )
        lines, result = self.writer.after_pool("pooled", "    ")
        self.lines += lines
        return result

    def _window(self, position: int) -> str:
        """The offset of a window's pixel along one axis."""
        assert self.tail.pool is not None
        later = math.prod(self.tail.pool.window[position + 1 :])
        text = "window" if later == 1 else f"window // {later}"
        return f"{text} % {self.tail.pool.window[position]}" if position else text

    def _pooled_value(self) -> str:
        """The tail's value for each pooled pixel: its windows one after the other."""
        pool = self.tail.pool
        assert pool is not None
        for position, (axis, _) in enumerate(zip(self.axes, self.sizes, strict=True)):
            inner = " * ".join(self._pooled_size(i) for i in range(position + 1, len(self.axes)))
            text = f"pixels // {group(inner)}" if inner else "pixels"
            text = f"{text} % {self._pooled_size(position)}" if position else text
            self._add(f"pooled_{axis} = {group(text)} * {pool.window[position]}")
        start = '-float("inf")' if pool.kind == "max" else "0.0"
        one = self._after_channel_reduction()
        shape = "(BLOCK_PIXELS, 1)" if one else "(BLOCK_PIXELS, BLOCK_CHANNELS)"
        self._add(
            f"pooled = tl.full({shape}, {start}, tl.float32)",
            f"for window in range({pool.count}):",
        )
        indent = "        "
        for position, axis in enumerate(self.axes):
            self._add(f"out_{axis} = pooled_{axis} + {self._window(position)}", indent=indent)
        name = self._tile_value(indent)
        if pool.kind == "max":
            self._add(
                f"pooled = tl.maximum(pooled, {name}, propagate_nan=tl.PropagateNan.ALL)", indent=indent
            )
            value = "pooled"
        else:
            self._add(f"pooled += {name}", indent=indent)
            self._add(f"average = pooled / {float(pool.count)}")
            value = "average"
        lines, result = self.writer.after_pool(value, "    ")
        self.lines += lines
        return result

    def _pooled_size(self, position: int) -> str:
        assert self.tail.pool is not None
        return f"(out_{self.sizes[position]} // {self.tail.pool.window[position]})"

    def _after_channel_reduction(self) -> bool:
        pool = next(node for node in self.tail.nodes if self.tail.roles[node] == "pool")
        return pool.args[0].meta["val"].shape[1] == 1 and self.conv.out_channels != 1

    # --- the sum -------------------------------------------------------------------------

    def _tile_value(self, indent: str) -> str:
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
        words = self.job.words
        self.writer = TailWriter(self.conv, self.tail, self._tile(), self.job.names, words)
        lines, name = self.writer.before_pool("acc", indent)
        self.lines += lines
        return name

    def _read(self, indent: str) -> None:
        """The library's result, where the channels of a pixel are neighbors."""
        full = " * ".join(f"out_{s}" for s in self.sizes) if self.tail.pool else "n_pixels"
        wide = "" if dtype_name(self.conv.dtype) == "float32" else ".to(tl.float32)"
        self._add(
            f"place = (image * {group(full)} + {self._flat_pixel()}) * out_channels + channels[None, :]",
            "acc = tl.load(convolved_ptr + place,",
            f"              mask=pixel_mask[:, None] & channel_mask[None, :], other=0.0){wide}",
            indent=indent,
        )

    def _gather(self, indent: str) -> None:
        taps, deeper = self.conv.taps, indent + "    "
        blocks = -(-self.conv.depth // self.choice["BLOCK_K"])
        self._add("acc = tl.zeros((BLOCK_PIXELS, BLOCK_CHANNELS), tl.float32)", indent=indent)
        if blocks > 1:
            self._add("for start in range(0, in_channels * " + str(taps) + ", BLOCK_K):", indent=indent)
        else:
            deeper = indent
        first = "start + " if blocks > 1 else ""
        self._add(
            f"terms = {first}tl.arange(0, BLOCK_K)  # (input channel, tap), as in the filter", indent=deeper
        )
        self._add(
            f"term_mask = terms < in_channels * {taps}  # the block is filled up with zeros", indent=deeper
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
        """One row of the filter in all input channels at a time: most of the address never changes."""
        conv, deeper, width = self.conv, indent + "    ", self.conv.kernel[-1]
        plane = " * ".join(self.sizes)
        pixel = "out_x" + times(conv.stride[-1]) + (f" - {conv.before[-1]}" if conv.before[-1] else "")
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
            tap = f"{group(tap)}{times(conv.dilation[position])}" if conv.dilation[position] > 1 else tap
            shift = f" - {conv.before[position]}" if conv.before[position] else ""
            self._add(f"{axis} = out_{axis}{times(conv.stride[position])}{shift} + {tap}", indent=indent)
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
        taps, deeper = self.conv.taps, indent + "    "
        count = f" * {taps}" if taps > 1 else ""
        self._add("acc = tl.zeros((BLOCK_PIXELS, BLOCK_CHANNELS), tl.float32)", indent=indent)
        if self.conv.transposed:
            every, find = conv_transposed.steps(self.conv, self.axes)
            self._add(
                f"n_taps = {every}",
                "for step in range(tl.cdiv(in_channels, BLOCK_K) * n_taps):  # taps vary fastest",
                *(
                    f"    {line}"
                    for line in [*find, "terms = step // n_taps * BLOCK_K + tl.arange(0, BLOCK_K)"]
                ),
                indent=indent,
            )
        else:
            self._add(f"for step in range(tl.cdiv(in_channels, BLOCK_K){count}):", indent=indent)
        if self.conv.transposed:
            pass
        elif taps > 1:
            self._add(f"tap = step % {taps}  # varies fastest: neighbors read the same pixels", indent=deeper)
            self._add(f"terms = step // {taps} * BLOCK_K + tl.arange(0, BLOCK_K)", indent=deeper)
        else:
            self._add("terms = step * BLOCK_K + tl.arange(0, BLOCK_K)", indent=deeper)
        even = self.conv.group_in % self.choice["BLOCK_K"] == 0
        if not even:
            self._add(
                "term_mask = terms < in_channels  # the last block is filled up with zeros", indent=deeper
            )
        if not self.conv.transposed:
            self._positions("tap", deeper, per_term=False)
        offset = [f"terms[:, None] * ({' * '.join(self.sizes)})", *self._inner_offset()]
        masks = [*([] if even else ["term_mask[:, None]"]), *self._valid(deeper)]
        self._add(f"patch = tl.load(base + {' + '.join(offset)},", indent=deeper)
        self._add(f"                mask={' & '.join(masks)}, other=0.0)", indent=deeper)
        row = f"channels[None, :] * (in_channels{count})" + (" + tap * in_channels" if taps > 1 else "")
        mask = "channel_mask[None, :]" + ("" if even else " & term_mask[:, None]")
        self._add(
            f"filters = tl.load({'packed' if self.packed else self.weight}_ptr + {row} + terms[:, None],",
            f"                  mask={mask}, other=0.0)",
            indent=deeper,
        )
        self._dot(deeper, round_filters=not self.packed)

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
            f"filters = tl.load({self.weight}_ptr + channels * {conv.taps} + tap, mask=channel_mask){wide}",
            "acc += patch * filters[None, :]",
            indent=deeper,
        )

    def _positions(self, index: str, indent: str, *, per_term: bool, column: str = "[None, :]") -> None:
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
            step = f"{group(tap)}{times(conv.dilation[position])}" if conv.dilation[position] > 1 else tap
            if per_term:
                self._add(f"{axis} = {group(pixel + shift)}[None, :] + ({step})[:, None]", indent=indent)
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
            f"({axis} >= 0) & ({axis} < {size})" for axis, size in zip(self.axes, self.sizes, strict=True)
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

    # --- the end -------------------------------------------------------------------------

    def _tile(self) -> Tile:
        pixel = self._flat_pixel()
        both = "pixel_mask[:, None] & channel_mask[None, :]"
        image = "image * out_channels + channels[None, :]"
        full = " * ".join(f"out_{s}" for s in self.sizes)
        whole = group(full) if self.tail.pool or self.conv.transposed else "n_pixels"
        return Tile(
            channel="channels[None, :], mask=channel_mask[None, :]",
            element=f"({image}) * {whole} + {pixel}, mask={both}",
            pooled=f"({image}) * n_pixels + pixels[:, None], mask={both}",
            mask="channel_mask[None, :]",
            pixels="pixel_mask[:, None]",
        )

    def _flat_pixel(self) -> str:
        if self.tail.pool is None:
            return "place[:, None]" if self.conv.transposed else "pixels[:, None]"
        parts = []
        for position, axis in enumerate(self.axes):
            inner = " * ".join(f"out_{s}" for s in self.sizes[position + 1 :])
            parts.append(f"out_{axis} * {group(inner)}" if inner else f"out_{axis}")
        return f"({' + '.join(parts)})[:, None]"

    def _store(self, name: str) -> None:
        spatial = self.tail.spatial
        if spatial is not None:
            self._store_partial(name, op_name(spatial))
            return
        one = self.job.result.meta["val"].shape[1] == 1 and self.conv.out_channels != 1
        size, pixel = "n_pixels", "pixels[:, None]"
        if self.conv.transposed:
            size, pixel = group(" * ".join(f"out_{s}" for s in self.sizes)), "place[:, None]"
        if one:
            self._add(f"tl.store(out_ptr + image * {size} + {pixel}, {name}, mask=pixel_mask[:, None])")
            return
        name_of = "spot" if self.conv.transposed else "place"
        self._add(
            f"{name_of} = (image * out_channels + channels[None, :]) * {size} + {pixel}",
            f"tl.store(out_ptr + {name_of}, {name}, mask=pixel_mask[:, None] & channel_mask[None, :])",
        )

    def _store_partial(self, name: str, kind: str) -> None:
        """One number for each channel and tile; the launcher combines the tiles in a fixed order."""
        if kind in ("amax", "amin"):
            fill, how = ('-float("inf")', "_nan_max") if kind == "amax" else ('float("inf")', "_nan_min")
            text = f"tl.reduce(tl.where(pixel_mask[:, None], {name}, {fill}), 0, {how})"
        else:
            text = f"tl.sum(tl.where(pixel_mask[:, None], {name}, 0.0), axis=0)"
        self._add(
            f"partial = {text}",
            "tl.store(out_ptr + tile.to(tl.int64) * out_channels + channels, partial, mask=channel_mask)",
        )


def stacks(pool: Pool) -> bool:
    """Windows of a power of two fill a tile without gaps."""
    return pool.count <= 64 and pool.count & (pool.count - 1) == 0
