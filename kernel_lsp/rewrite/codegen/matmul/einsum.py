"""An einsum of two tensors that is one matrix product for each batch, seen through views where it
can be.

Eager multiplies with bmm and permutes what that has written, so the result is rarely contiguous:
its dimensions lie in memory as batch, rows, columns, in whatever order the equation names them.
``EinsumLabels`` are those in memory (``order``), where rows belong to one tensor alone and columns to
the other alone. A factor is copied only where no batch makes a view of it; eager copies more of
them. Not covered: repeated labels, labels that one tensor broadcasts, and sums over one tensor
alone."""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core import strides
from kernel_lsp.rewrite.graph import argument


@dataclass(frozen=True, kw_only=True, slots=True)
class Equation:
    """Labels of the two tensors and of the result, each once."""

    left: str
    right: str
    out: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EinsumLabels:
    """Which labels of the result are what; ``swapped`` when the rows belong to the second
    tensor."""

    batch: str
    rows: str
    cols: str
    inner: str
    swapped: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class EinsumViews:
    """Source of both factors as [batch, rows or columns, inner] and of the result's shape."""

    left: str
    right: str
    shape: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Contraction:
    """An einsum as a product."""

    left: fx.Node
    right: fx.Node
    labels: EinsumLabels
    views: EinsumViews
    order: tuple[int, ...]
    """The result's dimensions as they lie in memory, outermost first."""
    copied: tuple[fx.Node, ...]
    """Factors that are laid out anew."""


def parse_einsum(node: fx.Node) -> Contraction | None:
    """The contraction that the einsum is; None when it is no product."""
    tensors = list(argument(node, "tensors"))
    equation = _equation(str(argument(node, "equation")), [_rank(tensor) for tensor in tensors])
    if equation is None or not _agree(equation, tensors):
        return None
    order = strides.order_of([node.meta["val"]], _rank(node))
    if not node.meta["val"].permute(order).is_contiguous():
        return None
    laid_out = "".join(equation.out[dim] for dim in order)
    found = [
        _contraction(tensors, equation, labels, order)
        for labels in _labelings(equation.left, equation.right, laid_out)
    ]
    return min(found, key=_elements_copied, default=None)


def _elements_copied(contraction: Contraction) -> int:
    return sum(node.meta["val"].numel() for node in contraction.copied)


def _equation(text: str, ranks: Sequence[int]) -> Equation | None:
    """With a label for each dimension of an ellipsis, and the result that an equation without one
    implies."""
    given, arrow, out = text.replace(" ", "").partition("->")
    names = given.split(",")
    if len(names) != 2 or len(ranks) != 2:
        return None
    dots = _ellipsis_labels(text, names, ranks)
    if dots is None:
        return None
    out = out if arrow else _implied_result(given)
    left, right, out = (name.replace("...", dots) for name in (*names, out))
    apart = all(name.isalpha() and len(set(name)) == len(name) for name in (left, right, out))
    return Equation(left=left, right=right, out=out) if apart else None


def _ellipsis_labels(text: str, names: Sequence[str], ranks: Sequence[int]) -> str | None:
    """Letters for the dimensions of an ellipsis; None: one has dimensions that the other has
    not."""
    pairs = zip(names, ranks, strict=True)
    counts = {rank - len(name) + 3 for name, rank in pairs if "..." in name}
    free = [letter for letter in string.ascii_letters if letter not in text]
    if len(counts) > 1 or any(not 0 <= count <= len(free) for count in counts):
        return None
    return "".join(free[: sum(counts)])


def _implied_result(given: str) -> str:
    """Of an equation without one: what stands once, in the order of the alphabet."""
    letters = sorted(set(given) - {",", "."})
    dots = "..." if "..." in given else ""
    return dots + "".join(letter for letter in letters if given.count(letter) == 1)


def _agree(equation: Equation, tensors: Sequence[fx.Node]) -> bool:
    """A label has one size: torch would broadcast a size of 1."""
    first, second = (tuple(tensor.meta["val"].shape) for tensor in tensors)
    sizes = dict(zip(equation.left, first, strict=True))
    return all(
        sizes.get(label, size) == size for label, size in zip(equation.right, second, strict=True)
    )


def _rank(node: fx.Node) -> int:
    return int(node.meta["val"].dim())


