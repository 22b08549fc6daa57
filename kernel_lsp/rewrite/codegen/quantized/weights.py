"""Weights that a program makes of whole numbers: which operations lead from the stored tensor to the
matrix that a linear layer multiplies with.

Covered, from the outside in, each but the cast optional: a reshape to two dimensions, a product
with scales, a difference with zero points or a number, the cast, a reshape to groups, and two
numbers of 4 bits in a byte: ``stack((p & 15, p >> 4), -1)``, of unsigned bytes, each less a number
where it is signed by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, op_name
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.graph import argument

RESHAPES = ("view", "reshape", "flatten", "_unsafe_view", "unflatten")
CASTS = ("to", "_to_copy")
WHOLE = (torch.int8, torch.uint8)


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedWeight:
    """``(stored - zero) * scale``, one scale for each row or for each group of a row."""

    stored: fx.Node
    nodes: tuple[fx.Node, ...]
    """The operations from there to the matrix."""
    is_packed: bool
    scale: fx.Node | None = None
    zero: fx.Node | None = None
    shift: float = 0.0
    """A number that is the zero point of all."""
    groups: int = 1


def quantized(node: Any) -> QuantizedWeight | None:
    """What the matrix is made of; None where it is no such weight."""
    if not isinstance(node, fx.Node) or node.meta["val"].dim() != 2:
        return None
    shape, seen = shape_of(node), list[fx.Node]()
    node = _behind(node, RESHAPES, seen)
    scaled = node.meta["val"]
    scale, node = _operand(node, "mul", shape[0], seen)
    zero, node = _operand(node, "sub", shape[0], seen)
    if op_name(node) not in CASTS or node.meta["val"].dtype not in FLOATS:
        return None
    if (groups := _groups((scale, zero), scaled, shape[0])) is None:
        return None
    node = _behind(_behind(node, CASTS, seen), RESHAPES, seen)
    packed = _unpacked(node, seen)
    stored, shift = packed if packed is not None else (node, 0.0)
    if not _is_stored(stored, shape, is_packed=packed is not None):
        return None
    return QuantizedWeight(
        stored=stored,
        nodes=tuple(seen),
        is_packed=packed is not None,
        scale=scale,
        zero=zero if isinstance(zero, fx.Node) else None,
        shift=shift + (0.0 if zero is None or isinstance(zero, fx.Node) else float(zero)),
        groups=groups,
    )


def _behind(node: fx.Node, names: Sequence[str], seen: list[fx.Node]) -> fx.Node:
    if op_name(node) not in names:
        return node
    seen.append(node)
    found: fx.Node = node.args[0]
    return found


def _groups(beside: Sequence[Any], scaled: torch.Tensor, rows: int) -> int | None:
    """How many numbers each row has of scales and zero points; None where the two differ in it, or
    all groups have the same."""
    given = [item for item in beside if isinstance(item, fx.Node)]
    groups = int(scaled.shape[1]) if given and scaled.dim() == 3 else 1
    fit = all(shape_of(item) in ((rows, 1), (rows, groups, 1)) for item in given)
    return groups if fit else None


def _operand(node: fx.Node, name: str, rows: int, seen: list[fx.Node]) -> tuple[Any, fx.Node]:
    """What the node multiplies with, or subtracts, and what from; (None, the node) where it does
    not."""
    if op_name(node) != name or len(node.args) != 2 or node.kwargs:
        return None, node
    left, right = node.args
    rank = node.meta["val"].dim()
    if name == "mul" and _is_of_rows(left, rows, rank):
        left, right = right, left
    number = isinstance(right, (int, float)) and name == "sub"
    if not isinstance(left, fx.Node) or not (number or _is_of_rows(right, rows, rank)):
        return None, node
    seen.append(node)
    return right, left


def _is_of_rows(node: Any, rows: int, rank: int) -> bool:
    """One number for each row of the weight, or for each group of a row: contiguous, and not
    broadcast to what it meets by other dimensions."""
    if not isinstance(node, fx.Node):
        return False
    value = node.meta["val"]
    few = value.dim() == rank and value.shape[0] == rows and value.shape[-1] == 1
    return bool(few and value.is_contiguous() and value.dtype in (*FLOATS, *WHOLE))


def _is_stored(node: fx.Node, shape: Sequence[int], *, is_packed: bool) -> bool:
    """Whether the rows of the tensor are those of a matrix of that shape."""
    value = node.meta["val"]
    kept = (shape[0], shape[1] // 2 if is_packed else shape[1])
    kinds = (torch.uint8,) if is_packed else WHOLE  # >> of a signed byte keeps its sign
    return value.dtype in kinds and tuple(value.shape) == kept and value.is_contiguous()


def _unpacked(node: fx.Node, seen: list[fx.Node]) -> tuple[fx.Node, float] | None:
    """The bytes of which the node is a reshape of both halves side by side, and what is subtracted
    from each."""
    if op_name(node) != "stack" or len(node.args[0]) != 2:
        return None
    if int(argument(node, "dim", 0)) % node.meta["val"].dim() != 2:
        return None
    made = list[fx.Node]()
    low, high = (_nibble(half, made) for half in node.args[0])
    if low is None or high is None or (low[0], low[2]) != (high[0], high[2]):
        return None
    if (low[1], high[1]) != ("and", "shift"):
        return None
    seen += [node, *made]
    return low[0], low[2]


def _nibble(node: fx.Node, seen: list[fx.Node]) -> tuple[fx.Node, str, float] | None:
    """The bytes, which half of them, and the number that is subtracted from it."""
    shift = 0.0
    if op_name(node) == "sub" and isinstance(node.args[1], int) and not node.kwargs:
        if not node.meta["val"].dtype.is_signed:  # it would wrap
            return None
        shift, node = float(node.args[1]), _behind(node, ("sub",), seen)
    node = _behind(node, CASTS, seen)
    kind = {"__and__": "and", "bitwise_and": "and", "__rshift__": "shift",
            "bitwise_right_shift": "shift"}.get(op_name(node), "")  # fmt: skip
    if not kind or node.args[1] != {"and": 15, "shift": 4}[kind]:
        return None
    seen.append(node)
    return node.args[0], kind, shift
