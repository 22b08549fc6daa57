"""Linear layers of a few rows whose weight is stored in 8 or 4 bits: where they are, and what a
kernel saves that scales the weight as it reads it.

Covered: linear, and mm or matmul with a transposed weight, up to eight rows, scales of rows or of
groups before the product, scales of rows after it, zero points, a bias; without gradients. Not
covered: more rows, where tensor cores pay. Which weights: weights.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from kernel_lsp.devices import REFERENCE
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.core import launching
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, dtype_name, op_name
from kernel_lsp.rewrite.codegen.core.source import next_power_of_two
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.codegen.quantized.source import QuantizedJob, emit
from kernel_lsp.rewrite.codegen.quantized.weights import QuantizedWeight, quantized
from kernel_lsp.rewrite.codegen.regions import cost
from kernel_lsp.rewrite.generated import GUARDED, Match
from kernel_lsp.rewrite.graph import Graph, argument

MAX_ROWS, TILE_ROWS = 8, 4
"""Rows of a product, and those that a program computes at a time: each has a sum of its own for
every element of a tile."""
MAX_BLOCK, MIN_BLOCK = 1024, 32
"""Columns of the weight that a program reads at a time; fewer would leave cache lines unused."""
MIN_PROGRAMS = 4 * REFERENCE.processors
"""Each walks along the whole weight: with one for each multiprocessor, 4 bits of [4096, 14336] took
0.094 ms, with two 0.076 (H200, 2026-11-28)."""
MIN_SAVING = 0.1
OWN_SHARE = {False: 0.36, True: 0.15}
"""Of copy speed, by whether two numbers share a byte: [11008, 4096] and [4096, 14336] with one row
took 0.029 and 0.035 ms in 8 bits, 0.028 and 0.071 ms in 4 (H200, 2026-11-28)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedProduct:
    product: fx.Node
    out: fx.Node
    """The product, or what it is scaled to."""
    weight: QuantizedWeight
    bias: fx.Node | None = None
    scale: fx.Node | None = None
    """Of rows, after the product."""

    @property
    def operands(self) -> dict[str, fx.Node]:
        """What the kernel reads, in the launcher's order."""
        scale = self.weight.scale if self.weight.scale is not None else self.scale
        given = {"x": self.product.args[0], "weight": self.weight.stored, "scale": scale,
                 "zero": self.weight.zero, "bias": self.bias}  # fmt: skip
        return {name: node for name, node in given.items() if node is not None}

    @property
    def rows(self) -> int:
        """Rows of the product."""
        return math.prod(shape_of(self.product)[:-1])


def find(graph: Graph, node: fx.Node) -> QuantizedProduct | None:
    """The product that the node is; None where it is none that is generated."""
    if (matrix := _matrix(node)) is None or (weight := quantized(matrix)) is None:
        return None
    x, bias = node.args[0].meta["val"], argument(node, "bias", None)
    item = QuantizedProduct(product=node, out=node, weight=weight, bias=bias)
    if x.dtype not in FLOATS or not 0 < item.rows <= MAX_ROWS or block_of(item) < MIN_BLOCK:
        return None
    if weight.scale is None and bias is None:
        item = _scaled(graph, item)
    small = math.prod(shape_of(weight.stored)) < 2**31
    return item if small and not _is_trained(graph, item) else None


def _matrix(node: fx.Node) -> Any:
    """The matrix with one row for each column of the product."""
    if op_name(node) == "linear":
        return node.args[1]
    if op_name(node) not in ("mm", "matmul"):
        return None
    right: Any = node.args[1]
    turned = op_name(right) in ("t", "numpy_T", "mT") or (
        op_name(right) == "transpose" and right.meta["val"].dim() == 2
    )
    return right.args[0] if turned else None


def _scaled(graph: Graph, item: QuantizedProduct) -> QuantizedProduct:
    """With the scale of its only reader."""
    user = graph.only_user(item.product)
    if user is None or op_name(user) != "mul":
        return item
    if user.meta["val"].dtype != item.product.meta["val"].dtype:
        return item
    left, right = user.args
    scale = right if left is item.product else left
    if not isinstance(scale, fx.Node) or shape_of(scale) != shape_of(item.product)[-1:]:
        return item
    return replace(item, out=user, scale=scale) if scale.meta["val"].dtype in FLOATS else item


