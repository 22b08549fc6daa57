"""Work whose result nobody reads, and calls that return their input: idle dropouts, needless
copies."""

from __future__ import annotations

from kernel_lsp.rewrite.skill import (
    DROPOUTS,
    Graph,
    Match,
    Node,
    Proof,
    argument,
    aten,
    cost,
    drops,
    has_effect,
    is_op,
    proof,
)

CASTS = (aten.to, aten.contiguous)
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    dead = _dead(graph)
    found = [_match(graph, node, kind) for node in graph.nodes if (kind := _identity(graph, node))]
    if dead:
        saved = sum(cost.seconds(graph, node) for node in dead)
        found.append(
            Match(
                nodes=tuple(dead),
                label=graph.label(*dead[-3:]),
                summary="remove work whose result is not used",
                benefit=cost.share(graph, saved),
                data={"kind": "dead"},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    node, kind = match.nodes[0], match.data["kind"]
    if kind == "dead":
        pure = not any(has_effect(item) for item in match.nodes)
        return [
            proof(
                "nothing reads the results and nothing else changes",
                pure,
                f"{len(match.nodes)} calls",
            )
        ]
    if kind == "dropout":
        why = "captured in eval mode" if _is_eval(node) else "its probability is 0"
        return [proof("dropout is off", not drops(node), why)]
    same = graph.fact(node).dtype == graph.fact(node.args[0]).dtype
    # A buffer may live elsewhere, or in another dtype, in the next call; only inputs are checked
    # then.
    checked = not (_reads_state(graph, node) or argument(node, "device") or argument(node, "other"))
    return [
        proof(
            "dtype and device stay",
            same and checked,
            f"{graph.fact(node).dtype}, made from inputs alone",
        ),
        proof(
            "the tensor is contiguous already",
            graph.fact(node.args[0]).contiguous,
            "strides of the workload",
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    if match.data["kind"] == "dead":
        graph.drop_unused()
        return
    node = match.nodes[0]
    if match.data["kind"] == "copy":
        for item in graph.inputs:
            if item.node is not None:
                graph.require(
                    f"{item.source}.is_contiguous()",
                    "a copy was dropped because nothing had to move",
                )
    graph.replace(node, node.args[0])


def _match(graph: Graph, node: Node, kind: str) -> Match:
    what = f"a needless {node.target._opname}"
    if kind == "dropout":
        what = (
            f"dropout, which does nothing "
            f"{'in eval mode' if _is_eval(node) else 'with a probability of 0'}"
        )
    return Match(
        nodes=(node,),
        label=graph.label(node),
        summary=f"remove {what}",
        benefit=0.02 if kind == "dropout" else 0.01,
        data={"kind": kind},
    )


def _identity(graph: Graph, node: Node) -> str | None:
    if is_op(node, *DROPOUTS):
        return None if drops(node) else "dropout"
    if not is_op(node, *CASTS) or not isinstance(node.args[0], Node) or argument(node, "copy"):
        return None
    here, before = graph.fact(node), graph.fact(node.args[0])
    if argument(node, "memory_format") not in (None, 0) and not is_op(node, aten.contiguous):
        return None
    same = here.dtype == before.dtype and here.stride == before.stride and before.contiguous
    return "copy" if same else None


def _is_eval(node: Node) -> bool:
    return argument(node, "train") is False


def _reads_state(graph: Graph, node: Node) -> bool:
    """A parameter or a buffer flows into the node."""
    todo, seen = [node], set[Node]()
    while todo:
        item = todo.pop()
        if item in graph.state or item in graph.constants:
            return True
        if item not in seen:
            seen.add(item)
            todo += item.all_input_nodes
    return False


def _dead(graph: Graph) -> list[Node]:
    """Calls without effect from which no path leads to the result or to an effect."""
    alive: set[Node] = set()
    for node in reversed(graph.nodes):
        if graph.is_output(node) or has_effect(node) or any(user in alive for user in node.users):
            alive.add(node)
    return [node for node in graph.nodes if node not in alive]