def _contraction(
    tensors: Sequence[fx.Node], equation: Equation, labels: EinsumLabels, order: tuple[int, ...]
) -> Contraction:
    left, right, left_name, right_name = *tensors, equation.left, equation.right
    if labels.swapped:
        left, right, left_name, right_name = right, left, right_name, left_name
    first = _view("{left}", left_name, labels, labels.rows)
    second = _view("{right}", right_name, labels, labels.cols)
    if labels.batch and labels.batch[0] not in left_name:
        batch = " * ".join(_size(label, left_name, right_name) for label in labels.batch)
        first += f".expand({batch}, -1, -1)"
    if labels.batch and labels.batch[0] not in right_name:
        second += ".expand({left}.shape[0], -1, -1)"
    sizes = [_size(equation.out[dim], left_name, right_name) for dim in order]
    factors = ((left, left_name, labels.rows), (right, right_name, labels.cols))
    return Contraction(
        left=left,
        right=right,
        labels=labels,
        views=EinsumViews(left=first, right=second, shape=f"({', '.join(sizes)})"),
        order=order,
        copied=tuple(node for node, name, own in factors if _is_copied(node, name, labels, own)),
    )


def _labelings(first: str, second: str, out: str) -> Iterator[EinsumLabels]:
    """Fewest batch labels first; the inner ones in the order of either tensor."""
    inner = [label for label in first if label in second and label not in out]
    if not inner or set(out) | set(inner) != set(first + second):
        return  # one tensor alone is summed, or the result has a label of neither
    for batch, rows, cols in _splits(out):
        if not (_whole(batch, first) and _whole(batch, second)):
            continue
        for swapped, own, other in ((False, first, second), (True, second, first)):
            if set(rows).isdisjoint(other) and set(cols).isdisjoint(own):
                yield from (
                    EinsumLabels(batch=batch, rows=rows, cols=cols, inner=order, swapped=swapped)
                    for order in _orders(inner, first, second)
                )


def _orders(inner: list[str], first: str, second: str) -> list[str]:
    """The inner labels in the order of either tensor."""
    return list(dict.fromkeys("".join(sorted(inner, key=name.index)) for name in (first, second)))


def _splits(out: str) -> Iterator[tuple[str, str, str]]:
    """Batch, rows and columns, of which the batch may be empty."""
    for start in range(len(out) - 1):
        for middle in range(start + 1, len(out)):
            yield out[:start], out[start:middle], out[middle:]


def _whole(batch: str, name: str) -> bool:
    """The tensor has all of the batch, or none of it and is the same for each."""
    return len({label in name for label in batch}) <= 1


def _groups(name: str, labels: EinsumLabels, own: str) -> tuple[str, str, str]:
    has_batch = bool(labels.batch) and labels.batch[0] in name
    return labels.batch if has_batch else "", own, labels.inner


def _is_copied(node: fx.Node, name: str, labels: EinsumLabels, own: str) -> bool:
    """Its dimensions can not be walked as batch, rows or columns, inner. By strides alone: a batch
    of one is walked as one of many."""
    value = node.meta["val"]
    neighbors = [
        pair for group in _groups(name, labels, own) for pair in pairwise(map(name.index, group))
    ]
    return not all(strides.is_mergeable(value, left, right) for left, right in neighbors)


def _view(which: str, name: str, labels: EinsumLabels, own: str) -> str:
    """Permuted and flattened."""
    groups = _groups(name, labels, own)
    order = [name.index(label) for group in groups for label in group]
    text = which if order == sorted(order) else f"{which}.permute({', '.join(map(str, order))})"
    end = len(order)
    for group in reversed(groups):
        if len(group) > 1:
            text += f".flatten({end - len(group)}, {end - 1})"
        end -= len(group)
    return text if groups[0] else f"{text}.unsqueeze(0)"


def _size(label: str, left: str, right: str) -> str:
    if label in left:
        return f"{{left}}.shape[{left.index(label)}]"
    return f"{{right}}.shape[{right.index(label)}]"


def sizes(contraction: Contraction, out: torch.Tensor) -> tuple[int, int, int]:
    """Batches, rows and columns of the result."""
    shape = [out.shape[dim] for dim in contraction.order]
    at = len(contraction.labels.batch)
    middle = at + len(contraction.labels.rows)
    return math.prod(shape[:at]), math.prod(shape[at:middle]), math.prod(shape[middle:])
