"""A linear layer and its cross entropy: gradients are made where the logits are, rows aligned."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.loss.linear_cross_entropy import apply
from kernel_lsp.rewrite.codegen.loss.linear_cross_entropy import matches as match
from kernel_lsp.rewrite.skill import Graph, Match, Proof, proof
from kernel_lsp.rewrite.skill import parameters_of as parameters

__all__ = ["apply", "match", "parameters", "preconditions"]


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
