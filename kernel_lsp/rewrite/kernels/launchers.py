"""What a launcher's text says of what it passes: tensors that it makes and that lie apart, sizes,
the grid.

Standard library only. Not covered: what one call of it was seen to pass (launching.py).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.rewrite.kernels.places import argument, passed_arguments
from kernel_lsp.rewrite.kernels.source import (
    grid_said,
    is_set,
    names_in,
    only_value,
    sources,
)
from kernel_lsp.rewrite.kernels.view import Kernel

ALLOCATIONS = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("empty", "zeros", "ones", "full")
    for prefix, suffix in (("torch.", ""), ("torch.", "_like"), ("new_", ""))
)
"""Functions of torch, and methods of tensors, that make a tensor whose memory nothing else has."""


def repeatable(node: ast.expr | None) -> bool:
    """Its text may be evaluated once more: names, numbers, sizes of tensors and arithmetic of
    them."""
    match node:
        case ast.Name() | ast.Constant():
            return True
        case ast.Attribute(value=inner, attr="shape"):
            return repeatable(inner)
        case ast.Subscript(value=inner, slice=index):
            return repeatable(inner) and repeatable(index)
        case ast.BinOp(left=left, right=right):
            return repeatable(left) and repeatable(right)
        case ast.UnaryOp(operand=inner):
            return repeatable(inner)
        case ast.Call(
            func=ast.Attribute(value=inner, attr="size" | "numel" | "stride"),
            args=args,
            keywords=[],
        ):
            return repeatable(inner) and all(repeatable(a) for a in args)
        case ast.Call(
            func=ast.Attribute(value=ast.Name(), attr="cdiv") | ast.Name(id="cdiv"),
            args=args,
            keywords=[],
        ):
            return all(repeatable(a) for a in args)
    return False


def is_allocation(node: ast.expr | None) -> bool:
    """Whether the expression makes a new tensor, and does not write into a given one."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) as function, keywords=keywords):
            written = name if name.startswith("new_") else ast.unparse(function)
            return written in ALLOCATIONS and all(k.arg not in ("out", None) for k in keywords)
    return False


def allocates(launcher: FunctionNode, name: str) -> bool:
    """The launcher makes the tensor of this name, and the name never stands for another."""
    return is_allocation(only_value(launcher, name))


def apart(launcher: FunctionNode, one: ast.expr, other: ast.expr) -> bool:
    """Two tensors of the launcher never meet in memory: it made one, and the other does not come
    from that. Observed tensors would not say it: a launcher that writes in place is observed on
    copies."""
    return any(
        isinstance(here, ast.Name)
        and allocates(launcher, here.id)
        and here.id not in sources(launcher, there)
        for here, there in ((one, other), (other, one))
    )


def separate(kernel: Kernel, one: str, other: str) -> bool:
    """Whether two parameters of the kernel get tensors that lie apart, as `apart` says of
    values."""
    here, there = (argument(kernel, name) for name in (one, other))
    return here is not None and there is not None and apart(kernel.launcher, here, there)


def settle_names(launcher: FunctionNode, node: ast.expr) -> ast.expr:
    """An expression of the launcher with its sizes' names put in, and sizes of a tensor made like
    another as that one's, so that equal texts are equal values."""
    return _Settled(launcher).visit(copy.deepcopy(node))


class _Settled(ast.NodeTransformer):
    def __init__(self, launcher: FunctionNode) -> None:
        self.launcher = launcher

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The value of a name that is bound once and can be computed again; else the name."""
        value = only_value(self.launcher, node.id)
        return self.visit(copy.deepcopy(value)) if value is not None and repeatable(value) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """A size of `empty_like(x)` as that of x."""
        if node.attr in ("shape", "numel", "size") and isinstance(node.value, ast.Name):
            match only_value(self.launcher, node.value.id):
                case ast.Call(
                    func=ast.Attribute(attr="empty_like" | "zeros_like"), args=[ast.Name() as like]
                ):
                    return self.visit(ast.Attribute(like, node.attr, ast.Load()))
        self.generic_visit(node)
        return node


def grid(
    launcher: FunctionNode, function: FunctionNode, call: ast.Call, most: int = 2
) -> tuple[str, ...] | None:
    """A launch's extents as expressions of the launcher, ``meta["BLOCK"]`` as what is passed for
    BLOCK; None: they cannot be had, or are more than ``most``."""
    if not isinstance(call.func, ast.Subscript):
        return None  # it is said elsewhere, and may be more than one launch's
    said = grid_said(launcher, call.func.slice)
    meta = None
    if isinstance(said, ast.Lambda) and len(said.args.args) == 1:
        meta, said = said.args.args[0].arg, said.body
    given = passed_arguments(function, call)
    if (
        not isinstance(said, ast.Tuple | ast.List)
        or not 1 <= len(said.elts) <= most
        or given is None
    ):
        return None
    made = [_Given(meta, given).visit(copy.deepcopy(extent)) for extent in said.elts]
    known = all(repeatable(extent) and steady(launcher, names_in(extent)) for extent in made)
    return tuple(map(ast.unparse, made)) if known else None


def steady(launcher: FunctionNode, names: set[str]) -> bool:
    """Sizes of these mean the same anywhere in the launcher: a name is set once, an argument
    never, except to its contiguous self."""
    arguments = {a.arg for a in ast.walk(launcher.args) if isinstance(a, ast.arg)}
    kept = {
        id(n.targets[0])
        for n in ast.walk(launcher)
        if isinstance(n, ast.Assign)
        and ast.unparse(n.value) == f"{ast.unparse(n.targets[0])}.contiguous()"
    }
    stored = [
        n.id
        for n in ast.walk(launcher)
        if isinstance(n, ast.Name) and is_set(n) and id(n) not in kept
    ]
    return all(stored.count(n) <= (0 if n in arguments else 1) for n in names)


class _Given(ast.NodeTransformer):
    def __init__(self, meta: str | None, passed: Mapping[str, ast.expr]) -> None:
        self.meta, self.passed = meta, passed

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """What the launch passes for `META["NAME"]`; starred where it passes nothing."""
        match node:
            case ast.Subscript(value=ast.Name(id=self.meta), slice=ast.Constant(value=str(key))):
                return self.passed.get(key, ast.Starred(node, ast.Load()))
        return self.generic_visit(node)
