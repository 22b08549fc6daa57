"""``max(dim)`` and ``min(dim)`` that return values and places: one pass over the tensor.

In the graph they become `amax` and `argmax`, which share a row kernel (reduction/). In training the
gradient goes to the place that was found, as eager's does, so that ties share nothing: zeros and a
scatter in PyTorch, which are all that it takes. Covered: float tensors that are contiguous, any
dimension. Not covered: operations before and after, `amax` alone (fused-reduction has it)."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.core import launching, source
from kernel_lsp.rewrite.codegen.core.ir import part
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, Unsupported, op_name
from kernel_lsp.rewrite.codegen.core.space import MAX_COUNTED, RegionShape, space_of
from kernel_lsp.rewrite.codegen.regions import cost, templates
from kernel_lsp.rewrite.codegen.regions.lower import LoweredRegion, lower
from kernel_lsp.rewrite.generated import GUARDED, GeneratedSource, Match, Miss
from kernel_lsp.rewrite.graph import Graph, argument

aten = torch.ops.aten
PARTS = {"max": (aten.amax.default, aten.argmax.default),
         "min": (aten.amin.default, aten.argmin.default)}  # fmt: skip
MIN_SAVING = 0.1
EAGER_PASSES = 2.5
"""Times eager moves the tensor, forward: 2.5 for [32, 1024, 4096] in bfloat16, 3.9 for the channels
of [16, 151, 127, 129], 16 for rows of 80 elements (H200, 2026-11-28)."""
FUNCTION = '''\
class _{title}(torch.autograd.Function):
    """{summary}

    The gradient goes to the place that was found.
    """

    @staticmethod
    def forward(ctx, {x}):
        values, places = {name}_forward({x})
        ctx.save_for_backward(places)
        ctx.mark_non_differentiable(places)
        ctx.shape = {x}.shape
        return values, places

    @staticmethod
    def backward(ctx, grad_values, grad_places):
        (places,) = ctx.saved_tensors
{kept}        return grad_values.new_zeros(ctx.shape).scatter({dim}, places, grad_values)


def {name}({x}):
    return _{title}.apply({x})
'''
KEPT = """\
        places, grad_values = places.unsqueeze({dim}), grad_values.unsqueeze({dim})
"""


def matches(graph: Graph) -> list[Match]:
    """Nodes that are found in one pass, each with what that is estimated to save."""
    asked = [node for node in _pairs(graph) if _refusal(node) is None and _is_read(graph, node)]
    found = [_match(graph, node) for node in asked]
    return [match for match in found if match is not None]


def misses(graph: Graph) -> Iterator[Miss]:
    """Nodes whose tensors no kernel of these reads."""
    for node in _pairs(graph):
        if (why := _refusal(node)) is not None:
            yield Miss(nodes=(node,), missing=why)


def _pairs(graph: Graph) -> list[fx.Node]:
    """Those that return values and places."""
    return [
        node
        for node in graph.nodes
        if op_name(node) in PARTS and isinstance(node.meta["val"], (tuple, list))
    ]


def _refusal(node: fx.Node) -> str | None:
    """Why no kernel finds them in one pass; None where one does."""
    x, dim = node.args[0].meta["val"], argument(node, "dim")
    if x.dtype not in FLOATS:
        return f"no kernel computes in {x.dtype}"
    if not isinstance(dim, int) or x.dim() == 0 or not x.numel() or x.shape[dim] == 1:
        return "no elements to compare"
    if not x.is_contiguous():
        return "the tensor is not contiguous: copying it first would cost a pass"
    return "more elements than float32 counts" if x.shape[dim] > MAX_COUNTED else None


def _is_read(graph: Graph, node: fx.Node) -> bool:
    """Whether the places are of use; values alone without gradients are max-without-indices'."""
    if graph.is_output(node):
        return False
    return graph.gradients or any(user.args[1] == 1 for user in graph.users(node))


def _match(graph: Graph, node: fx.Node) -> Match | None:
    if _is_trained(graph, node) and graph.origin.hides_gradients:
        return None
    copy = graph.copy()
    try:
        lowered, template = _lower(copy, copy.named(node.name), "extremes")
    except Unsupported:
        return None
    return Match(
        nodes=(node,),
        label=graph.label(node),
        summary=f"find the {op_name(node)} and its place in one pass",
        benefit=_benefit(graph, node, lowered, template),
        plain=False,
        differentiable=True,
        data={"parameters": template.parameters},
    )


