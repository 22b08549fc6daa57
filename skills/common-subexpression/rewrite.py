"""What is computed twice from the same tensors is computed once: calls numbered by what they
compute."""

from __future__ import annotations

import operator
from typing import Any

from kernel_lsp.rewrite.skill import Graph, Match, Node, Proof, cost, has_effect, proof

UNWRITTEN = ("empty", "new_empty")
"""How the names begin of operations whose results are not values yet."""
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    again = _find_repeats(graph)
    saved = sum(cost.seconds(graph, node) for node in again)
    if any(has_effect(node) for node in graph.nodes) or saved <= 0:
        return []
    working = [node for node in again if cost.seconds(graph, node) > 0]
    words = ", ".join(dict.fromkeys(str(getattr(n.target, "_opname", "")) for n in working[:4]))
    return [
        Match(
            nodes=tuple(again),
            label=graph.label(*working[-3:]),
            summary=f"compute {words} once where it is written twice",
            benefit=cost.share(graph, saved),
            data={"again": again},
        )
    ]


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    again: dict[Node, Node] = match.data["again"]
    pure = not any(has_effect(node) for node in graph.nodes)
    pairs = ", ".join(f"{node.name} is {first.name}" for node, first in list(again.items())[:4])
    return [
        proof("the same operations act on the same tensors", bool(again), pairs),
        proof(
            "nothing is random and nothing is written in between", pure, "the schemas of all calls"
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    for node, first in match.data["again"].items():
        if node in graph.nodes:  # what only a dropped call read is gone already
            graph.replace(node, first)


def _find_repeats(graph: Graph) -> dict[Node, Node]:
    """Call -> the earlier call with the same result, in the order of the graph."""
    seen: dict[Any, Node] = {}
    again: dict[Node, Node] = {}
    for node in graph.nodes:
        if not _is_plain(node):
            continue
        key = node.target, _argument_key(node.args, again), _argument_key(node.kwargs, again)
        first = seen.setdefault(key, node)
        if first is not node:
            again[node] = first
    return again


def _is_plain(node: Node) -> bool:
    """An operation of PyTorch, or one of its several results."""
    name = str(getattr(node.target, "_opname", ""))
    known = getattr(node.target, "namespace", "") == "aten" and not name.startswith(UNWRITTEN)
    return node.op == "call_function" and (known or node.target is operator.getitem)


def _argument_key(value: Any, again: dict[Node, Node]) -> Any:
    """Arguments as a key: tensors by who computed them first, numbers by type and value."""
    if isinstance(value, Node):
        return again.get(value, value)
    if isinstance(value, (list, tuple)):
        return tuple(_argument_key(item, again) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((name, _argument_key(item, again)) for name, item in value.items()))
    return type(value).__name__, repr(value)
