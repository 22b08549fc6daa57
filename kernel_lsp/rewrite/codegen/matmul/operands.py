"""Matrix products of the graph in one normal form: rows of the left factor times columns of the
right.

Covered: linear, mm, bmm, addmm with factors of 1, einsum (einsum.py), and matmul whose
right factor is one matrix or has the batch dimensions of the left. Not covered: vectors as
factors, broadcast batch dimensions, and products without elements."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, op_name
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.codegen.matmul import einsum
from kernel_lsp.rewrite.codegen.matmul.einsum import EinsumViews
from kernel_lsp.rewrite.graph import argument


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulProduct:
    """``out[batch, row, col] = sum over inner of left[batch, row, inner] * right[batch, col,
    inner]``."""

    node: fx.Node
    left: fx.Node
    right: fx.Node
    added: fx.Node | None
    """Bias of linear, first argument of addmm."""
    batched: bool
    """The right factor differs from batch to batch. Decided by its rank: sizes may change."""
    transposed: bool
    """The right factor holds one row for each column of the product, as the weight of linear
    does."""
    batch: int
    rows: int
    cols: int
    inner: int
    left_half: str = ""
    """``lower`` or ``upper`` where the factor comes straight from tril or triu: the rest is
    zero."""
    right_half: str = ""
    kept: fx.Node | None = None
    """tril or triu of the product, its only reader."""
    views: EinsumViews | None = None
    """How an einsum's tensors become the factors."""
    col_dims: int = 1
    """Dimensions of the result that its columns enumerate."""
    order: tuple[int, ...] = ()
    """The result's dimensions as they lie in memory, outermost first; empty for a contiguous
    one."""
    copied: tuple[fx.Node, ...] = ()
    """Factors of an einsum that are laid out anew before, by eager too."""

    @property
    def kept_half(self) -> str:
        """Which triangle of the result is kept, `lower` or `upper`; "": all of it."""
        return half_of(self.kept) if self.kept is not None else ""

    @property
    def triangular(self) -> bool:
        """Whether a triangle of a factor is zero, or one of the result is not kept."""
        return bool(self.left_half or self.right_half or self.kept_half)

    @property
    def flops(self) -> float:
        """Floating-point operations of the whole product, triangles not subtracted."""
        return 2.0 * self.batch * self.rows * self.cols * self.inner

    @property
    def along_inner(self) -> bool:
        """Neighbors in memory of both factors are neighbors in the inner dimension."""
        left, right = self.left.meta["val"].stride(), self.right.meta["val"].stride()
        return self.views is None and left[-1] == 1 and right[-1 if self.transposed else -2] == 1

    def left_rows(self, name: str, other: str) -> str:
        """Source of the left factor as [batch, rows, inner], or [rows, inner] where there is one
        batch."""
        if self.views is not None:
            return self.views.left.format(left=name, right=other)
        rank = len(shape_of(self.left))
        if self.batched:
            return name if rank == 3 else f"{name}.flatten(0, -3)"
        return name if rank == 2 else f"{name}.flatten(0, -2)"

    def right_columns(self, name: str, other: str) -> str:
        """Source of the right factor as [(batch,) cols, inner]; ``other``: the left one in its
        form."""
        if self.views is not None:
            return self.views.right.format(left=other, right=name)
        if not self.batched:
            return name if self.transposed else f"{name}.T"
        flat = name if len(shape_of(self.right)) == 3 else f"{name}.flatten(0, -3)"
        return f"{flat}.transpose(1, 2)"

    def shape(self, left: str, right: str) -> str:
        """Source of the result's shape."""
        if self.views is not None:
            return self.views.shape.format(left=left, right=right)
        cols = f"{right}.shape[0]" if self.transposed else f"{right}.shape[-1]"
        if len(shape_of(self.left)) == 2:
            return f"({left}.shape[0], {cols})"
        return f"(*{left}.shape[:-1], {cols})"


@dataclass(frozen=True, slots=True)
class _MatmulOperands:
    """What a call multiplies, and what it adds."""

    left: fx.Node
    right: fx.Node
    added: fx.Node | None = None
    transposed: bool = False


