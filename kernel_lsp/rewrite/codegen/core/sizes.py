"""What the dimensions of a region are called, and where its launcher reads their sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.ir import Dim
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported
from kernel_lsp.rewrite.codegen.core.space import RegionShape, shape_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Wide:
    """An operand before its dimensions are collapsed."""

    node: fx.Node
    sizes: tuple[int, ...]
    """Sizes aligned with the expanded space: 1 where it is broadcast."""
    index: tuple[int | None, ...]
    """For each dimension of the space, that of what the launcher gets; None when it has none
    there."""
    view: tuple[int, ...] = ()
    """How its dimensions are permuted before the launcher gets it; empty for not at all."""

    @property
    def value(self) -> torch.Tensor:
        """What the launcher gets."""
        value: torch.Tensor = self.node.meta["val"]
        return value.permute(self.view) if self.view else value


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Spells the sizes of one region in terms of its operands."""

    space: RegionShape
    sizes: tuple[int, ...]
    """Of the space, in the order in which the region visits its dimensions."""
    order: tuple[int, ...]
    groups: Sequence[Sequence[int]]
    """Dimensions that are one in the region."""
    reduced: tuple[int, ...]
    """Places of groups that are reduced."""
    wide: tuple[Wide, ...]
    names: dict[fx.Node, str]
    any_layout: bool
    squeezed: set[fx.Node]

    def dims(self) -> tuple[Dim, ...]:
        """The region's dimensions with their names, sizes, and where the launcher reads these."""
        names = self._dim_names()
        return tuple(
            Dim(
                name=name,
                size=math.prod(self.sizes[axis] for axis in group),
                source=self._size_source(group),
            )
            for name, group in zip(names, self.groups, strict=True)
        )

    def _dim_names(self) -> list[str]:
        reduced, count = set(self.reduced), len(self.groups)
        rows = [i for i in range(count) if i not in reduced]
        if not reduced:
            return {
                1: ["n_cols"],
                2: ["n_rows", "n_cols"],
                3: ["n_outer", "n_channels", "n_inner"],
            }.get(count, [f"size_{i}" for i in range(count)])
        names = [""] * count
        for kind, axes in (("rows", rows), ("cols", sorted(reduced))):
            for position, axis in enumerate(axes):
                names[axis] = f"n_{kind}" if len(axes) == 1 else f"{kind}_{position}"
        if len(rows) == 2:
            inner = rows[1] > max(reduced)
            names[rows[0]], names[rows[1]] = (
                ("n_outer", "n_inner") if inner else ("n_batch", "rows_per_batch")
            )
        if self.space.groups is not None and len(reduced) == 2:
            names[min(reduced)], names[max(reduced)] = "group_channels", "n_inner"
        if self.space.groups is not None and len(rows) == 2:
            names[rows[0]], names[rows[1]] = "n_batch", "n_groups"
        return names

    def _size_source(self, group: Sequence[int]) -> str:
        full = [wide for wide in self.wide if self._varies(wide, range(len(self.sizes)))]
        varying = [wide for wide in self.wide if self._varies(wide, group)]
        several = [axis for axis, size in enumerate(self.sizes) if size != 1]
        if full and list(group) == (several or [0]):  # a number may have no dimension to ask for
            return f"{self.names[full[0].node]}.numel()"
        parts: dict[str, None] = {}
        for axis in group:
            parts[self._axis_source(_first([*full, *varying, *self._along(axis)]), axis)] = None
        if self.space.groups is not None and {1, 2} <= set(group):
            return self._joined_groups(group, parts, _first([*full, *varying]))
        return " * ".join(parts)

    def _along(self, axis: int) -> list[Wide]:
        return [wide for wide in self.wide if wide.sizes[axis] != 1]

    def _varies(self, wide: Wide, axes: Iterable[int]) -> bool:
        """It has the sizes of the space along these dimensions."""
        return all(wide.sizes[axis] == self.sizes[axis] for axis in axes)

    def _joined_groups(self, group: Sequence[int], parts: Iterable[str], wide: Wide) -> str:
        """``groups * (channels // groups)`` is one dimension of the operand."""
        name = self.names[wide.node]
        rest = [p for p in parts if "groups" not in p and "//" not in p and not p.isdigit()]
        joined = [f"{name}.shape[{wide.index[1]}]", *rest]
        return " * ".join(dict.fromkeys([f"{name}.shape[0]", *joined] if group[0] == 0 else joined))

    def _axis_source(self, wide: Wide, axis: int) -> str:
        text = f"{self.names[wide.node]}.shape[{wide.index[axis]}]"
        if self.space.groups is not None and axis == 1:
            return str(self.space.groups) if self.space.expanded[2] != 1 else text
        if self.space.groups is not None and axis == 2:
            return f"{text} // {self.space.groups}" if self.space.groups != 1 else text
        return text

    def shape_source(self, node: fx.Node) -> str:
        """The output's shape in terms of operands: an operand of that shape, or sizes."""
        shape = shape_of(node)
        if not shape:
            return "()"
        if len(shape) == len(self.order):
            shape = tuple(shape[dim] for dim in self.order)
        axes = self._axes_of(node, len(shape))
        alike = [wide for wide in self.wide if _spans(wide, shape, axes)]
        for wide in sorted(alike, key=self._is_strided) if math.prod(shape) > 1 else ():
            return f"{self.names[wide.node]}.{'size()' if self._is_strided(wide) else 'shape'}"
        for wide in self.wide:
            if (
                all(n == m for n, m in zip(wide.sizes, self.sizes, strict=True))
                and self.space.groups is None
            ):
                return self._sizes_of(shape, wide, axes)
        parts = [self._extent(axis, size) for axis, size in zip(axes, shape, strict=True)]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    def _axes_of(self, node: fx.Node, rank: int) -> list[int]:
        """Where a result's dimensions lie in the expanded space; a split one where its first part
        does."""
        if self.space.groups is not None:
            return [axis if axis < 2 else axis + 1 for axis in range(rank)]
        gone = self.space.reduced if node in self.squeezed else ()
        axes = [axis for axis in range(len(self.space.sizes)) if axis not in gone]
        return axes[len(axes) - rank :]

    def _extent(self, axis: int, size: int) -> str:
        """A size that no single operand has beside the others; a number would hold for one batch
        alone."""
        if size == 1:
            return "1"
        for wide in self.wide:
            own = wide.index[axis]
            if own is not None and wide.value.shape[own] == size:
                return f"{self.names[wide.node]}.shape[{own}]"
        raise Unsupported("a result's dimension that no operand has")

    def _is_strided(self, wide: Wide) -> bool:
        return self.any_layout and wide.sizes == self.sizes and not wide.value.is_contiguous()

    def _sizes_of(self, shape: tuple[int, ...], wide: Wide, axes: Sequence[int]) -> str:
        name = self.names[wide.node]
        reads = [
            f"{name}.shape[{wide.index[axis]}]"
            if size != 1 and wide.index[axis] is not None
            else str(size)
            for axis, size in zip(axes, shape, strict=True)
        ]
        return f"({', '.join(reads)}{',' if len(reads) == 1 else ''})"


def _first(known: Sequence[Wide]) -> Wide:
    if not known:
        raise Unsupported("a dimension that no operand has")
    return known[0]


def _spans(wide: Wide, shape: tuple[int, ...], axes: Sequence[int]) -> bool:
    """Of that shape and along these dimensions; others may be as long without meaning the same."""
    return tuple(wide.value.shape) == shape and [wide.index[axis] for axis in axes] == [
        *range(len(axes))
    ]