def _lower(graph: Graph, node: fx.Node, name: str) -> tuple[LoweredRegion, templates.Template]:
    """The region of the two operations that the node is, which stand in the graph from then on, and
    what runs it. Raises Unsupported."""
    x, dim, kept = node.args[0], argument(node, "dim"), bool(argument(node, "keepdim", False))
    largest, place = PARTS[op_name(node)]
    parts = [
        graph.call(largest, (x, [dim], kept), before=node, name="values"),
        graph.call(place, (x, dim, kept), before=node, name="places"),
    ]
    for item in parts:  # read by somebody, else it is no result of the region
        graph.call(aten.alias.default, (item,), before=node)
    space: RegionShape | None = space_of(parts[1])
    if space is None:
        raise Unsupported("rows that no kernel walks")
    lowered = lower(graph, parts, space, name)
    values, places = lowered.region.outputs
    pair = places.value.values[0].values[0]  # a place, as int64: the value is beside it
    values = replace(values, name="values", value=part(pair, 0, "found"))
    region = replace(lowered.region, outputs=(values, replace(places, name="places")))
    return replace(lowered, region=region), templates.template_for(region, space)


def _benefit(
    graph: Graph, node: fx.Node, lowered: LoweredRegion, template: templates.Template
) -> float:
    speed = cost.rates(graph)
    moved = cost.bytes_of(node.args[0]) / speed.bytes_per_s
    ours = cost.fused_seconds(graph, lowered, template.launches, template.passes)
    if not _is_trained(graph, node):
        return cost.share_of(graph, EAGER_PASSES * moved + speed.overhead_s, ours, MIN_SAVING)
    both = moved + speed.overhead_s  # zeros and a scatter, in either form
    eager = EAGER_PASSES * moved + speed.overhead_s + both
    return cost.share_of(graph, eager, ours + both, MIN_SAVING)


def _is_trained(graph: Graph, node: fx.Node) -> bool:
    return bool(graph.gradients and graph.carries(node.args[0]))


def proofs(graph: Graph, match: Match) -> list[Proof]:
    """What holds of the match, each with its reason."""
    (node,) = match.nodes
    x = node.args[0].meta["val"]
    return [
        Proof(
            claim="values and places are those of the first of equals, NaN before all",
            holds=True,
            because="the reduction compares pairs of a value and its place, as torch does",
        ),
        Proof(
            claim="float32 counts the places",
            holds=x.shape[argument(node, "dim")] <= MAX_COUNTED,
            because=f"{x.shape[argument(node, 'dim')]} elements",
        ),
        Proof(
            claim="no gradient is lost",
            holds=True,
            because="it goes to the place that was found, behind torch.autograd.Function"
            if graph.gradients
            else GUARDED,
        ),
    ]


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Puts one kernel in the node's place."""
    (node,) = match.nodes
    trained = _is_trained(graph, node)
    wish = f"{op_name(node)}_and_place"

    def make(name: str) -> GeneratedSource:
        copy = graph.copy()
        lowered, template = _lower(copy, copy.named(node.name), name)
        chosen = {key: choice.get(key, found[0]) for key, found in template.parameters.items()}
        summary = f"The {op_name(node)} along dimension {argument(node, 'dim')} and its place."
        made = templates.emit(lowered.region, template, chosen, summary)
        if not trained:
            return replace(made, supports_autograd=graph.gradients)
        return _differentiable(made, node, lowered.region.operands[0].name)

    kernel = launching.make_named(graph, wish, make)
    with node.args[0].meta["val"].fake_mode:
        like = tuple(value.contiguous() for value in node.meta["val"])
    made = graph.call_generated(kernel, [node.args[0]], like=like, before=node, name="results")
    for user in graph.users(node):
        result = graph.call(operator.getitem, (made, user.args[1]), before=node)
        user.replace_all_uses_with(result)
    graph.drop_unused()


def _differentiable(forward: GeneratedSource, node: fx.Node, x: str) -> GeneratedSource:
    name, dim = forward.name, argument(node, "dim")
    kept = "" if argument(node, "keepdim", False) else KEPT.format(dim=dim)
    text = FUNCTION.format(
        title=source.title(name), summary=forward.summary, name=name, x=x, dim=dim, kept=kept
    )
    kernel = forward.definitions.replace(f"def {name}(", f"def {name}_forward(")
    return replace(forward, definitions="\n\n".join([kernel, text]), supports_autograd=True)
