"""Results that share memory: a rewrite must not hand out an input where eager hands out a fresh
tensor.

`separate_results(graph)` clones a result that newly aliases an input, a parameter or another
result; `require_same_sharing(graph)` refuses one that shares less, for parts of a function;
`may_alias(node)` says whether a call can return (a view of) its first argument. Not covered: a
result that a whole target returns as a view may become a copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.graph import Graph, is_op

aten = torch.ops.aten
SILENT = (
    aten.contiguous, aten.to, aten.broadcast_tensors, aten.meshgrid, aten.einsum,
    aten.dropout, aten.feature_dropout, aten.alpha_dropout,
)  # fmt: skip
"""They may return a view or the argument itself without saying so in their schema."""


def may_alias(node: fx.Node) -> bool:
    """The call's result can be a view of an argument, or the argument."""
    if "generated" in node.meta:
        return False
    schema = getattr(node.target, "_schema", None)
    return (
        schema is None
        or any(r.alias_info is not None for r in schema.returns)
        or is_op(node, *SILENT)
    )


def separate_results(graph: Graph) -> None:
    """Insert a clone wherever memory would newly be shared."""
    pristine = graph.origin.pristine
    assert pristine is not None
    before = [root_of(leaf) for leaf in pristine.outputs]
    leaves: list[Any] = []
    for index, leaf in enumerate(graph.outputs):
        root = root_of(leaf)
        earlier = [
            i for i, other in enumerate(leaves) if root is not None and root_of(other) is root
        ]
        fresh = root is not None and root.op == "placeholder" and _name(before[index]) != root.name
        if fresh or any(before[i] is None or before[i] is not before[index] for i in earlier):
            leaf = graph.call(aten.clone.default, (leaf,), before=graph.output)
            graph.note(leaf, "Eager returns a tensor of its own here, so this does too.")
        leaves.append(leaf)
    graph.output.args = (type(graph.output.args[0])(leaves),)


def require_same_sharing(graph: Graph) -> None:
    """Checks the results of a part, which the rest of the function may write into: what shares
    memory with an input or with another result in eager does so here. Raises RewriteError."""
    pristine = graph.origin.pristine
    assert pristine is not None
    before, after = (list(map(root_of, one.outputs)) for one in (pristine, graph))
    for index, (root, now) in enumerate(zip(before, after, strict=True)):
        is_input = root is not None and root.op == "placeholder"
        shared = [i for i in range(index) if root is not None and before[i] is root]
        if (is_input and _name(root) != _name(now)) or any(after[i] is not now for i in shared):
            raise RewriteError(
                "a result of these statements would no longer share memory with what it is a "
                "view of",
                "it is kept as it is: the statements after it may write into it",
            )


def root_of(value: Any) -> fx.Node | None:
    """The node whose memory the value may be; None for a plain number. Each result of a generated
    launcher has memory of its own."""
    if not isinstance(value, fx.Node):
        return None
    while value.op == "call_function" and value.all_input_nodes and may_alias(value):
        if "generated" in value.all_input_nodes[0].meta:
            break
        value = value.all_input_nodes[0]
    return value


def _name(node: fx.Node | None) -> str | None:
    return None if node is None else node.name
