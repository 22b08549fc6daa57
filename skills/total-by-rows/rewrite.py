"""A sum or mean of everything behind a softmax is taken row by row first, so that one kernel does
both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from kernel_lsp.rewrite.codegen.pointwise.operations import is_pointwise
from kernel_lsp.rewrite.skill import (
    EXACT_DTYPES,
    Graph,
    Match,
    Node,
    Proof,
    argument,
    aten,
    cost,
    is_op,
    proof,
)

MAX_OPERATIONS = 8
"""Operations between a softmax and the total; a kernel with more of them spills registers."""
MIN_LOGARITHM = {torch.float32: -104.0, torch.float64: -746.0}
"""No number above 0 has a smaller one."""
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    if graph.gradients:  # what this makes way for has no backward
        return []
    found = []
    for node in graph.nodes:
        if (sources := _sources(graph, node)) is None:
            continue
        softmaxes = _softmaxes(graph, node, sources)
        if not softmaxes:
            continue
        moved = sum(2 * cost.moved_bytes_of(graph, item) for item in softmaxes)
        found.append(
            Match(
                nodes=(*softmaxes, node),
                label=graph.label(*softmaxes, node),
                summary=f"take {node.target._opname} row by row, beside the softmax of each row",
                benefit=cost.share(graph, moved / cost.rates(graph).bytes_per_s),
                data={"sources": sources},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    node, sources = match.nodes[-1], match.data["sources"]
    dtypes = {graph.fact(item).dtype for item in (node, *sources)}
    shapes = {graph.fact(item).shape for item in sources}
    return [
        proof("everything is added up", graph.fact(node).numel == 1, f"{node.name} is one number"),
        proof("rows have one length", len(shapes) == 1, f"shapes {sorted(shapes)}"),
        proof(
            "sums keep their digits",
            dtypes <= set(EXACT_DTYPES),
            ", ".join(sorted(map(str, dtypes))),
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    node, sources = match.nodes[-1], match.data["sources"]
    terms = _divergence(graph, node, sources) if is_op(node, aten.kl_div) else sources[0]
    mean = is_op(node, aten.mean) or argument(node, "reduction") == 1
    by_row, every = (
        (aten.mean.dim, aten.mean.default) if mean else (aten.sum.dim_IntList, aten.sum.default)
    )
    rows = graph.call(by_row, (terms, [-1]), before=node, name="by_row")
    made = graph.call(every, (rows,), before=node)
    graph.note(rows, "Row by row, so that the softmax of a row need not be written.")
    graph.replace(node, made)


def _divergence(graph: Graph, node: Node, sources: Sequence[Node]) -> Node:
    """The terms of kl_div as torch computes them, but with a softmax's own logarithm: that of its
    rounded quotient would be off by as much in each element as both distributions may differ
    by."""
    given, target = sources
    entropy = _entropy(graph, node, target)
    crossed = graph.call(aten.mul.Tensor, (target, given), before=node, name="crossed")
    return graph.call(aten.sub.Tensor, (entropy, crossed), before=node, name="divergence")


def _entropy(graph: Graph, node: Node, target: Node) -> Node:
    """target * log(target), and 0 where the target is 0."""
    least = MIN_LOGARITHM.get(graph.fact(target).dtype)
    if not is_op(target, aten.softmax) or argument(target, "dtype") is not None or least is None:
        return graph.call(aten.xlogy.Tensor, (target, target), before=node, name="entropy")
    logarithm = graph.call(aten.log_softmax.int, target.args[:2], before=node, name="logarithm")
    finite = graph.call(aten.clamp_min.default, (logarithm, least), before=node, name="finite")
    graph.note(
        finite, "Below that the probability is 0, and what it is multiplied by must be finite."
    )
    return graph.call(aten.mul.Tensor, (target, finite), before=node, name="entropy")


def _sources(graph: Graph, node: Node) -> tuple[Node, ...] | None:
    """What a total adds up: one tensor, or prediction and target of a divergence."""
    if is_op(node, aten.kl_div):
        plain = argument(node, "reduction") in (1, 2) and not argument(node, "log_target")
        sources = node.args[:2]
        alike = plain and graph.fact(sources[0]).shape == graph.fact(sources[1]).shape
    elif is_op(node, aten.sum, aten.mean):
        sources = node.args[:1]
        alike = argument(node, "dim") in (None, []) and argument(node, "dtype") is None
    else:
        return None
    return tuple(sources) if alike and len(graph.fact(sources[0]).shape) >= 2 else None


def _softmaxes(graph: Graph, node: Node, sources: Iterable[Node]) -> list[Node]:
    """Softmaxes over the last dimension that only the total needs."""
    found, seen, todo = list[Node](), {node}, list(sources)
    while todo and len(seen) <= MAX_OPERATIONS:
        at = todo.pop()
        if at in seen or any(user not in seen for user in graph.users(at)) or graph.is_output(at):
            continue
        seen.add(at)
        if is_op(at, aten.softmax, aten.log_softmax):
            last = argument(at, "dim") % len(graph.fact(at).shape) == len(graph.fact(at).shape) - 1
            found += [at] if last and argument(at, "dtype") is None else []
        elif is_pointwise(at):
            todo += at.all_input_nodes
    return found
