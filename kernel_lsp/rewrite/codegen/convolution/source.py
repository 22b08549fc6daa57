"""Convolution as a matrix product on tensor cores that gathers its own patches, with the tail in
registers.

One program computes a tile of BLOCK_PIXELS pixels x BLOCK_CHANNELS output channels of one image
and never writes the convolution's own result. accumulate.py has the ways to the sum, body.py
the tail, launcher.py the function around the kernel; transposed.py finds inputs and taps
of transposed ones, which go the way ``taps``. Not covered: gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen.convolution import transposed
from kernel_lsp.rewrite.codegen.convolution.accumulate import ROUND, SumWriter
from kernel_lsp.rewrite.codegen.convolution.body import ConvolutionTile, TailWriter
from kernel_lsp.rewrite.codegen.convolution.facts import FusedPool
from kernel_lsp.rewrite.codegen.convolution.launcher import (
    BLOCKS,
    ConvolutionJob,
    ConvolutionParts,
    group,
    launcher,
    pack,
)
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.core.ops import helpers_for
from kernel_lsp.rewrite.generated import GeneratedSource


def emit(job: ConvolutionJob, choice: Mapping[str, Any]) -> GeneratedSource:
    """Kernel and launcher; ``choice`` has way, precision, BLOCK_PIXELS, BLOCK_CHANNELS, BLOCK_K,
    num_warps, num_stages."""
    row = job.conv.group_in * job.conv.kernel[-1]
    if choice["way"] == "rows" and row > choice["BLOCK_K"]:
        raise RewriteError(
            f"a row of the filter has {row} terms", f"choose BLOCK_K of at least {row}"
        )
    if job.conv.transposed and choice["way"] != "taps":
        raise RewriteError(
            f"a transposed convolution goes no way {choice['way']}", "choose the way taps"
        )
    kernel = _ConvolutionKernel(job, choice)
    texts = [kernel.text(), launcher(job, choice, kernel.parts())]
    if kernel.packed:
        texts.insert(0, pack(job, kernel.rounds))
    text = "\n\n".join(texts)
    helpers = [*helpers_for(text), *([ROUND] if "_round_to_tf32(" in text else [])]
    return GeneratedSource(
        name=job.name,
        imports=source.IMPORTS,
        definitions="\n\n".join([*helpers, text]),
        summary=job.summary,
        numbers=_numbers(job),
    )


def _numbers(job: ConvolutionJob) -> tuple[float, ...]:
    conv, window = job.conv, job.tail.pool.window if job.tail.pool else ()
    sizes = [*conv.stride, *conv.before, *conv.dilation, conv.groups, *conv.kernel, *window]
    numbers = [arg for node in job.tail.nodes for arg in node.args if isinstance(arg, (int, float))]
    return tuple(float(n) for n in [*sizes, *numbers])


class _ConvolutionKernel(SumWriter):
    """The text of the main kernel: where a tile lies, its sum and tail, pooling, and the end."""

    def text(self) -> str:
        """Source of the kernel."""
        self._head()
        if self.conv.transposed:
            self._add(*transposed.head(self.conv, self.axes, self.sizes))
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
        """Names of the sizes of blocks that the kernel takes."""
        return [
            name for name in BLOCKS if name != "BLOCK_K" or not (self.depthwise or self.library)
        ]

    def parts(self) -> ConvolutionParts:
        """What the launcher must know; after ``text``."""
        count = self.tail.pool.count if self.stacked and self.tail.pool else 1
        return ConvolutionParts(
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
        """Names of the pointers that the kernel takes, the result last."""
        return [f"{name}_ptr" for name in (*self.tensors(), "out")]

    def tensors(self) -> list[str]:
        """What the kernel reads, in the launcher's names."""
        if self.library:
            kept = [
                node
                for node in self.job.names
                if node is self.conv.bias or node in self.tail.operands
            ]
            return ["convolved", *dict.fromkeys(self.job.names[node] for node in kept)]
        named = [
            "packed" if self.packed and n == self.weight else n for n in self.job.names.values()
        ]
        return list(dict.fromkeys(named))

    def constants(self) -> list[str]:
        """Sizes that the text uses, in the launcher's names."""
        words = set(
            "".join(c if c.isalnum() or c == "_" else " " for c in "\n".join(self.lines)).split()
        )
        known = ["in_channels", "out_channels", *self.sizes, *(f"out_{s}" for s in self.sizes),
                 *(f"phase_{s}" for s in self.sizes),
                 *(f"kernel_{s}" for s in self.sizes), "n_pixels"]  # fmt: skip
        return [name for name in known if name in words]

    @property
    def stacked(self) -> bool:
        """All pixels of a window lie in one tile; else the tile is computed for each position in
        it."""
        return self.tail.pool is not None and bool(self.choice.get("whole_windows"))

    # --- where the tile lies -------------------------------------------------------------

    def _head(self) -> None:
        groups = 1 if self.depthwise or self.library else self.conv.groups
        per_group = f"out_channels // {groups}" if groups > 1 else "out_channels"
        self._add(
            f"channel_tiles = tl.cdiv({per_group}, BLOCK_CHANNELS)"
            + (f" * {groups}" if groups > 1 else ""),
            f"pixel_tiles = tl.cdiv(n_pixels, {self.tile_pixels})",
            *self._tile_lines(),
            "image = (tile // pixel_tiles).to(tl.int64)  # int64: offsets can pass 2**31",
        )
        if self.stacked:
            count = self.tail.pool.count if self.tail.pool else 1
            self._add(
                f"rows = tl.arange(0, BLOCK_PIXELS)  # the {count} pixels of a window are "
                f"neighbors",
                f"pixels = tile % pixel_tiles * ({self.tile_pixels}) + rows // {count}",
                f"window = rows % {count}",
            )
        else:
            self._add("pixels = tile % pixel_tiles * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)")
        self._add(
            "pixel_mask = pixels < n_pixels  # the last tile of an image reaches past its end"
        )
        if groups > 1:
            self._add(
                f"group = tl.program_id(0) % channel_tiles // (channel_tiles // {groups})",
                f"local = tl.program_id(0) % (channel_tiles // {groups}) * BLOCK_CHANNELS"
                " + tl.arange(0, BLOCK_CHANNELS)",
                f"channel_mask = local < {per_group}  # as the last tile of a group's "
                f"channels does",
                f"channels = group * ({per_group}) + local",
            )
        else:
            self._add(
                "channels = tl.program_id(0) % channel_tiles * BLOCK_CHANNELS + tl.arange(0, "
                "BLOCK_CHANNELS)",
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
        if not self.conv.transposed or transposed.count(self.conv) == 1:
            return [
                "tile = tl.program_id(0) // channel_tiles  # channels vary fastest: they share "
                "the input"
            ]
        phases = transposed.count(self.conv)
        return [
            f"phase = tl.program_id(0) // channel_tiles % {phases}  # phases share input and "
            f"cache lines",
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
            f"pixels = tile % pixel_tiles * ({self.tile_pixels}) + tl.arange(0, "
            f"{self.tile_pixels})",
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
                f"pooled = tl.maximum(pooled, {name}, propagate_nan=tl.PropagateNan.ALL)",
                indent=indent,
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

    def _tile_value(self, indent: str) -> str:
        self._sum(indent)
        self.writer = TailWriter(self.conv, self.tail, self._tile(), self.job.names, self.job.words)
        lines, name = self.writer.before_pool("acc", indent)
        self.lines += lines
        return name

    # --- the end -------------------------------------------------------------------------

    def _tile(self) -> ConvolutionTile:
        pixel = self._flat_pixel()
        both = "pixel_mask[:, None] & channel_mask[None, :]"
        image = "image * out_channels + channels[None, :]"
        full = " * ".join(f"out_{s}" for s in self.sizes)
        whole = group(full) if self.tail.pool or self.conv.transposed else "n_pixels"
        return ConvolutionTile(
            channel="channels[None, :], mask=channel_mask[None, :]",
            element=f"({image}) * {whole} + {pixel}, mask={both}",
            pooled=f"({image}) * n_pixels + pixels[:, None], mask={both}",
            mask="channel_mask[None, :]",
            pixels="pixel_mask[:, None]",
        )

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
            self._add(
                f"tl.store(out_ptr + image * {size} + {pixel}, {name}, mask=pixel_mask[:, None])"
            )
            return
        name_of = "spot" if self.conv.transposed else "place"
        self._add(
            f"{name_of} = (image * out_channels + channels[None, :]) * {size} + {pixel}",
            f"tl.store(out_ptr + {name_of}, {name}, mask=pixel_mask[:, None] & "
            f"channel_mask[None, :])",
        )

    def _store_partial(self, name: str, kind: str) -> None:
        """One number for each channel and tile; the launcher combines the tiles in a fixed
        order."""
        if kind in ("amax", "amin"):
            fill, how = (
                ('-float("inf")', "_nan_max") if kind == "amax" else ('float("inf")', "_nan_min")
            )
            text = f"tl.reduce(tl.where(pixel_mask[:, None], {name}, {fill}), 0, {how})"
        else:
            text = f"tl.sum(tl.where(pixel_mask[:, None], {name}, 0.0), axis=0)"
        self._add(
            f"partial = {text}",
            "tl.store(out_ptr + tile.to(tl.int64) * out_channels + channels, partial, "
            "mask=channel_mask)",
        )


def stacks(pool: FusedPool) -> bool:
    """Windows of a power of two fill a tile without gaps."""
    return pool.count <= 64 and pool.count & (pool.count - 1) == 0
