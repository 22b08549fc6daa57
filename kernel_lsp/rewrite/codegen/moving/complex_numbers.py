"""Complex numbers of a region as two values: what turns pairs as Llama's first code writes it,
``view_as_real(view_as_complex(x) * table)``.

Kernels read and write the real view. Covered: products of complex64 with each other and with real
tensors. Not covered: trained complex tensors, everything else that is done with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.ir import Value, apply, moved
from kernel_lsp.rewrite.codegen.core.moves import Reshape
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported, op_name
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.codegen.moving import operations
from kernel_lsp.rewrite.graph import Graph

aten = torch.ops.aten
VIEWS = ("view_as_complex", "view_as_real")


@dataclass(frozen=True, slots=True)
class ComplexValue:
    """Real and imaginary part of a tensor."""

    real: Value
    imaginary: Value


def is_complex(node: Any) -> bool:
    """Whether the node yields a tensor of complex64."""
    value = getattr(node, "meta", {}).get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.complex64


def is_step(node: fx.Node) -> bool:
    """An operation that is covered."""
    if op_name(node) in VIEWS:
        return is_complex(node) or is_complex(node.args[0])
    product = op_name(node) == "mul" and is_complex(node)
    return product and all(isinstance(arg, fx.Node) for arg in node.args)


def real_view(value: torch.Tensor) -> torch.Tensor:
    """What a kernel reads of a tensor."""
    is_complex64 = value.dtype == torch.complex64
    return torch.view_as_real(value.resolve_conj()) if is_complex64 else value


def real_node(graph: Graph, node: fx.Node, before: fx.Node) -> fx.Node:
    """The node whose tensor a kernel reads: of a complex one its real view, which is put before
    ``before``. A conjugate, which is lazy, has no such view and is resolved first."""
    if not is_complex(node):
        return node
    resolved = graph.call(aten.resolve_conj.default, (node,), before=before)
    return graph.call(aten.view_as_real.default, (resolved,), before=before)


def from_real(value: Value, shape: tuple[int, ...]) -> ComplexValue:
    """The parts of a tensor of that shape, from its real view."""
    source, dim = (*shape, 2), len(shape)
    first, second = (operations.taken(value, source, shape, dim, place) for place in (0, 1))
    return ComplexValue(first, second)


def value_of(node: fx.Node, get: Callable[[fx.Node], Any]) -> ComplexValue | Value:
    """The value of a covered operation: both parts where it is complex. Raises Unsupported."""
    shape = shape_of(node)
    if op_name(node) == "view_as_complex":
        return from_real(_real(get(node.args[0])), shape)
    if op_name(node) == "view_as_real":
        parts = get(node.args[0])
        own, wide = shape[:-1], (*shape[:-1], 1)
        both = [moved(part, Reshape(own, wide)) for part in (parts.real, parts.imaginary)]
        return operations.joined(both, [wide, wide], len(own))
    left, right = (_broadcast(get(arg), shape_of(arg), shape) for arg in node.args)
    if isinstance(left, Value):
        left, right = right, left
    assert isinstance(left, ComplexValue)
    if isinstance(right, Value):
        return ComplexValue(apply("mul", left.real, right), apply("mul", left.imaginary, right))
    return ComplexValue(
        apply("sub", apply("mul", left.real, right.real), apply("mul", left.imaginary, right.imaginary)),
        apply("add", apply("mul", left.real, right.imaginary), apply("mul", left.imaginary, right.real)),
    )  # fmt: skip


def _real(value: Any) -> Value:
    if not isinstance(value, Value):
        raise Unsupported("a number where a tensor is expected")
    return value


def _broadcast(
    value: Any, source: tuple[int, ...], target: tuple[int, ...]
) -> ComplexValue | Value:
    if isinstance(value, ComplexValue):
        real, imaginary = value.real, value.imaginary
        return ComplexValue(
            operations.expanded(real, source, target),
            operations.expanded(imaginary, source, target),
        )
    return operations.expanded(_real(value), source, target)
