"""Rotary position embeddings, x * cos + cat((-second half, first half)) * sin: one pass each way.

Covered: two to four dimensions of any layout, cosines and sines of x's dtype that are broadcast or
whole, halves taken by chunk, split or slices; training, where gradients of cosines and sines are
made only for whole ones. Not covered: pairs of neighbors in the place of halves, a part of the
last dimension, cosines of another dtype. Query and key get a launch each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.backward.kernels import require_constant
from kernel_lsp.rewrite.codegen.core import launching
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, dtype_name, op_name
from kernel_lsp.rewrite.codegen.core.source import next_power_of_two
from kernel_lsp.rewrite.codegen.regions import cost
from kernel_lsp.rewrite.codegen.rotary import source as rotary_source
from kernel_lsp.rewrite.generated import GUARDED, GeneratedSource, Match
from kernel_lsp.rewrite.graph import Graph, argument

MIN_SAVING = 0.1
BLOCK = 1024
"""Elements of one half that a program reads: with 4 warps one 16-byte access a thread in 16
bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotary:
    """One rotation in the graph: ``nodes`` in graph order, the last of them its result."""

    x: fx.Node
    cos: fx.Node
    sin: fx.Node
    nodes: tuple[fx.Node, ...]

    @property
    def operands(self) -> dict[str, fx.Node]:
        """The tensors that the kernel reads, by name."""
        return {"x": self.x, "cos": self.cos, "sin": self.sin}

    @property
    def out(self) -> fx.Node:
        """The node of the result."""
        return self.nodes[-1]


# --- finding it --------------------------------------------------------------------------


def find(graph: Graph, out: fx.Node) -> Rotary | None:
    """The rotation whose last operation this is."""
    if op_name(out) != "add" or argument(out, "alpha", 1) != 1:
        return None
    products = [arg for arg in out.args[:2] if isinstance(arg, fx.Node) and op_name(arg) == "mul"]
    if len(products) != 2 or products[0] is products[1]:
        return None
    for straight, crossed in (products, products[::-1]):
        found = _rotation(graph, out, straight, crossed)
        if found is not None:
            return found
    return None


def _rotation(graph: Graph, out: fx.Node, straight: fx.Node, crossed: fx.Node) -> Rotary | None:
    for turned, sin in _orders(crossed):
        base = _turned(turned)
        for x, cos in _orders(straight):
            if base is None or x is not base:
                continue
            inner = [straight, crossed, turned, turned.args[0][0]]
            nodes = graph.ordered({*inner, out})
            item = Rotary(x=x, cos=cos, sin=sin, nodes=tuple(nodes))
            if all(_is_private(graph, node, nodes) for node in inner) and _is_covered(graph, item):
                return item
    return None


