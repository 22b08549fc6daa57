"""What a skill's rewrite.py works with, in one import, and the shapes of reasoning skills share.

from kernel_lsp.rewrite.skill import Graph, Match, Proof, aten, argument, is_op
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernel_lsp.records import Proof
from kernel_lsp.rewrite.capture.aliasing import may_alias
from kernel_lsp.rewrite.cost import operations as cost
from kernel_lsp.rewrite.facts.tensors import TensorFact
from kernel_lsp.rewrite.facts.transfer_functions import clamp_bounds
from kernel_lsp.rewrite.generated import GeneratedSource, Match, Miss, Wrapper, proof
from kernel_lsp.rewrite.graph import (
    DROPOUTS,
    Graph,
    argument,
    drops,
    has_effect,
    is_op,
    is_random,
    is_write,
)
from kernel_lsp.rewrite.printing import guard
from kernel_lsp.rewrite.printing.statements import helper_source

__all__ = [
    "DROPOUTS",
    "EXACT_DTYPES",
    "NONFINITE",
    "GeneratedSource",
    "Graph",
    "Match",
    "Miss",
    "Node",
    "Proof",
    "TensorFact",
    "Wrapper",
    "argument",
    "aten",
    "clamp_bounds",
    "cost",
    "dims_of",
    "drops",
    "flatten_channels",
    "has_effect",
    "helper_source",
    "insert_full",
    "is_number",
    "is_op",
    "is_random",
    "is_write",
    "lost_gradients",
    "may_alias",
    "nonfinite",
    "parameters_of",
    "proof",
    "scale_of",
    "tensor",
    "without_gradients",
]  # fmt: skip

aten = torch.ops.aten
Node = fx.Node
EXACT_DTYPES = (torch.float32, torch.float64)
"""Where reassociating sums keeps the error class; in 16 bits a folded weight would lose digits."""


def parameters_of(graph: Graph, match: Match) -> dict[str, list[Any]]:
    """The choices that the match found for its place, default first: for skills whose `match` has
    put them into its data."""
    return dict(match.data["parameters"])


def is_number(value: Any) -> bool:
    """Whether it is an int or a float, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def tensor(value: Any) -> bool:
    """A node that yields one tensor."""
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def dims_of(node: fx.Node, name: str = "dim") -> tuple[int, ...] | None:
    """Normalized dimensions of a reduction over ``args[0]``; None when it reduces all of them."""
    dims = argument(node, name)
    if dims is None or dims == []:
        return None
    rank = max(node.args[0].meta["val"].dim(), 1)
    return tuple(sorted(d % rank for d in ([dims] if isinstance(dims, int) else dims)))


def scale_of(node: fx.Node) -> tuple[fx.Node, str, float] | None:
    """(tensor, ``mul`` or ``div``, number) when the node multiplies or divides a tensor by a
    number."""
    if is_op(node, aten.neg):
        return node.args[0], "mul", -1
    if not is_op(node, aten.mul, aten.div) or node.kwargs or len(node.args) != 2:
        return None
    left, right = node.args
    if tensor(left) and is_number(right):
        return left, "mul" if is_op(node, aten.mul) else "div", right
    if tensor(right) and is_number(left) and is_op(node, aten.mul):
        return right, "mul", left
    return None


def nonfinite(parameters: dict[str, Any]) -> bool:
    """Whether the caller chose to let infinite and NaN values behave differently (default: keep
    them)."""
    return parameters.get("nonfinite", "keep") == "ignore"


def without_gradients(graph: Graph, because: str) -> None:
    """Take the fast path only while no gradient is recorded."""
    if condition := guard.no_gradients(graph):
        graph.require(condition, because)


def lost_gradients(graph: Graph, because: str) -> list[Proof]:
    """What does not hold where gradients are recorded, and nothing elsewhere: the fast path of a
    rewrite `without_gradients` would never be taken there, nor what other steps have made of it."""
    if not graph.gradients or not guard.no_gradients(graph):
        return []
    return [proof("the gradients stay the same", False, because)]


NONFINITE = {"nonfinite": ["keep", "ignore"]}
"""Search space of a rewrite whose only difference is what happens to infinity and NaN."""


def flatten_channels(graph: Graph, other: fx.Node, here: fx.Node) -> fx.Node:
    """One value for each channel, or one: what was (C, 1, 1) is (C,), inserted before ``here``."""
    if len(graph.fact(other).shape) == 1:
        return other
    return graph.call(aten.flatten.using_ints, (other,), before=here)


def insert_full(graph: Graph, like: fx.Node, number: float) -> fx.Node:
    """A tensor of the node's shape and dtype full of ``number``, inserted before it."""
    value = graph.val(like)
    kwargs = {"dtype": value.dtype, "device": value.device}
    return graph.call(aten.full.default, (list(value.shape), number), kwargs, before=like)
