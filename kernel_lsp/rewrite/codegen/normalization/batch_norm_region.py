"""A batch norm in train mode and what stands behind it, as one pointwise region over given
statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.ir import Operand, Value
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, Unsupported, op_name
from kernel_lsp.rewrite.codegen.core.space import RegionShape
from kernel_lsp.rewrite.codegen.reduction import channels
from kernel_lsp.rewrite.codegen.regions.grow import grow
from kernel_lsp.rewrite.codegen.regions.lower import LoweredRegion, is_identity, lower
from kernel_lsp.rewrite.codegen.regions.program_names import apply_program_names
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten
CORE = ("centered", "normed", "scaled", "affine", "cast")


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchNormRegion:
    """A batch norm and its tail as one pointwise region over x, mean, rstd and the rest."""

    norm: fx.Node
    nodes: tuple[fx.Node, ...]
    """Of the graph: the norm, then its tail."""
    lowered: LoweredRegion
    """Inputs are nodes of the graph; None stands for the statistics."""
    inputs: tuple[fx.Node | None, ...]
    x: Operand
    mean: Operand
    rstd: Operand
    normed: Value
    affine: Value
    """``normed`` with weight and bias."""
    layout: channels.ChannelLayout

    @property
    def given(self) -> list[tuple[Operand, fx.Node]]:
        """What the launcher takes besides the running statistics."""
        pairs = zip(self.lowered.region.operands, self.inputs, strict=True)
        return [(operand, node) for operand, node in pairs if node is not None]


def parts_of(graph: Graph, norm: fx.Node) -> BatchNormRegion | None:
    """The norm with the tail that the pointwise generator can take along; None when the norm is not
    covered."""
    if not _is_covered(graph, norm):
        return None
    scratch = graph.copy()
    made = _expand_norm(scratch, scratch.named(norm.name))
    space = RegionShape(sizes=tuple(int(n) for n in norm.meta["val"].shape))
    nodes = grow(scratch, made["out"], space)
    if made["out"] not in nodes:
        return None
    core = {node for key, node in made.items() if key in CORE}
    tail = [node for node in nodes if node not in core]
    nodes = scratch.ordered({*core, *_behind(tail, made["out"])})
    try:
        lowered = apply_program_names(scratch, lower(scratch, nodes, space, _name(nodes, core)))
    except Unsupported:
        return None
    expanded = _Expanded(norm, made, tuple(node for node in nodes if node not in core), lowered)
    return _assemble(graph, expanded)


@dataclass(frozen=True, slots=True)
class _Expanded:
    """The norm as pointwise operations of a scratch graph, lowered with its tail."""

    norm: fx.Node
    made: dict[str, fx.Node]
    tail: tuple[fx.Node, ...]
    lowered: LoweredRegion


def _is_covered(graph: Graph, norm: fx.Node) -> bool:
    value, running = norm.args[0].meta["val"], argument(norm, "running_mean")
    affine = {argument(norm, "weight") is None, argument(norm, "bias") is None}
    shared = running is not None and (
        len(running.users) != 1
        or len(argument(norm, "running_var").users) != 1
        or running not in graph.state
    )
    return (
        argument(norm, "training") is True
        and isinstance(argument(norm, "momentum"), float)
        and value.dtype in FLOATS
        and value.dim() >= 2
        and value.shape[1] > 1
        and value.shape[0] > 1
        and value.is_contiguous()
        and len(affine) == 1
        and not shared
    )


def _expand_norm(scratch: Graph, norm: fx.Node) -> dict[str, fx.Node]:
    """The norm as pointwise operations in front of it; its statistics are placeholders of the
    right kind."""
    x, value = norm.args[0], norm.meta["val"]
    dims = [axis for axis in range(value.dim()) if axis != 1]
    wide = {"dtype": torch.float32}
    made = {}
    for name in ("mean", "rstd"):
        made[name] = scratch.call(aten.mean.dim, (x, dims, True), wide, before=norm, name=name)
    made["centered"] = scratch.call(aten.sub.Tensor, (x, made["mean"]), before=norm)
    made["out"] = made["normed"] = scratch.call(
        aten.mul.Tensor, (made["centered"], made["rstd"]), before=norm, name="normed"
    )
    shape = [1, value.shape[1], *[1] * (value.dim() - 2)]
    if argument(norm, "weight") is not None:
        for name in ("weight", "bias"):
            made[name] = scratch.call(aten.view.default, (argument(norm, name), shape), before=norm)
        made["scaled"] = scratch.call(
            aten.mul.Tensor, (made["normed"], made["weight"]), before=norm
        )
        made["out"] = scratch.call(aten.add.Tensor, (made["scaled"], made["bias"]), before=norm)
    made["affine"] = made["out"]
    if value.dtype != made["out"].meta["val"].dtype:
        made["out"] = made["cast"] = scratch.call(
            aten.to.dtype, (made["out"], value.dtype), before=norm
        )
    norm.replace_all_uses_with(made["out"])
    scratch.fx.erase_node(norm)
    return made


def _behind(tail: Sequence[fx.Node], out: fx.Node) -> set[fx.Node]:
    """Tail nodes that depend on the norm; what merely stands beside it stays where it is."""
    found = {out}
    for node in tail:
        if set(node.all_input_nodes) & found:
            found.add(node)
    return found - {out}


def _assemble(graph: Graph, expanded: _Expanded) -> BatchNormRegion | None:
    norm, made, lowered = expanded.norm, expanded.made, expanded.lowered
    by_name = {node.name: node for node in graph.fx.nodes}
    statistics = {made["mean"]: "mean", made["rstd"]: "rstd"}
    views = {made[key]: argument(norm, key) for key in ("weight", "bias") if key in made}
    pairs = list(zip(lowered.region.operands, lowered.inputs, strict=True))
    named = {statistics[node]: operand for operand, node in pairs if node in statistics}
    x = next((o for o, node in pairs if node.name == norm.args[0].name), None)
    if x is None or not _has_channels(lowered, x, named):
        return None
    inputs = tuple(
        None if node in statistics else views.get(node, by_name.get(node.name)) for _, node in pairs
    )
    tail = tuple(by_name[node.name] for node in expanded.tail)
    return BatchNormRegion(
        norm=norm,
        nodes=(norm, *tail),
        lowered=lowered,
        inputs=inputs,
        x=x,
        mean=named["mean"],
        rstd=named["rstd"],
        normed=lowered.values[made["normed"]],
        affine=lowered.values[made["affine"]],
        layout=channels.ChannelLayout(region=lowered.region, channel=1),
    )


def _has_channels(lowered: LoweredRegion, x: Operand, statistics: dict[str, Operand]) -> bool:
    """Both statistics are there, by dimension 1 of two or three that the input has, too."""
    if len(statistics) != 2 or statistics["mean"].axes != (1,):
        return False
    return len(lowered.region.dims) in (2, 3) and len(x.axes) == len(lowered.region.dims)


def _name(nodes: Sequence[fx.Node], core: set[fx.Node]) -> str:
    words = [op_name(node) for node in nodes if node not in core and not is_identity(node)]
    return "_".join(["batch", "norm", *list(dict.fromkeys(words))[:3]])
