"""Tiles as tensor descriptors tell them: sizes in the launcher's words, corners in the kernel's.

`described(kernel, tiles, call, stores)` reads one access. Standard library only. Not covered:
tiles of which the launcher's text does not tell a size, and what must hold so that a descriptor
may take an access' place (the skill triton-descriptors)."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from kernel_lsp.rewrite.kernels import launch_constants, launchers, places
from kernel_lsp.rewrite.kernels.source import find_assignments, sources
from kernel_lsp.rewrite.kernels.terms import Atom, TermCounts
from kernel_lsp.rewrite.kernels.tiles import BlockAxis, MemoryTile, Tiles
from kernel_lsp.rewrite.kernels.view import Kernel

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}
LINE = 16
"""Bytes of which addresses and strides must be multiples, and the least that a row of a tile
has."""
LONGEST = 256
"""Axis of a tile."""


@dataclass(frozen=True, slots=True)
class DescribedTile:
    """A tile with what launcher and kernel have to say of it. Axes are those of memory, outermost
    first."""

    tile: MemoryTile
    tensor: str
    """Of the launcher, in whose words shape, strides and block are, too."""
    itemsize: int
    transposed: bool
    """The tile's first axis is the one along which numbers are neighbors."""
    unit: str
    """What must be 1, so that they are; empty: they always are."""
    shape: tuple[str, ...]
    strides: tuple[str, ...]
    block: tuple[str, ...]
    corner: tuple[str, ...]
    """In the kernel's words."""

    @property
    def descriptor(self) -> tuple[str, str]:
        """The call that makes one: function and arguments."""
        shape, strides, block = map(", ".join, (self.shape, (*self.strides, "1"), self.block))
        return "TensorDescriptor", f"{self.tensor}, [{shape}], [{strides}], [{block}]"


def describe_tile(
    kernel: Kernel, tiles: Tiles, call: ast.Call, stores: bool
) -> DescribedTile | None:
    """The tile as a descriptor would have it; None: it is no tile, or one that a descriptor
    cannot describe."""
    tile = tiles.tile(call, stores=stores)
    if isinstance(tile, str) or not _is_always(tiles, call):
        return None
    if not all(map(tiles.begins_blocks, tile.axes)):
        return None
    rows, columns = tile.axes
    transposed = _unit(kernel, columns.stride) is None
    axes = (columns, rows) if transposed else (rows, columns)
    unit, tensor = _unit(kernel, axes[1].stride), places.argument(kernel, tile.pointer)
    itemsize = ITEMSIZE.get(kernel.pointers()[tile.pointer].dtype)
    entries = _entries(kernel, tiles, tile, axes)
    if not isinstance(tensor, ast.Name) or itemsize is None or unit is None or entries is None:
        return None
    made = DescribedTile(tile, tensor.id, itemsize, transposed, unit, *entries)
    return made if _fits(kernel, made) else None


Texts = tuple[str, ...]


def _entries(
    kernel: Kernel, tiles: Tiles, tile: MemoryTile, axes: tuple[BlockAxis, BlockAxis]
) -> tuple[Texts, Texts, Texts, Texts] | None:
    """(shape, strides, block, corner) in the launcher's words; None where one cannot be said.
    ``axes``: as they lie in memory."""
    shape = [_number(kernel, a.extent) if a.extent else _size(kernel, a.block) for a in axes]
    strides = [_launcher_text(kernel, axes[0].stride)]
    block = [_size(kernel, a.block) for a in axes]
    corner = [_corner(tiles, a.start, tile.call) for a in axes]
    if tile.batch is not None:
        grid, stride = tile.batch
        shape.insert(0, _programs(kernel, grid))
        strides.insert(0, _launcher_text(kernel, stride))
        block.insert(0, "1")
        corner.insert(0, _corner(tiles, {(Atom("program", str(grid)),): 1}, tile.call))
    said = [_all_said(texts) for texts in (shape, strides, block, corner)]
    first, second, third, fourth = said
    if first is None or second is None or third is None or fourth is None:
        return None
    return first, second, third, fourth


def _all_said(texts: list[str | None]) -> Texts | None:
    known = tuple(text for text in texts if text is not None)
    return known if len(known) == len(texts) else None


