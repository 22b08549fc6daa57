"""Linear layers that read the same input become one product with their weights below each other."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernel_lsp.rewrite.capture.aliasing import root_of
from kernel_lsp.rewrite.codegen.pointwise.operations import is_pointwise
from kernel_lsp.rewrite.skill import (
    Graph,
    Match,
    Node,
    Proof,
    argument,
    aten,
    cost,
    has_effect,
    is_op,
    proof,
)

parameters: dict[str, list[object]] = {}


@dataclass(frozen=True, kw_only=True)
class SiblingLayer:
    """A linear layer and the operations on its result alone that all of its siblings share."""

    product: Node
    tail: tuple[Node, ...]

    @property
    def end(self) -> Node:
        return self.tail[-1] if self.tail else self.product

    @property
    def weight(self) -> Node:
        return argument(self.product, "weight")

    @property
    def bias(self) -> Node | None:
        return argument(self.product, "bias")


def match(graph: Graph) -> list[Match]:
    found = []
    for layers in _families(graph):
        saved = _saved_seconds(graph, layers)
        nodes = [node for layer in layers for node in (layer.product, *layer.tail)]
        if saved <= 0 or not all(_is_inner(graph, layer.end) for layer in layers):
            continue
        found.append(
            Match(
                nodes=tuple(nodes),
                label=graph.label(*(layer.product for layer in layers)),
                summary=f"one product for {len(layers)} layers of the same input",
                benefit=cost.share(graph, saved),
                data={"layers": layers},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    layers: list[SiblingLayer] = match.data["layers"]
    one = len({layer.product.args[0] for layer in layers}) == 1
    first = layers[0]
    dtypes = {graph.fact(node).dtype for layer in layers for node in (layer.product, layer.weight)}
    tail = ", ".join(node.name for node in first.tail) or "nothing"
    return [
        proof("the layers read one tensor", one, first.product.args[0].name),
        proof("columns of a product do not mix", True, f"schema of linear; behind it stand {tail}"),
        proof("one dtype", len(dtypes) == 1, ", ".join(sorted(map(str, dtypes)))),
        proof(
            "nobody outside sees that the results lie in one tensor",
            all(_is_inner(graph, layer.end) for layer in layers),
            "no reader returns or changes them",
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    layers: list[SiblingLayer] = match.data["layers"]
    first, here = layers[0], layers[0].product
    weight = graph.call(
        aten.cat.default, ([layer.weight for layer in layers],), before=here, name="joined_weight"
    )
    graph.note(weight, "Joined on each call, so training and load_state_dict stay right.")
    bias = None
    if first.bias is not None:
        bias = graph.call(
            aten.cat.default, ([layer.bias for layer in layers],), before=here, name="joined_bias"
        )
    made = graph.call(
        aten.linear.default, (here.args[0], weight, bias), before=here, name="projected"
    )
    for node in first.tail:
        args = [made if arg in (first.product, *first.tail) else arg for arg in node.args]
        made = graph.call(node.target, args, dict(node.kwargs), before=here, name="projected")
    sizes = [graph.fact(layer.end).shape[-1] for layer in layers]
    # Not slices: the backward of each would fill a tensor as large as the whole.
    parts = graph.call(aten.split.sizes, (made, sizes, -1), before=here, name="parts")
    for index, layer in enumerate(layers):
        part = graph.call(operator.getitem, (parts, index), before=layer.end)
        graph.replace(layer.end, part)


# --- what is matched ---------------------------------------------------------------------


def _families(graph: Graph) -> Iterator[list[SiblingLayer]]:
    """Layers of one input: those with the same operations behind them, or all of them without
    any."""
    families: dict[Any, list[SiblingLayer]] = {}
    for node in graph.nodes:
        if is_op(node, aten.linear) and _is_plain(graph, node):
            layer = SiblingLayer(product=node, tail=_tail(graph, node))
            families.setdefault((node.args[0], layer.bias is None), []).append(layer)
    for layers in families.values():
        alike: dict[Any, list[SiblingLayer]] = {}
        for layer in layers:
            alike.setdefault(_signature(layer), []).append(layer)
        several = [group for group in alike.values() if len(group) > 1]
        if several:
            yield from several
        elif len(layers) > 1:
            yield [replace(layer, tail=()) for layer in layers]


def _is_plain(graph: Graph, node: Node) -> bool:
    """Its weights are there before the program starts."""
    weight, bias = argument(node, "weight"), argument(node, "bias")
    known = all(item in graph.state for item in (weight, bias) if item is not None)
    return known and not node.kwargs and len(graph.fact(weight).shape) == 2


def _tail(graph: Graph, node: Node) -> tuple[Node, ...]:
    """Operations one after the other that read nothing else."""
    found = list[Node]()
    shape, dtype = graph.fact(node).shape, graph.fact(node).dtype
    while (reader := graph.only_user(node)) is not None:
        alone = reader.all_input_nodes == [node] and is_pointwise(reader)
        if not alone or graph.fact(reader).shape != shape or graph.fact(reader).dtype != dtype:
            break
        found.append(reader)
        node = reader
    return tuple(found)


def _signature(layer: SiblingLayer) -> tuple[Any, ...]:
    """Equal for the same operations with the same numbers."""

    def word(value: Any) -> str:
        return "value" if isinstance(value, Node) else repr(value)

    return tuple(
        (
            node.target,
            *map(word, node.args),
            *(f"{k}={word(v)}" for k, v in sorted(node.kwargs.items())),
        )
        for node in layer.tail
    )


def _is_inner(graph: Graph, node: Node) -> bool:
    """Nobody returns its memory, writes to it or needs its rows to follow each other."""
    if any(has_effect(user) for user in graph.users(node)):
        return False
    returned = any(root_of(item) is node for item in graph.outputs)
    return not returned and all(_takes_strides(graph, user, node) for user in graph.users(node))


def _takes_strides(graph: Graph, user: Node, node: Node) -> bool:
    """``view`` refuses some tensors that are part of a wider one."""
    if not is_op(user, aten.view):
        return True
    *lead, last = graph.fact(node).shape
    wide = torch.empty((*lead, 2 * last), device="meta")
    try:
        wide[..., :last].view(argument(user, "size"))
    except RuntimeError:
        return False
    return True


def _saved_seconds(graph: Graph, layers: Sequence[SiblingLayer]) -> float:
    """Launches, and the input's way to the multiprocessors (twice more where it is split on it),
    less the joining of the weights."""
    rates, fewer = cost.rates(graph), len(layers) - 1
    read = 3 * cost.moved_bytes_of(graph, layers[0].product.args[0]) / rates.bytes_per_s
    gone = fewer * (read + (1 + len(layers[0].tail)) * rates.overhead_s)
    moved = (
        sum(2 * cost.moved_bytes_of(graph, layer.weight) for layer in layers) / rates.bytes_per_s
    )
    return gone - moved - rates.overhead_s * (1 if layers[0].bias is None else 2)
