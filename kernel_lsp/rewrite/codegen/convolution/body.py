"""The lines after the convolution's sum: bias, tail and store, on a tile of pixels x channels.

The tile is called by what surrounds it (source.py), which also says how an operand of a
channel or of an element is addressed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import fx

from kernel_lsp.rewrite.codegen.convolution.facts import Conv
from kernel_lsp.rewrite.codegen.convolution.tail import Tail
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Operand, Value, apply
from kernel_lsp.rewrite.codegen.core.nodes import dtype_name, op_name
from kernel_lsp.rewrite.codegen.pointwise.operations import value_of
from kernel_lsp.rewrite.graph import argument


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvolutionTile:
    """How the surrounding kernel spells things."""

    channel: str
    """Address of a channel's value and its mask: ``{} + channels[None, :], mask=...``."""
    element: str
    """Address of an element of the full result, with its mask."""
    pooled: str
    """The same after pooling."""
    mask: str
    """Channels that exist, as a row of the tile; empty when a tile is of one channel."""
    pixels: str
    """Pixels that exist, as a column of the tile."""


class TailWriter:
    """Turns the tail's nodes into lines, stage by stage."""

    def __init__(
        self,
        conv: Conv,
        tail: Tail,
        tile: ConvolutionTile,
        operands: Mapping[fx.Node, str],
        words: Mapping[fx.Node, str],
    ) -> None:
        self.conv, self.bias, self.tail, self.tile = conv.node, conv.bias, tail, tile
        self.operand_names, self.words = operands, words
        self.names = UniqueNames([*operands.values(), *_WORDS])
        self.values: dict[fx.Node, Value] = {}
        self.leaves: dict[fx.Node, Value] = {}
        self.pooling = tail.pool is not None
        self.body = self._fresh("    ")

    # --- what the kernel asks for --------------------------------------------------------

    def before_pool(self, accumulator: str, indent: str) -> tuple[list[str], str]:
        """Lines of bias and tail up to the pool (or the end), and the name of the result."""
        self.body = self._fresh(indent)
        start = self._known(accumulator)
        if self.bias is not None:
            hint = self.words.get(self.conv, "biased")
            start = apply("add", start, self._leaf(self.bias, "channel"), hint=hint)
        self.values[self.conv] = start
        node = self.conv
        for node in self.tail.nodes:
            if self.tail.roles[node] in ("pool", "spatial"):
                node = node.args[0]
                break
            self._step(node)
        name = self._text(self.values[node])
        return self.body.lines, name

    def after_pool(self, pooled: str, indent: str) -> tuple[list[str], str]:
        """Lines of the tail behind the pool, which is held by the variable ``pooled``."""
        self.body = self._fresh(indent)
        self.leaves, self.pooling = {}, False
        behind, node = False, self.conv
        value = self._known(pooled)
        for node in self.tail.nodes:
            if self.tail.roles[node] == "pool":
                behind, self.values[node] = True, value
            elif self.tail.roles[node] == "spatial":
                node = node.args[0]
                break
            elif behind:
                self._step(node)
        return self.body.lines, self._text(self.values[node])

    # --- nodes ---------------------------------------------------------------------------

    def _step(self, node: fx.Node) -> None:
        role = self.tail.roles[node]
        if role == "same":
            self.values[node] = self.values[node.args[0]]
        elif role == "channel":
            self.values[node] = self._known(self._over_channels(node))
        elif op_name(node) == "batch_norm":
            self.values[node] = self._batch_norm(node)
        else:
            made = value_of(node, self._read)
            assert isinstance(made, Value)
            known = any(made is value for value in self.values.values())
            self.values[node] = (
                made if known else replace(made, hint=self.words.get(node, made.hint))
            )
        self.body.need(self.values[node])

    def _read(self, arg: fx.Node) -> Value:
        return self.values[arg] if arg in self.values else self._leaf(arg, self.tail.operands[arg])

    def _batch_norm(self, node: fx.Node) -> Value:
        weight, bias, mean, var = (
            self._leaf(part, "channel") if (part := argument(node, name)) is not None else None
            for name in ("weight", "bias", "running_mean", "running_var")
        )
        assert mean is not None and var is not None
        scale = apply("rsqrt", apply("add", var, float(argument(node, "eps"))), hint="scale")
        if weight is not None:
            scale = apply("mul", scale, weight, hint="scale")
        centered = apply("sub", self.values[argument(node, "input")], mean, hint="centered")
        normed = apply("mul", centered, scale, hint="normed")
        return normed if bias is None else apply("add", normed, bias, hint="normed")

    def _over_channels(self, node: fx.Node) -> str:
        """A reduction over the tile's channels; the ones that only fill the tile never count."""
        kind = op_name(node)
        value = self._text(self.values[node.args[0]])
        if kind in ("max", "amax", "min", "amin"):
            low = kind in ("max", "amax")
            filled = self._filled(value, '-float("inf")' if low else 'float("inf")')
            combine = "_nan_max" if low else "_nan_min"
            return self.body.assign(
                "highest" if low else "lowest", f"tl.reduce({filled}, 1, {combine}, keep_dims=True)"
            )
        if kind in ("sum", "mean"):
            total = f"tl.sum({self._filled(value, '0.0')}, axis=1, keep_dims=True)"
            share = f" / {float(node.args[0].meta['val'].shape[1])}" if kind == "mean" else ""
            return self.body.assign("channel_mean" if share else "channel_sum", total + share)
        return self._exponentials(kind, value)

    def _exponentials(self, kind: str, value: str) -> str:
        filled = self.body.assign("logits", self._filled(value, '-float("inf")'))
        highest = self.body.assign("highest", f"tl.max({filled}, axis=1, keep_dims=True)")
        if kind == "logsumexp":  # an infinite maximum is the result itself
            highest = self.body.assign(
                "shift", f'tl.where(tl.abs({highest}) == float("inf"), 0.0, {highest})'
            )
        shifted = self.body.assign("shifted", f"{filled} - {highest}")
        weights = self.body.assign("exponentials", f"tl.exp({shifted})")
        total = self.body.assign("total", f"tl.sum({weights}, axis=1, keep_dims=True)")
        if kind == "softmax":
            return self.body.assign("softmax", f"{weights} / {total}")
        if kind == "log_softmax":
            return self.body.assign("log_softmax", f"{shifted} - tl.log({total})")
        return self.body.assign("logsumexp", f"tl.log({total}) + {highest}")

    def _filled(self, value: str, number: str) -> str:
        return f"tl.where({self.tile.mask}, {value}, {number})" if self.tile.mask else value

    # --- leaves --------------------------------------------------------------------------

    def _fresh(self, indent: str) -> Body:
        return Body(self.names, self._load, indent=indent)

    def _known(self, name: str) -> Value:
        value = Value(op="known", hint=name)
        self.body.known[value] = name
        return value

    def _text(self, value: Value) -> str:
        text = self.body.text(value)
        assert text is not None
        return text

    def _leaf(self, node: fx.Node, kind: str) -> Value:
        if node not in self.leaves:
            name = self.operand_names[node]
            operand = Operand(name=name, dtype=dtype_name(node.meta["val"].dtype), axes=_AXES[kind])
            hint = name if kind != "element" else f"{name}_tile"
            self.leaves[node] = Value(
                op="load", dtype=operand.dtype, operand=operand, hint=f"{hint}_value"
            )
        return self.leaves[node]

    def _load(self, operand: Operand) -> str:
        if not operand.axes:
            return f"tl.load({operand.name}_ptr)"
        if operand.axes == _AXES["channel"]:
            return f"tl.load({operand.name}_ptr + {self.tile.channel})"
        where = self.tile.element if self.pooling or self.tail.pool is None else self.tile.pooled
        return f"tl.load({operand.name}_ptr + {where})"


_AXES: dict[str, tuple[int, ...]] = {"scalar": (), "channel": (0,), "element": (0, 1)}
_WORDS = (
    "acc", "inside", "pixels", "pixel_mask", "channels", "channel_mask", "image", "window",
    "windows",
    "pooled", "patch", "filters", "rows", "taps", "in_row", "in_row_mask", "step", "tile",
    "partial",
    "out_x", "out_y", "out_z", "pooled_x", "pooled_y", "pooled_z", "x", "y", "z", "group", "tap",
    "row",
    "base", "place", "average", "local", "start", "terms", "term_mask", "pixel_tiles",
    "channel_tiles",
    "in_channels", "out_channels", "height", "width", "depth", "n_pixels", "out_height",
    "out_width",
    "out_depth", "kernel_height", "kernel_width", "kernel_depth", "convolved", "phase", "place",
    "spot",
    *(f"{word}_{axis}" for word in ("in", "shift", "first", "taps", "turn") for axis in "xyz"),
    "n_taps",
)  # fmt: skip
"""What the surrounding kernel calls its own variables."""