def _fits(kernel: Kernel, one: DescribedTile) -> bool:
    """Of what is written as numbers, and of the blocks of this workload."""
    axes = one.tile.axes[::-1] if one.transposed else one.tile.axes
    sizes = [_observed_value(kernel, axis.block) for axis in axes]
    within = all(size is not None and 2 <= size <= LONGEST for size in sizes)
    wide = within and (sizes[1] or 0) * one.itemsize >= LINE
    whole = all(int(s) % (LINE // one.itemsize) == 0 for s in one.strides if s.isdecimal())
    stride, extent = one.strides[-1], one.shape[-1]
    return wide and whole and (not (stride + extent).isdecimal() or int(stride) >= int(extent))


def _is_always(tiles: Tiles, call: ast.Call) -> bool:
    """Each program gets there, so that the pointer is no tensor that may be left out."""
    node = tiles.parent(call)
    while node is not tiles.function:
        if isinstance(
            node, ast.If | ast.While | ast.IfExp | ast.BoolOp | ast.Lambda | ast.FunctionDef
        ):
            return False
        node = tiles.parent(node)
    return True


def _unit(kernel: Kernel, stride: TermCounts) -> str | None:
    """The launcher's word for a stride that is 1 in this workload; empty: it is the number."""
    if stride == {(): 1}:
        return ""
    match list(stride.items()):
        case [((Atom(kind="name", key=name),), 1)]:
            seen = {(one.arguments | one.constants).get(name) for one in kernel.launched}
            return launch_constants.given_text(kernel, name) if seen == {1} else None
    return None


def _number(kernel: Kernel, name: str) -> str | None:
    """A parameter that is a whole number, in the launcher's words."""
    whole = all(type((one.arguments | one.constants).get(name)) is int for one in kernel.launched)
    return launch_constants.given_text(kernel, name) if whole else None


def _launcher_text(kernel: Kernel, number: TermCounts) -> str | None:
    """A product of parameters in the launcher's words."""
    match list(number.items()):
        case [(product, count)]:
            factors = [_number(kernel, a.key) if a.kind == "name" else None for a in product]
            texts = [*([str(count)] if count != 1 or not factors else []), *factors]
            known = [t for t in texts if t is not None]
            return " * ".join(known) if len(known) == len(texts) else None
    return None


def _size(kernel: Kernel, block: ast.expr) -> str | None:
    """Of a block, as the launcher says it."""
    if isinstance(block, ast.Name) and block.id in kernel.source.constexprs():
        return launch_constants.given_text(kernel, block.id)
    return (
        str(block.value) if isinstance(block, ast.Constant) and type(block.value) is int else None
    )


def _observed_value(kernel: Kernel, block: ast.expr) -> int | None:
    """One that all launches of the workload have."""
    if isinstance(block, ast.Constant):
        return block.value if isinstance(block.value, int) else None
    seen = {one.constants.get(ast.unparse(block)) for one in kernel.launched}
    value = seen.pop() if len(seen) == 1 else None
    return value if type(value) is int else None


def _programs(kernel: Kernel, axis: int) -> str | None:
    """How many the grid has along the axis, in the launcher's words."""
    launch = kernel.source.launches()[0]
    grid = launchers.grid(kernel.launcher, kernel.function, launch.call, most=3)
    if grid is None or axis >= len(grid):
        return None
    return grid[axis]


def _corner(tiles: Tiles, start: TermCounts, at: ast.AST) -> str | None:
    """A sum in the kernel's words at a place: names of 32 bits where they are the same number."""
    if not start:
        return "0"
    if (name := _name(tiles, start, at)) is not None:
        return name
    texts = []
    for product, count in start.items():
        factors = [_factor(tiles, a, at) for a in sorted(product, key=lambda a: a.kind == "name")]
        known = [f for f in factors if f is not None]
        if len(known) != len(factors):
            return None
        texts.append(" * ".join([*known, *([str(count)] if count != 1 or not known else [])]))
    return " + ".join(texts)


def _factor(tiles: Tiles, one: Atom, at: ast.AST) -> str | None:
    if (name := _name(tiles, {(one,): 1}, at)) is not None:
        return name
    if one.kind == "program" and one.key.isdecimal():
        return f"{tiles.tl}.program_id({one.key})"
    return one.key if one.kind == "name" and one.key in tiles.sizes else None


def _name(tiles: Tiles, number: TermCounts, at: ast.AST) -> str | None:
    stored = (
        n.id
        for n in ast.walk(tiles.function)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    )
    for name in dict.fromkeys(stored):
        if tiles.named(name, at) == number and not _is_wide(tiles, name):
            return name
    return None


def _is_wide(tiles: Tiles, name: str) -> bool:
    """Some of what it comes from has 64 bits, which no corner may have."""
    names = sources(tiles.function, ast.Name(name, ast.Load()))
    return any(
        "int64" in ast.unparse(s) for n in names for s in find_assignments(tiles.function, n)
    )
