"""Attention that the tiled kernel does not take: softmax between two products, and what stands in
the way.

The way is walked here without the conditions of codegen/attention/roles.py, and the first node
that breaks one is named. Silent about attention that matches, whatever it is worth. Not covered:
other kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.attention import fuse as attention_fuse
from kernel_lsp.rewrite.codegen.attention.axes import REGROUPS, TURNS, factors_of
from kernel_lsp.rewrite.codegen.attention.match import LARGEST_HEAD
from kernel_lsp.rewrite.codegen.attention.roles import HANDED_ON, LONGEST, SOFTMAX
from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.pointwise.operations import is_pointwise
from kernel_lsp.rewrite.generated import Miss
from kernel_lsp.rewrite.graph import Graph, argument, drops
from kernel_lsp.rewrite.near_misses.fusing import remedy_for, type_of

LAYOUT = (*TURNS, *REGROUPS, "unsqueeze", "expand")
BY_LIBRARY = "F.scaled_dot_product_attention(q, k, v, dropout_p={p}) drops inside of its kernel"
NOT_RETURNED = "return the result alone where the weights are not read (need_weights=False)"


def misses(graph: Graph) -> Iterator[Miss]:
    """Attention in the graph that no kernel of ours takes, each with what stands in the way."""
    found = [
        miss for node in graph.nodes if op_name(node) in SOFTMAX for miss in _around(graph, node)
    ]
    if not found:  # matching takes seconds where the library's attention is spelled out
        return
    known = {node for match in attention_fuse.matches(graph) for node in match.nodes}
    yield from (miss for miss in found if miss.nodes[0] not in known)


def _around(graph: Graph, softmax: fx.Node) -> Iterator[Miss]:
    before, after = _back(softmax.args[0], softmax, LONGEST), _on(graph, softmax, LONGEST)
    if before is None or after is None:
        return
    if (found := _obstacle(graph, before, softmax, after)) is not None:
        yield Miss(nodes=(softmax, *before, *after), missing=found[0], remedy=found[1])


def _back(node: fx.Node, reader: fx.Node, steps: int) -> list[fx.Node] | None:
    """From a product to this node, through what keeps the number of elements."""
    if steps == 0 or not isinstance(node, fx.Node) or node.op != "call_function":
        return None
    if factors_of(node) is not None:
        return [node]
    for arg in node.all_input_nodes:
        if _count(arg) == _count(node) and (found := _back(arg, node, steps - 1)) is not None:
            return [*found, node]
    return None


def _on(graph: Graph, node: fx.Node, steps: int) -> list[fx.Node] | None:
    """From behind this node to the product that reads it."""
    for user in graph.users(node) if steps else ():
        if node in (factors_of(user) or ()):
            return [user]
        if _count(user) == _count(node) and (found := _on(graph, user, steps - 1)) is not None:
            return [user, *found]
    return None


def _obstacle(
    graph: Graph, before: Sequence[fx.Node], softmax: fx.Node, after: Sequence[fx.Node]
) -> tuple[str, str] | None:
    """The first thing that the kernel does not do, and a way around it."""
    first, *chain = before
    *handed, last = after
    for node in (first, last):
        if (why := type_of(node)) is not None:
            return why, remedy_for(why)
    for node in chain:
        if not is_pointwise(node) and op_name(node) not in LAYOUT:
            return f"{_word(node)} between the first product and softmax has no kernel", ""
    for node in handed:
        if op_name(node) == "dropout" and drops(node):
            p = argument(node, "p")
            return f"a dropout of {p} draws random numbers behind softmax", BY_LIBRARY.format(p=p)
        if op_name(node) not in (*HANDED_ON, *LAYOUT, "nan_to_num"):
            return f"{_word(node)} stands between softmax and the second product", ""
    return _outside_reader(graph, [first, *chain], softmax, handed) or _large(first, last)


def _outside_reader(
    graph: Graph, scores: Sequence[fx.Node], softmax: fx.Node, weights: Sequence[fx.Node]
) -> tuple[str, str] | None:
    """Somebody else reads what the kernel would never write."""
    for node in (*scores, softmax, *weights):
        what = "scores" if node in scores else "weights"
        if graph.is_output(node):
            return f"the {what} are returned, so they must be written", NOT_RETURNED
        if len(graph.users(node)) > 1:
            others = ", ".join(sorted({_word(user) for user in graph.users(node)}))
            return f"several operations read the {what} ({others}), so they must be written", ""
    return None


def _large(first: fx.Node, last: fx.Node) -> tuple[str, str] | None:
    """The heads, where the products are plain."""
    if op_name(first) == "einsum" or op_name(last) == "einsum":
        return None
    dtype = first.meta["val"].dtype
    head = max(int(first.all_input_nodes[0].meta["val"].shape[-1]), int(last.meta["val"].shape[-1]))
    if dtype not in LARGEST_HEAD or head <= LARGEST_HEAD[dtype]:
        return None
    limit = f"heads of {head} are larger than a tile of {dtype} may be ({LARGEST_HEAD[dtype]})"
    return limit, "bfloat16 or float16 allow 256" if head <= 256 else ""


def _word(node: fx.Node) -> str:
    return op_name(node) or node.name


def _count(node: fx.Node) -> int:
    """Elements of its value, or of its first one."""
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return int(value.numel()) if isinstance(value, torch.Tensor) else -1
