"""A linear layer and its cross entropy: gradients are made where the logits are, rows aligned."""

from __future__ import annotations

from typing import Any

from kernel_lsp.rewrite.codegen.loss import linear_cross_entropy
from kernel_lsp.rewrite.skill import Graph, Match, Proof, proof


def match(graph: Graph) -> list[Match]:
    return linear_cross_entropy.matches(graph)


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    linear, *path, loss = match.nodes
    between = ", ".join(node.name for node in path) or "nothing"
    logits = graph.fact(linear)
    return [
        proof(
            "nothing else reads the logits",
            all(graph.only_user(node) is not None for node in (linear, *path)),
            f"{linear.name} ends in {loss.name} alone",
        ),
        proof(
            "what is between them leaves each row whole",
            graph.fact(loss.args[0]).shape[-1] == logits.shape[-1],
            f"between them: {between}",
        ),
    ]


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    return dict(match.data["parameters"])


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    linear_cross_entropy.apply(graph, match, parameters)