def _is_trained(graph: Graph, item: QuantizedProduct) -> bool:
    return bool(graph.gradients and any(map(graph.carries, item.operands.values())))


def block_of(item: QuantizedProduct) -> int:
    """Columns of a block, all of one group where there are several."""
    columns = shape_of(item.product.args[0])[-1]
    if item.weight.groups == 1:
        return min(MAX_BLOCK, next_power_of_two(columns))
    group = columns // item.weight.groups
    return min(MAX_BLOCK, group & -group)


def matches(graph: Graph) -> list[Match]:
    """Products, each with what a kernel is estimated to save."""
    found = [find(graph, node) for node in graph.nodes]
    return [
        Match(
            nodes=tuple(graph.ordered({*_private(graph, item), item.product, item.out})),
            label=graph.label(item.out),
            summary=f"multiply with {'4' if item.weight.is_packed else '8'}-bit weights as they "
            "are stored",
            benefit=_benefit(graph, item),
            plain=False,
            data={"product": item.product.name, "parameters": parameters(item)},
        )
        for item in found
        if item is not None
    ]


def _private(graph: Graph, item: QuantizedProduct) -> list[fx.Node]:
    """Operations on the weight that nobody else needs."""
    inside = {item.product, *item.weight.nodes}
    return [
        node
        for node in item.weight.nodes
        if not graph.is_output(node) and all(user in inside for user in node.users)
    ]


def _benefit(graph: Graph, item: QuantizedProduct) -> float:
    nodes = [*_private(graph, item), item.product]
    read = sum(cost.bytes_of(node) for node in item.operands.values())
    moved = (read + cost.bytes_of(item.out)) / cost.rates(graph).bytes_per_s
    moved /= OWN_SHARE[item.weight.is_packed]
    return cost.benefit(graph, nodes, cost.launched_seconds(graph, moved, 1), MIN_SAVING)


def parameters(item: QuantizedProduct) -> dict[str, list[Any]]:
    """Choices for the kernel, the default first."""
    block, outs = block_of(item), shape_of(item.product)[-1]
    tile = 4096 if item.rows <= 2 else 2048
    few = next_power_of_two(max(1, outs // MIN_PROGRAMS) + 1) // 2
    most = max(1, min(tile // block, few))
    return {
        "BLOCK_OUT": list(dict.fromkeys([most, max(1, most // 2)])),
        "BLOCK_IN": [block],
        "num_warps": [4, 8],
    }


def proofs(graph: Graph, match: Match) -> list[Proof]:
    """What holds of the match, each with its reason."""
    item = find(graph, graph.named(match.data["product"]))
    return [
        Proof(
            claim="the weight is made of whole numbers, row by row or group by group",
            holds=item is not None,
            because="" if item is None else ", ".join(node.name for node in item.weight.nodes),
        ),
        Proof(
            claim="no gradient is lost", holds=True,
            because=GUARDED,
        ),
    ]  # fmt: skip


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Puts the kernel in the product's place."""
    item = find(graph, graph.named(match.data["product"]))
    assert item is not None, "find it first"
    chosen = {name: choice.get(name, found[0]) for name, found in parameters(item).items()}
    job = QuantizedJob(
        name="",
        dtypes={name: dtype_name(node.meta["val"].dtype) for name, node in item.operands.items()},
        is_packed=item.weight.is_packed,
        shift=item.weight.shift,
        groups=item.weight.groups,
        rows=min(item.rows, TILE_ROWS),
        is_scaled_last=item.weight.groups == 1,
        choice=chosen,
    )
    kernel = launching.make_named(
        graph, "dequantized_linear", lambda name: emit(replace(job, name=name))
    )
    launching.launch(graph, kernel, list(item.operands.values()), [item.out], item.out)
    graph.caveat("the weight is scaled in float32; eager rounds it to the product's dtype first")