def product_of(node: fx.Node) -> MatmulProduct | None:
    """The product at the node; None when it is no matrix product that is generated."""
    if op_name(node) == "einsum":
        return _einsum(node)
    factors = _factors_of(node)
    return None if factors is None or not _is_plain(node, factors) else _normal(node, factors)


def _factors_of(node: fx.Node) -> _MatmulOperands | None:
    match op_name(node):
        case "linear":
            x, weight, bias = (argument(node, name) for name in ("input", "weight", "bias"))
            return _MatmulOperands(x, weight, bias, transposed=True)
        case "addmm" if argument(node, "alpha") == 1 and argument(node, "beta") == 1:
            added, left, right = (argument(node, name) for name in ("self", "mat1", "mat2"))
            return _MatmulOperands(left, right, added)
        case "mm" | "bmm" | "matmul":
            return _MatmulOperands(node.args[0], node.args[1])
    return None


def _is_plain(node: fx.Node, factors: _MatmulOperands) -> bool:
    """Matrices of one dtype, with elements; the right one alone, or in the same batches."""
    first, second = shape_of(factors.left), shape_of(factors.right)
    if len(first) < 2 or len(second) < 2 or (len(second) > 2 and first[:-2] != second[:-2]):
        return False
    items = (node, factors.left, factors.right, factors.added)
    tensors = [item.meta["val"] for item in items if item is not None]
    if len({value.dtype for value in tensors}) != 1 or tensors[0].dtype not in FLOATS:
        return False
    return 0 not in (*first, *second) and bool(tensors[0].is_contiguous())


def _normal(node: fx.Node, factors: _MatmulOperands) -> MatmulProduct:
    first, second, out = (shape_of(item) for item in (factors.left, factors.right, node))
    batched = len(second) > 2
    square = batched or len(first) == 2  # otherwise rows of several matrices lie below each other
    batch = math.prod(out[:-2]) if batched else 1
    can_keep = square and not batched and factors.added is None
    return MatmulProduct(
        node=node,
        left=factors.left,
        right=factors.right,
        added=factors.added,
        batched=batched,
        transposed=factors.transposed,
        batch=batch,
        rows=math.prod(out[:-1]) // batch,
        cols=out[-1],
        inner=first[-1],
        left_half=half_of(factors.left) if square else "",
        right_half=half_of(factors.right) if not factors.transposed else "",
        kept=_find_kept(node) if can_keep else None,
    )


def _einsum(node: fx.Node) -> MatmulProduct | None:
    found = einsum.parse_einsum(node)
    if found is None:
        return None
    left, views, labels = found.left, found.views, found.labels
    values = [item.meta["val"] for item in (node, left, found.right)]
    if (
        len({value.dtype for value in values}) != 1
        or values[0].dtype not in FLOATS
        or not values[0].numel()
    ):
        return None
    batch, rows, cols = einsum.sizes(found, values[0])
    return MatmulProduct(
        node=node,
        left=left,
        right=found.right,
        added=None,
        batched=bool(labels.batch),
        transposed=False,
        batch=batch,
        rows=rows,
        cols=cols,
        inner=math.prod(shape_of(left))
        // (rows * (batch if views.left.find(".expand") < 0 else 1)),
        views=views,
        col_dims=len(labels.cols),
        order=found.order if found.order != tuple(range(len(found.order))) else (),
        copied=found.copied,
    )


def half_of(node: fx.Node) -> str:
    """``lower`` or ``upper`` for the main triangle that the node kept, seen through a
    transposition."""
    if op_name(node) in ("numpy_T", "t") and half_of(node.args[0]):
        return {"lower": "upper", "upper": "lower"}[half_of(node.args[0])]
    if op_name(node) in ("tril", "triu") and argument(node, "diagonal") == 0:
        return "lower" if op_name(node) == "tril" else "upper"
    return ""


def _find_kept(node: fx.Node) -> fx.Node | None:
    readers = list(node.users)
    return (
        readers[0]
        if len(readers) == 1 and half_of(readers[0]) and op_name(readers[0])[:3] == "tri"
        else None
    )
