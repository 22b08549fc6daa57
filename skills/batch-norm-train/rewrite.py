"""Batch norm in train mode and the pointwise work behind it, in two passes or channel by channel."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.normalization.batch_norm import matches as match
from kernel_lsp.rewrite.codegen.normalization.batch_norm import rewrite as apply
from kernel_lsp.rewrite.skill import Graph, Match, Proof, argument, parameters_of, proof

__all__ = ["apply", "match", "parameters", "preconditions"]

parameters = parameters_of


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    norm = graph.named(match.data["norm"])
    fact, running = graph.fact(norm.args[0]), argument(norm, "running_mean")
    readers = (
        "no running statistics" if running is None else f"{graph.state[running]} has one reader"
    )
    gradients = (
        "derivatives of each operation, in a backward of two passes"
        if graph.gradients
        else "the dispatch guard takes the original path while gradients are recorded"
    )
    return [
        proof(
            "statistics are those of the batch",
            argument(norm, "training") is True,
            "captured in train mode",
        ),
        proof(
            "channels are dimension 1 of a contiguous tensor",
            fact.contiguous,
            f"strides {fact.stride}",
        ),
        proof("nobody else sees the running statistics between", True, readers),
        proof(
            "momentum is a number",
            isinstance(argument(norm, "momentum"), float),
            "None would count calls",
        ),
        proof("no gradient is lost", True, gradients),
    ]
