"""Tensors that forward builds from constants on every call are built once per device."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.core.launching import make_named
from kernel_lsp.rewrite.skill import (
    GeneratedSource,
    Graph,
    Match,
    Node,
    Proof,
    aten,
    cost,
    has_effect,
    helper_source,
    is_op,
    is_random,
    may_alias,
    proof,
)

FACTORIES = (
    aten.zeros, aten.ones, aten.full, aten.arange, aten.eye, aten.linspace, aten.logspace,
    aten.scalar_tensor, aten.tril_indices, aten.triu_indices,
)  # fmt: skip
LARGEST_BYTES = 64 * 1024 * 1024  # it stays in memory as long as the process
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    invariant = _invariant(graph)
    found = []
    for node in graph.nodes:
        outside = [user for user in node.users if user not in invariant]
        if node not in invariant or not outside or graph.is_output(node):
            continue
        group = graph.ordered(_sources(node) | {node})
        saved = sum(
            cost.seconds(graph, item)
            for item in group
            if all(u in group for u in item.users) or item is node
        )
        found.append(
            Match(
                nodes=tuple(group),
                label=graph.label(node),
                summary=f"build the constant {graph.fact(node).shape} tensor once instead of on "
                f"each call",
                benefit=cost.share(graph, saved),
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    node = match.nodes[-1]
    size = cost.moved_bytes_of(graph, node)
    pure = not any(has_effect(item) or is_random(item) for item in match.nodes)
    return [
        proof(
            "no input and no parameter flows into it",
            pure,
            f"{len(match.nodes)} calls on constants",
        ),
        proof(
            "it does not leave forward",
            not _escapes(graph, node),
            "only read, never returned or viewed as a result",
        ),
        proof("it is small enough to keep", size <= LARGEST_BYTES, f"{size} bytes"),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    node = match.nodes[-1]
    kernel = make_named(
        graph, f"_{graph.variable(node)}_once", lambda name: _builder(graph, match, name)
    )
    made = graph.call_generated(
        kernel,
        (graph.val(node).device,),
        like=graph.val(node),
        before=node,
        name=graph.variable(node),
    )
    graph.note(
        made, "Depends on nothing but the device, so it is built once; state_dict does not see it."
    )
    graph.require(
        "not torch.compiler.is_compiling()", "a tracer must not fill the cache with its own tensors"
    )
    graph.caveat(f"{cost.moved_bytes_of(graph, node)} bytes stay in memory per device")
    graph.replace(node, made)


def _builder(graph: Graph, match: Match, name: str) -> GeneratedSource:
    """The function that builds the constant, and keeps it."""
    decorators = (
        "@functools.cache  # one tensor per device, kept until the process ends",
        "@torch.inference_mode(False)  # an inference tensor would be useless in training later",
    )
    return GeneratedSource(
        name=name,
        imports=("import functools", "import torch"),
        definitions=helper_source(graph, match.nodes, name, decorators=decorators),
        summary=match.summary,
        is_triton=False,
        supports_autograd=True,
    )


def _invariant(graph: Graph) -> set[Node]:
    """Calls that depend on nothing but literals."""
    found: set[Node] = set()
    for node in graph.nodes:
        sources = node.all_input_nodes
        from_nothing = is_op(node, *FACTORIES) and not sources
        derived = bool(sources) and all(item in found for item in sources)
        if (from_nothing or derived) and not is_random(node) and "generated" not in node.meta:
            found.add(node)
    return found


def _sources(node: Node) -> set[Node]:
    return {node} | {deep for item in node.all_input_nodes for deep in _sources(item)}


def _escapes(graph: Graph, node: Node) -> bool:
    """The cached tensor, or a view of it, would reach the caller, who might change it in place."""
    todo, seen = [node], set()
    while todo:
        item = todo.pop()
        if graph.is_output(item):
            return True
        seen.add(item)
        todo += [u for u in graph.users(item) if u not in seen and may_alias(u)]
    return False
