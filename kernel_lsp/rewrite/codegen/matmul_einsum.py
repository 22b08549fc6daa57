"""An einsum of two tensors that is one matrix product for each batch, seen through views without copies.

The result's labels must stand in the order batch, rows, columns, where rows belong to one tensor alone and
columns to the other alone. Not covered: ellipses, repeated labels, sums over one tensor alone, and
layouts in which a factor would have to be copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.graph import argument


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """Which labels of the result are what; ``swapped`` when the rows belong to the second tensor."""

    batch: str
    rows: str
    cols: str
    inner: str
    swapped: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Views:
    """Source of both factors as [batch, rows or columns, inner] and of the result's shape."""

    left: str
    right: str
    shape: str


def parsed(node: fx.Node) -> tuple[fx.Node, fx.Node, Labels, Views] | None:
    """Left factor, right factor, labels and views; None when the einsum is none of these."""
    tensors = list(argument(node, "tensors"))
    equation = str(argument(node, "equation")).replace(" ", "")
    given, arrow, out = equation.partition("->")
    names = given.split(",")
    if len(tensors) != 2 or len(names) != 2 or not arrow or not (given + out).replace(",", "").isalpha():
        return None
    if any(len(set(name)) != len(name) for name in (*names, out)):
        return None
    labels = next(_labelings(names[0], names[1], out), None)
    if labels is None:
        return None
    order = (1, 0) if labels.swapped else (0, 1)
    left, right = tensors[order[0]], tensors[order[1]]
    left_name, right_name = names[order[0]], names[order[1]]
    first = _view(left, left_name, labels, labels.rows)
    second = _view(right, right_name, labels, labels.cols)
    if first is None or second is None:
        return None
    sizes = [_size(label, left_name, right_name) for label in out]
    if labels.batch and labels.batch[0] not in left_name:
        batch = " * ".join(_size(label, left_name, right_name) for label in labels.batch)
        first += f".expand({batch}, -1, -1)"
    if labels.batch and labels.batch[0] not in right_name:
        second += ".expand({left}.shape[0], -1, -1)"
    return left, right, labels, Views(left=first, right=second, shape=f"({', '.join(sizes)})")


def _labelings(first: str, second: str, out: str) -> Iterator[Labels]:
    """Fewest batch labels first."""
    inner = "".join(label for label in first if label in second and label not in out)
    summed = any(label not in out and label not in inner for label in first + second)
    if not inner or summed or not set(out) <= set(first + second):
        return
    for start in range(len(out) - 1):
        for middle in range(start + 1, len(out)):
            batch, rows, cols = out[:start], out[start:middle], out[middle:]
            for swapped, own, other in ((False, first, second), (True, second, first)):
                apart = not set(rows) & set(other) and not set(cols) & set(own)
                if apart and all(_whole(batch, name) for name in (first, second)):
                    yield Labels(batch=batch, rows=rows, cols=cols, inner=inner, swapped=swapped)


def _whole(batch: str, name: str) -> bool:
    """The tensor has all of the batch, or none of it and is the same for each."""
    return len({label in name for label in batch}) <= 1


def _view(node: fx.Node, name: str, labels: Labels, own: str) -> str | None:
    """``{left}`` or ``{right}`` permuted and flattened; None when that would copy."""
    has_batch = bool(labels.batch) and labels.batch[0] in name
    groups = [labels.batch if has_batch else "", own, labels.inner]
    order = [name.index(label) for group in groups for label in group]
    value = node.meta["val"]
    sizes = [math.prod(value.shape[name.index(label)] for label in group) for group in groups]
    with value.fake_mode:
        try:
            value.permute(order).view(sizes)
        except (RuntimeError, ValueError):  # strides that no view can express
            return None
    which = "{left}" if own == labels.rows else "{right}"
    text = which if order == sorted(order) else f"{which}.permute({', '.join(map(str, order))})"
    end = len(order)
    for group in reversed(groups):
        if len(group) > 1:
            text += f".flatten({end - len(group)}, {end - 1})"
        end -= len(group)
    return text if has_batch else f"{text}.unsqueeze(0)"


def _size(label: str, left: str, right: str) -> str:
    if label in left:
        return f"{{left}}.shape[{left.index(label)}]"
    return f"{{right}}.shape[{right.index(label)}]"


def sizes(node: fx.Node, labels: Labels) -> tuple[int, int, int]:
    """Batches, rows and columns of the result."""
    shape: torch.Size = node.meta["val"].shape
    at = len(labels.batch)
    middle = at + len(labels.rows)
    return math.prod(shape[:at]), math.prod(shape[at:middle]), math.prod(shape[middle:])
