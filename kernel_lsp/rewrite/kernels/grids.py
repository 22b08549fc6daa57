"""A launcher's grid, as far as block sizes go: what it divides by, and along which axis.

Standard library only. Not covered: grids that a function of another file makes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.rewrite.kernels.source import grid_said, names_in, only_value
from kernel_lsp.rewrite.kernels.terms import TermReader, atom
from kernel_lsp.rewrite.kernels.view import Kernel

OF_GRID, OF_LOOP = "each program takes its own block", "a loop advances by it"


def grid_of(kernel: Kernel) -> ast.expr:
    """The grid's expression, looked up where it is a name; None as a constant: the text shows no
    launch."""
    launches = kernel.source.launches()
    return grid_said(kernel.launcher, launches[0].grid) if launches else ast.Constant(None)


def follows(
    kernel: Kernel, said: str, why: str, literal: int | None, name: str | None = None
) -> bool:
    """A block per program needs ``cdiv(extent, block)`` along each axis of the grid that it is
    asked along, a loop needs no mention of it."""
    grid, wanted = grid_of(kernel), {said, name or said}

    def mentioned(extent: ast.expr) -> bool:
        return any(
            (isinstance(b, ast.Name) and b.id in wanted)
            or (
                isinstance(b, ast.Subscript)
                and isinstance(b.slice, ast.Constant)
                and b.slice.value in wanted
            )
            or (literal is not None and isinstance(b, ast.Constant) and b.value == literal)
            for b in _blocks_of(kernel.launcher, extent)
        )

    if why == OF_GRID:
        return all(map(mentioned, _own_extents(kernel, name or said) or [grid]))
    return not mentioned(grid) and not wanted & _names_of(kernel.launcher, grid)


def own_extent(kernel: Kernel, name: str) -> ast.expr | None:
    """The grid's extent along the axis whose programs take the block; None: it is not seen
    which."""
    found = _own_extents(kernel, name)
    return found[0] if len(found) == 1 else None


def _own_extents(kernel: Kernel, name: str) -> list[ast.expr]:
    """The grid's extents along the axes whose programs take the block, as far as it is seen
    which."""
    function, grid = kernel.function, grid_of(kernel)
    grid = grid.body if isinstance(grid, ast.Lambda) else grid
    products = [
        n for n in ast.walk(function) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)
    ]
    reader = TermReader(function)
    axes = {
        int(one.key.split()[0])
        for product in products
        for block, place in ((product.left, product.right), (product.right, product.left))
        if isinstance(block, ast.Name) and block.id == name
        if (one := atom(reader.terms(place))) is not None and one.kind == "program"
    }
    elements = grid.elts if isinstance(grid, ast.Tuple | ast.List) else []
    return [elements[axis] for axis in sorted(axes) if axis < len(elements)]


def divisors(launcher: FunctionNode, grid: ast.expr, value: int) -> list[ast.expr]:
    """Constants of this value by which ``cdiv`` divides."""
    found = (call.args[1:] for part in parts(launcher, grid) for call in _cdivs(part))
    return [n for rest in found for one in rest for n in constants(one, value) if n is one]


def _blocks_of(launcher: FunctionNode, grid: ast.expr) -> Iterator[ast.expr]:
    """What the grid divides by, rounding up."""
    for node in (n for part in parts(launcher, grid) for n in ast.walk(part)):
        match node:
            case ast.Call(args=[_, block]) if node in _cdivs(node):
                yield block
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=block) if _rounds_up(
                left, ast.unparse(block)
            ):
                yield block
            case ast.Call(func=func, args=[ast.BinOp(op=ast.Div(), right=block)]) if (
                ast.unparse(func).split(".")[-1] == "ceil"
            ):
                yield block


def _rounds_up(left: ast.expr, block: str) -> bool:
    """``extent + block - 1`` or ``extent + (block - 1)``."""
    match left:
        case ast.BinOp(
            op=ast.Sub(), left=ast.BinOp(op=ast.Add(), right=right), right=ast.Constant(value=1)
        ):
            return ast.unparse(right) == block
        case ast.BinOp(
            op=ast.Add(), right=ast.BinOp(op=ast.Sub(), left=right, right=ast.Constant(value=1))
        ):
            return ast.unparse(right) == block
    return False


def parts(launcher: FunctionNode, node: ast.expr) -> Iterator[ast.expr]:
    """The expression, and those that names of it stand for."""
    waiting, seen = [node], set[str]()
    while waiting:
        yield (one := waiting.pop())
        for name in names_in(one) - seen:
            seen.add(name)
            value = only_value(launcher, name)
            waiting += [value] if value is not None else []


def _names_of(launcher: FunctionNode, node: ast.expr) -> set[str]:
    return set[str]().union(*map(names_in, parts(launcher, node)))


def _cdivs(grid: ast.expr) -> list[ast.Call]:
    return [
        n
        for n in ast.walk(grid)
        if isinstance(n, ast.Call) and ast.unparse(n.func).endswith("cdiv")
    ]


def constants(node: ast.AST, value: int) -> list[ast.expr]:
    """The literals of that whole number in an expression; True is none of 1."""
    return [
        n
        for n in ast.walk(node)
        if isinstance(n, ast.Constant)
        and n.value == value
        and isinstance(n.value, int)
        and n.value is not True
    ]
