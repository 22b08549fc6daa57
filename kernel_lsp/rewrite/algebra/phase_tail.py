"""Pointwise steps after a transposed convolution that join the kernel which puts its phases in
place.

`tail_of(graph, node)`: the longest run of steps whose only result is their last; other operands
may have one value for each channel, one for all, or one for each output. `lower_tail` turns it
into statements of a kernel in which ``plane`` counts samples and channels and ``position`` the
outputs of one. Not covered: reductions, pools, float64 (which the kernels of codegen compute in
float32)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from kernel_lsp.rewrite.algebra.convolution import Convolution
from kernel_lsp.rewrite.codegen.convolution.tail import operand_kind
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Operand, Value, apply, load
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, argument_nodes, dtype_name
from kernel_lsp.rewrite.codegen.pointwise.operations import is_pointwise, value_of
from kernel_lsp.rewrite.codegen.regions.grow import convex
from kernel_lsp.rewrite.graph import Graph

MAX_TAIL_STEPS = 16
"""Steps of a tail; a longer kernel is no longer read by anybody."""
TAKEN = ("plane", "n_planes", "position", "inside", "phase", "phases", "place", "reached", "source",
         "out_d", "out_h", "out_w", "BLOCK_SIZE")  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredTail:
    lines: tuple[str, ...]
    """Statements of the kernel, from the load of the phases to the value to be stored."""
    result: str
    operands: tuple[tuple[fx.Node, str, str], ...]
    """(node, name, kind: channel, scalar or element) of what is read beside the phases, bias
    first."""
    numbers: tuple[float, ...]


def tail_of(graph: Graph, node: fx.Node) -> tuple[fx.Node, ...]:
    """Steps in graph order, without the convolution itself; may be empty."""
    full = tuple(node.meta["val"].shape)
    members = [node]
    for later in (
        graph.nodes[graph.nodes.index(node) + 1 :] if node.meta["val"].dtype in FLOATS else ()
    ):
        if any(arg in members for arg in later.all_input_nodes) and _joins(later, members, full):
            members.append(later)
    for end in range(min(len(members), MAX_TAIL_STEPS + 1), 1, -1):
        inside = set(members[:end])
        alone = all(
            not graph.is_output(item) and set(item.users) <= inside for item in members[: end - 1]
        )
        if alone and convex(graph, inside):
            return tuple(members[1:end])
    return ()


def _joins(node: fx.Node, members: Sequence[fx.Node], full: tuple[int, ...]) -> bool:
    value = node.meta["val"]
    if not is_pointwise(node) or tuple(value.shape) != full or value.dtype not in FLOATS:
        return False
    others = [arg for _, arg in argument_nodes(node) if arg not in members]
    return all(
        arg.meta["val"].dtype in FLOATS and operand_kind(arg, full) is not None for arg in others
    )


def lower_tail(graph: Graph, made: Convolution, tail: Sequence[fx.Node]) -> LoweredTail:
    """The tail as values of the generator, with the operands that it reads and what each is like;
    the phases are one of them."""
    full = tuple(graph.val(made.node).shape)
    names = UniqueNames(TAKEN)
    kinds: dict[str, str] = {"phases": "phases"}
    operands: list[tuple[fx.Node, str, str]] = []
    values: dict[fx.Node, Any] = {}

    def read(node: fx.Node) -> Value:
        if node not in values:
            kind = "channel" if node is made.bias else str(operand_kind(node, full))
            name = names.fresh(_word(graph, node))
            kinds[name] = kind
            operands.append((node, name, kind))
            values[node] = load(
                Operand(name=name, dtype=dtype_name(graph.val(node).dtype), axes=(0,))
            )
        return values[node]

    stored = Operand(name="phases", dtype=dtype_name(graph.val(made.node).dtype), axes=(0,))
    first = replace(load(stored), hint="tap_sum")
    value: Any = (
        first
        if made.bias is None
        else apply("add", first, read(made.bias), hint=graph.variable(made.node))
    )
    values[made.node] = value
    for node in tail:
        value = value_of(node, read)
        values[node] = value
    body = Body(
        UniqueNames([*TAKEN, *(f"{name}_ptr" for name in kinds)]),
        lambda operand: _load(operand, kinds, made),
    )
    result = str(body.text(value))
    scalars = [arg for node in tail for arg in node.args if isinstance(arg, (int, float))]
    return LoweredTail(
        lines=tuple(body.lines),
        result=result,
        operands=tuple(operands),
        numbers=tuple(float(number) for number in scalars),
    )


def _load(operand: Operand, kinds: dict[str, str], made: Convolution) -> str:
    kind = kinds[operand.name]
    if kind == "phases":
        return "tl.load(source, mask=reached, other=0.0)"
    if kind == "channel":
        return f"tl.load({operand.name}_ptr + plane % {made.out_channels})"
    if kind == "scalar":
        return f"tl.load({operand.name}_ptr)"
    return f"tl.load({operand.name}_ptr + start + position, mask=inside)"


def _word(graph: Graph, node: fx.Node) -> str:
    path = graph.state.get(node)
    return path.split(".")[-1] if path is not None else graph.variable(node)
