"""A kernel as a record without text (records.KernelView): what it does, in which blocks, how it is
launched.

How many elements a load takes is the product of the ranges that its address comes from. Standard
library only. Not covered: blocks whose size is computed in the kernel."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import TypeGuard

from kernel_lsp.records import Form, KernelView, Layout
from kernel_lsp.rewrite.kernels.launched import Blocks, Pointer
from kernel_lsp.rewrite.kernels.places import language
from kernel_lsp.rewrite.kernels.source import assignments, find_calls, operand, sources
from kernel_lsp.rewrite.kernels.tiles import Tiles
from kernel_lsp.rewrite.kernels.view import Kernel

MAX_OPERATIONS = 64
LOOP, END = "loop", "."
MADE = ("zeros", "full")


def describe_launch(kernel: Kernel) -> KernelView:
    """The first launch of this state."""
    launch = kernel.launched[0]
    accesses = [*find_calls(kernel.function, "load"), *find_calls(kernel.function, "store")]
    largest = max(accesses, key=lambda call: _count_elements(kernel, call), default=None)
    return KernelView(
        operations=tuple(_operations(kernel))[:MAX_OPERATIONS],
        tensors=tuple(_forms(kernel)),
        constants={n: v for n, v in launch.constants.items() if _whole(v)},
        options=dict(launch.options),
        programs=None if launch.grid is None else math.prod(launch.grid),
        loaded=_count_elements(kernel, largest) if largest else 1,
        consecutive=_consecutive(kernel, largest) if largest else 1,
        held=max(
            (
                _count_held(kernel, call)
                for name in MADE
                for call in find_calls(kernel.function, name)
            ),
            default=0,
        ),
        masked=sum(_says(call, "mask") for call in accesses),
        evicting=sum(_says(call, "eviction_policy") for call in accesses),
        ahead=max((_stages(call) for call in find_calls(kernel.function, "range")), default=1),
    )


def _operations(kernel: Kernel) -> Iterator[str]:
    tl = language(kernel)

    def walk(node: ast.AST) -> Iterator[str]:
        loops = isinstance(node, ast.For | ast.While)
        if loops:
            yield LOOP
        for child in ast.iter_child_nodes(node):
            yield from walk(child)
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if owner == tl:
                yield name
            case ast.Call(func=ast.Attribute(attr="load" | "store" as name)):
                yield name
        if loops:
            yield END

    for statement in kernel.function.body:
        yield from walk(statement)


def _forms(kernel: Kernel) -> Iterator[Form]:
    for value in kernel.launched[0].arguments.values():
        one = value.of if isinstance(value, Blocks) else value
        if isinstance(one, Pointer):
            layout = Layout.CONTIGUOUS if one.contiguous else Layout.STRIDED
            yield Form(dtype=one.dtype, shape=one.shape, layout=layout)


def _count_elements(kernel: Kernel, access: ast.Call) -> int:
    """Elements that it reads or writes; a name that stands for several ranges, of two loops say,
    counts once."""
    address = operand(access, 0, "pointer")
    if address is None:
        return 1
    found = [_extent(kernel, one) for one in find_calls(address, "arange")]
    for name in sources(kernel.function, address):
        values = assignments(kernel.function).get(name, ())
        found.append(
            max(
                (_extent(kernel, one) for v in values for one in find_calls(v, "arange")), default=1
            )
        )
    return math.prod(found)


def _consecutive(kernel: Kernel, access: ast.Call) -> int:
    """Elements beside each other that it reads or writes, as far as its address tells."""
    address = operand(access, 0, "pointer")
    if address is None:
        return 1
    alone = [
        product[0]
        for product, times in Tiles(kernel).terms(address).items()
        if len(product) == 1 and times == 1
    ]
    lanes = [atom.node for atom in alone if isinstance(atom.node, ast.Call) and "lane" in atom.kind]
    plain = [
        atom.node for atom in alone if isinstance(atom.node, ast.Call) and atom.kind == "arange"
    ]
    return max((_extent(kernel, one) for one in (*lanes, *plain)), default=1)


def _count_held(kernel: Kernel, made: ast.Call) -> int:
    shape = operand(made, 0, "shape")
    sizes = shape.elts if isinstance(shape, ast.Tuple | ast.List) else [shape] if shape else []
    return math.prod(_size(kernel, size) for size in sizes)


def _extent(kernel: Kernel, ranged: ast.Call) -> int:
    end = operand(ranged, 1, "end")
    return _size(kernel, end) if end is not None else 1


def _size(kernel: Kernel, node: ast.expr) -> int:
    """Of a constant; 1 where it is computed."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            known = kernel.launched[0].constants.get(name)
            return known if _whole(known) else 1
    return 1


def _says(access: ast.Call, name: str) -> bool:
    """A mask may stand without its name: a load's second argument, a store's third."""
    place = {"mask": 2 if _is_store(access) else 1}.get(name, len(access.args))
    return operand(access, place, name) is not None


def _is_store(access: ast.Call) -> bool:
    return isinstance(access.func, ast.Attribute) and access.func.attr == "store"


def _stages(ranged: ast.Call) -> int:
    value = operand(ranged, len(ranged.args), "num_stages")
    return value.value if isinstance(value, ast.Constant) and _whole(value.value) else 1


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
