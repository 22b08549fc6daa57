"""Dimensions of attention as the labels that they are made of, through products, views and
permutations.

A flattened dimension is several labels; a view that divides a label in two divides it everywhere.
So it is known which part of a program's dimension is a head, a query or a key, whatever shape it
has just then. Not covered: einsum without ``->``, with a label twice in one tensor, or with more
than two tensors."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.graph import argument

PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum")
TURNS = ("transpose", "permute", "mT", "t", "numpy_T", "movedim", "swapaxes", "swapdims")
REGROUPS = ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze")


@dataclass(eq=False, slots=True)
class Label:
    """One axis that the program never takes apart, or the two that a view made of it."""

    size: int
    parts: tuple[Label, Label] | None = None


LabeledDim: TypeAlias = tuple[Label, ...]
"""What a dimension is made of, outermost first; nothing for one that is broadcast."""
LabeledDims: TypeAlias = tuple[LabeledDim, ...]


def finest(dim: LabeledDim) -> LabeledDim:
    """The labels as divided by now."""
    return tuple(
        part for label in dim for part in ((label,) if label.parts is None else finest(label.parts))
    )


def flat(dims: LabeledDims) -> LabeledDim:
    """One dimension that is all of these, the last label fastest."""
    return finest(tuple(label for dim in dims for label in dim))


def size_of(dim: LabeledDim) -> int:
    """The number of elements along a dimension."""
    found = 1
    for label in dim:
        found *= label.size
    return found


# --- layout ------------------------------------------------------------------------------


def move_dims(node: fx.Node, dims: LabeledDims) -> LabeledDims | None:
    """The dimensions after an operation that moves no element to another label; None for any
    other."""
    name = op_name(node)
    if name in TURNS:
        return tuple(dims[i] for i in order_of(node))
    if name == "unsqueeze":
        at = int(argument(node, "dim")) % (len(dims) + 1)
        return (*dims[:at], (), *dims[at:])
    if name in REGROUPS:
        return regroup_dims(dims, tuple(node.meta["val"].shape))
    return None


def order_of(node: fx.Node) -> list[int]:
    """Which dimension of its operand stands at each place: asked of the operation itself."""
    rank = node.args[0].meta["val"].dim()
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        numbered = torch.empty(tuple(range(1, rank + 1)), device="meta")
        made = node.target(numbered, *node.args[1:], **node.kwargs)
    return [int(size) - 1 for size in made.shape]


def _divide(label: Label, size: int, product: int) -> tuple[Label, Label] | None:
    """The label in two, the outer of which makes a size of the product; None where it cannot be."""
    outer, rest = divmod(size, product)
    if rest or label.size % outer:
        return None
    label.parts = Label(outer), Label(label.size // outer)
    return label.parts


def regroup_dims(dims: LabeledDims, shape: Sequence[int]) -> LabeledDims | None:
    """The labels in dimensions of these sizes; a label across two of them is divided. None where
    that cannot be done."""
    rest, found = list(flat(dims)), list[LabeledDim]()
    for size in shape:
        run, product = list[Label](), 1
        while product < size or (size == 1 and rest and not run):
            if not rest or (label := rest.pop(0)).size == 0:
                return None
            if product * label.size > size:
                parts = _divide(label, size, product)
                if parts is None:
                    return None
                label, other = parts
                rest.insert(0, other)
            run.append(label)
            product *= label.size
        if product != size:
            return None
        found.append(tuple(run))
    if any(label.size != 1 for label in rest):
        return None
    return ((*rest, *found[0]), *found[1:]) if rest and found else tuple(found)


# --- products ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LabeledProduct:
    """A product of two tensors, each dimension by its labels."""

    tensors: tuple[fx.Node, fx.Node]
    factors: tuple[LabeledDims, LabeledDims]
    out: LabeledDims


def factors_of(node: Any) -> tuple[fx.Node, fx.Node] | None:
    """The two tensors that a node multiplies; None when it is no product of this kind."""
    name = op_name(node)
    if name == "einsum":
        found = tuple(argument(node, "tensors"))
    elif name == "baddbmm":
        found = node.args[1:3]
    else:
        found = node.args[:2] if name in PRODUCTS else ()
    if len(found) != 2 or any(item.meta["val"].dim() < 2 for item in found):
        return None
    return found[0], found[1]


def product(node: fx.Node, known: tuple[int, LabeledDims] | None = None) -> LabeledProduct | None:
    """The two factors and the result with their dimensions as labels; None: the node is no product.
    ``known``: index and dimensions of a factor whose labels exist already."""
    tensors = factors_of(node)
    names = None if tensors is None else _names(node, tensors)
    if tensors is None or names is None:
        return None
    table = dict[str, LabeledDim]()
    if known is not None:
        for name, dim in zip(names[known[0]], known[1], strict=True):
            if name is None:
                return None
            table[name] = dim
    for tensor, own in zip(tensors, names[:2], strict=True):
        for name, size in zip(own, tensor.meta["val"].shape, strict=True):
            if name is not None:
                table.setdefault(name, (Label(int(size)),))
    left, right, out = (tuple(table[n] if n is not None else () for n in own) for own in names)
    return LabeledProduct(tensors=tensors, factors=(left, right), out=out)


DimNames: TypeAlias = list[str | None]
"""One for each dimension; None where a factor is broadcast."""


def _names(
    node: fx.Node, tensors: tuple[fx.Node, fx.Node]
) -> tuple[DimNames, DimNames, DimNames] | None:
    shapes = [tuple(tensor.meta["val"].shape) for tensor in tensors]
    texts = _letters(node, shapes) if op_name(node) == "einsum" else _rows_and_columns(shapes)
    if texts is None:
        return None
    sizes = dict[str, int]()
    for text, shape in zip(texts[:2], shapes, strict=True):
        for name, size in zip(text, shape, strict=True):
            sizes[name] = max(sizes.get(name, 1), size)
    left, right = (
        [name if size == sizes[name] else None for name, size in zip(text, shape, strict=True)]
        for text, shape in zip(texts[:2], shapes, strict=True)
    )
    return left, right, list(texts[2])


def _rows_and_columns(shapes: list[tuple[int, ...]]) -> tuple[list[str], list[str], list[str]]:
    """A batch dimension is called by its distance from the end: ranks may differ."""
    left, right = ([f"batch {i}" for i in range(len(shape), 2, -1)] for shape in shapes)
    lead = max(left, right, key=len)
    return [*left, "row", "inner"], [*right, "inner", "column"], [*lead, "row", "column"]


def _letters(node: fx.Node, shapes: list[tuple[int, ...]]) -> tuple[str, str, str] | None:
    """The equation's three parts, with letters for an ellipsis."""
    given, arrow, out = str(argument(node, "equation")).replace(" ", "").partition("->")
    names = given.split(",")
    if not arrow or len(names) != 2:
        return None
    hidden = [
        len(shape) - len(name.replace("...", "")) for name, shape in zip(names, shapes, strict=True)
    ]
    free = "".join(letter for letter in string.ascii_letters if letter not in given)[: max(hidden)]
    spelled = [
        name.replace("...", free[len(free) - count :])
        for name, count in zip(names, hidden, strict=True)
    ]
    left, right, result = *spelled, out.replace("...", free)
    whole = all(len(name) == len(shape) for name, shape in zip(spelled, shapes, strict=True))
    once = all(len(set(name)) == len(name) and name.isalpha() for name in (left, right, result))
    return (left, right, result) if whole and once and set(result) <= set(left + right) else None