def _orders(product: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    left, right = product.args[:2]
    nodes = isinstance(left, fx.Node) and isinstance(right, fx.Node)
    return [(left, right), (right, left)] if nodes else []


def _is_private(graph: Graph, node: fx.Node, nodes: Sequence[fx.Node]) -> bool:
    return not graph.is_output(node) and all(user in nodes for user in node.users)


def _turned(node: fx.Node) -> fx.Node | None:
    """The tensor of which the node is cat((-second half, first half)) over the last dimension."""
    if op_name(node) != "cat" or len(node.args[0]) != 2:
        return None
    value = node.meta["val"]
    if value.dim() < 2 or int(argument(node, "dim", 0)) % value.dim() != value.dim() - 1:
        return None
    second, first = _negated(node.args[0][0]), _half(node.args[0][1])
    other = _half(second) if second is not None else None
    if first is None or other is None or (first[1], other[1]) != (0, 1):
        return None
    return first[0] if first[0] is other[0] and first[0] is not node else None


def _negated(node: Any) -> fx.Node | None:
    name = op_name(node)
    minus = name == "neg" or (name == "mul" and isinstance(node.args[1], (int, float)))
    if not minus or (name == "mul" and node.args[1] != -1):
        return None
    return node.args[0] if isinstance(node.args[0], fx.Node) else None


def _half(node: Any) -> tuple[fx.Node, int] | None:
    """The tensor of whose last dimension the node is the first (0) or the second half (1)."""
    if getattr(getattr(node, "target", None), "__name__", "") == "getitem":
        parts, index = node.args
        base = parts.args[0]
        if op_name(parts) not in ("chunk", "split", "tensor_split") or index not in (0, 1):
            return None
        return (base, index) if _halves(base, node, int(argument(parts, "dim", 0))) else None
    if op_name(node) != "slice" or int(argument(node, "step", 1)) != 1:
        return None
    base, start = node.args[0], argument(node, "start", 0) or 0
    size = base.meta["val"].shape[-1]
    at = start + size if start < 0 else start
    if not _halves(base, node, int(argument(node, "dim", 0))) or at not in (0, size // 2):
        return None
    return base, int(at > 0)


def _halves(base: fx.Node, part: fx.Node, dim: int) -> bool:
    whole, piece = base.meta["val"], part.meta["val"]
    last = whole.dim() > 0 and dim % whole.dim() == whole.dim() - 1
    return bool(last and 2 * piece.shape[-1] == whole.shape[-1])


def _is_covered(graph: Graph, item: Rotary) -> bool:
    x, out = item.x.meta["val"], item.out.meta["val"]
    alike = all(node.meta["val"].dtype == x.dtype for node in item.operands.values())
    if not alike or x.dtype not in FLOATS or not 2 <= x.dim() <= rotary_source.RANK:
        return False
    if x.numel() == 0 or x.shape != out.shape:
        return False
    if torch.empty_like(x).stride() != out.stride():
        return False  # eager lays the result out otherwise than the kernel would
    if graph.gradients and graph.origin.hides_gradients:
        return False
    return all(_is_table(graph, node, item.x) for node in (item.cos, item.sin))


def _is_table(graph: Graph, node: fx.Node, x: fx.Node) -> bool:
    """Cosines or sines for all of the last dimension; trained ones are not broadcast: their
    gradient would be a sum."""
    value, rotated = node.meta["val"], x.meta["val"]
    if value.dim() == 0 or value.shape[-1] != rotated.shape[-1]:
        return False
    trained = graph.gradients and graph.carries(node)
    return value.shape == rotated.shape or not trained


# --- what it is worth --------------------------------------------------------------------


def matches(graph: Graph) -> list[Match]:
    """Rotations, each with what a kernel is estimated to save."""
    found = [find(graph, node) for node in graph.nodes if op_name(node) == "add"]
    return [_match(graph, item) for item in found if item is not None]


def _match(graph: Graph, item: Rotary) -> Match:
    return Match(
        nodes=item.nodes,
        label=graph.label(*item.nodes),
        summary="rotate both halves in one pass",
        benefit=_benefit(graph, item),
        plain=False,
        differentiable=True,
        data={"out": item.out.name, "parameters": parameters(item)},
    )


def _benefit(graph: Graph, item: Rotary) -> float:
    operands = sum(cost.bytes_of(node) for node in item.operands.values())
    moved = operands + cost.bytes_of(item.out)
    speed = cost.rates(graph).bytes_per_s
    if not is_trained(graph, item):
        return cost.benefit(
            graph, item.nodes, cost.launched_seconds(graph, moved / speed, 1), MIN_SAVING
        )
    back = (
        cost.bytes_of(item.out) + operands + sum(map(cost.bytes_of, wanted(graph, item).values()))
    )
    ours_s = cost.launched_seconds(graph, (moved + back) / speed, 2)
    return cost.trained_benefit(graph, item.nodes, ours_s, 2, MIN_SAVING)


def is_trained(graph: Graph, item: Rotary) -> bool:
    """Whether a gradient flows to one of the operands."""
    return bool(graph.gradients and wanted(graph, item))


def wanted(graph: Graph, item: Rotary) -> dict[str, fx.Node]:
    """The operands that get a gradient, by the launcher's names."""
    return {name: node for name, node in item.operands.items() if graph.carries(node)}


def parameters(item: Rotary) -> dict[str, list[Any]]:
    """Choices for the kernel, the default first: rows of a block, warps."""
    wide = next_power_of_two(item.x.meta["val"].shape[-1] // 2)
    rows = [max(1, size // wide) for size in (BLOCK, 2 * BLOCK, BLOCK // 2)]
    return {"BLOCK_ROWS": list(dict.fromkeys(rows)), "num_warps": [4, 8]}


# --- applying it -------------------------------------------------------------------------


def proofs(graph: Graph, match: Match) -> list[Proof]:
    """What holds of the match, each with its reason."""
    return [
        Proof(
            claim="both products are of one tensor and its halves, the second one negated",
            holds=True,
            because=f"the operations of {match.label}",
        ),
        Proof(claim="nobody else reads what is no longer written", holds=True,
              because="the graph's edges"),
        Proof(
            claim="no gradient is lost", holds=True,
            because="the rotation back, in a backward kernel behind torch.autograd.Function"
            if graph.gradients
            else GUARDED,
        ),
    ]  # fmt: skip


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Put a kernel in the place of the rotation. Raises RewriteError where it is no longer
    there."""
    item = find(graph, graph.named(match.data["out"]))
    if item is None:
        raise RewriteError(f"{match.label} is no longer a rotation", "apply it first")
    defaults = {name: choices[0] for name, choices in parameters(item).items()}
    chosen = {**defaults, **{name: value for name, value in choice.items() if name in defaults}}
    kernel = launching.make_named(
        graph, "fused_rotary", lambda name: generate(graph, item, chosen, name)
    )
    if graph.gradients:
        gets = wanted(graph, item)
        for name, node in item.operands.items():
            if name not in gets:
                require_constant(graph, node)
    value = item.x.meta["val"]
    with value.fake_mode:
        like = torch.empty_like(value)
    made = graph.call_generated(
        kernel, list(item.operands.values()), like=like, before=item.out, name="rotated"
    )
    graph.replace(item.out, made)
    graph.caveat(
        "intermediate results stay in float32; eager rounds each of them to the tensor's dtype"
    )


def generate(graph: Graph, item: Rotary, choice: dict[str, Any], name: str) -> GeneratedSource:
    """The kernel of this name with its launcher, and its backward where a gradient is wanted."""
    value = item.x.meta["val"]
    narrow = [name for name, node in item.operands.items() if node.meta["val"].shape != value.shape]
    gets = tuple(wanted(graph, item)) if graph.gradients else ()
    job = rotary_source.RotaryJob(
        name=name,
        dtype=dtype_name(value.dtype),
        shapes={name: _words(node, value) for name, node in item.operands.items()},
        half=value.shape[-1] // 2,
        choice=choice,
        narrow=narrow,
        gets=gets,
    )
    return replace(rotary_source.emit(job), supports_autograd=bool(gets))


def _words(node: fx.Node, rotated: torch.Tensor) -> tuple[str, ...]:
    shape = node.meta["val"].shape
    near = zip(rotary_source.AXES[-len(shape) :], shape, rotated.shape[-len(shape) :], strict=True)
    return tuple(word if size == whole else str(size) for word, size, whole in near)
