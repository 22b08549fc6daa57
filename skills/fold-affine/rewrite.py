"""Numbers and per-channel tensors added to or multiplied with a layer's result move into its
weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kernel_lsp.rewrite.algebra import convolution as conv
from kernel_lsp.rewrite.algebra import monotone
from kernel_lsp.rewrite.skill import (
    EXACT_DTYPES,
    Graph,
    Match,
    Node,
    Proof,
    argument,
    aten,
    cost,
    flatten_channels,
    is_number,
    is_op,
    proof,
)

parameters: dict[str, list[object]] = {}


@dataclass(frozen=True, kw_only=True)
class AffineLayer:
    node: Node
    channel: int
    """Dimension of the output that the bias runs along."""
    channels: int
    groups: int
    transposed: bool

    @property
    def weight(self) -> Node:
        return argument(self.node, "weight")


@dataclass(frozen=True, kw_only=True)
class AffineStep:
    node: Node
    kind: str
    other: Any
    """A number, or a node with one value for each channel (or one for all)."""


def match(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        layer = _layer(graph, node)
        chain = _chain(graph, layer) if layer is not None else []
        first = _scaled_input(graph, layer) if layer is not None else None
        steps = [step for step in (first, *chain) if step is not None]
        if layer is None or not steps:
            continue
        scaled = any(step.kind in ("mul", "div") for step in steps)
        nodes = [*([first.node] if first is not None else []), node, *(step.node for step in chain)]
        rates = cost.rates(graph)
        gone = sum(cost.seconds(graph, step.node) for step in steps)
        weight = 2 * cost.moved_bytes_of(graph, layer.weight) / rates.bytes_per_s if scaled else 0.0
        made = weight + rates.overhead_s * (len(chain) + scaled)
        where = "weight and bias" if scaled else "bias"
        found.append(
            Match(
                nodes=tuple(nodes),
                label=graph.label(*nodes),
                summary=f"fold {_words(steps)} into the {where} of {node.target._opname}",
                benefit=cost.share(graph, gone - made),
                data={"layer": layer, "first": first, "chain": chain, "scaled": scaled},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    layer: AffineLayer = match.data["layer"]
    chain: list[AffineStep] = match.data["chain"]
    before = match.nodes[:-1]
    alone = all(len(graph.users(node)) == 1 and not graph.is_output(node) for node in before)
    dtypes = {
        graph.fact(node).dtype
        for node in (layer.node, layer.weight, *_tensors(graph, layer, chain))
    }
    exact = not match.data["scaled"] or dtypes <= set(EXACT_DTYPES)
    return [
        proof(
            "every step is the same along all dimensions but the channels",
            True,
            "numbers and parameters",
        ),
        proof("nobody else reads the steps in between", alone, "one reader each"),
        proof("one dtype", len(dtypes) == 1, ", ".join(sorted(map(str, dtypes)))),
        proof(
            "a scaled weight keeps its precision",
            exact,
            "16-bit weights would be rounded once more",
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    layer: AffineLayer = match.data["layer"]
    first: AffineStep | None = match.data["first"]
    here = match.nodes[-1]
    value = layer.node.args[0] if first is None else _base(first)
    bias, steps = argument(layer.node, "bias"), list[AffineStep]()
    for step in match.data["chain"]:
        flat = (
            flatten_channels(graph, step.other, here)
            if isinstance(step.other, Node)
            else step.other
        )
        steps.append(replace(step, other=flat))
        bias = _fold_into_bias(graph, match, bias, steps[-1])
    if bias is not None and bias is not argument(layer.node, "bias"):
        bias.meta["name"] = "bias"
    weight = _fold_into_weight(graph, match, steps)
    folded = bias if not match.data["scaled"] else weight
    graph.note(folded, "Folded on each call, so training and load_state_dict stay right.")
    args = (value, weight, bias, *layer.node.args[3:])
    made = graph.call(layer.node.target, args, layer.node.kwargs, before=here)
    graph.caveat(
        "weights and bias are rounded once more by the fold; infinite values can differ in kind"
    )
    graph.replace(here, made)


def _fold_into_bias(graph: Graph, match: Match, bias: Node | None, step: AffineStep) -> Node | None:
    here = match.nodes[-1]
    if bias is not None:
        return graph.call(getattr(aten, step.kind).Tensor, (bias, step.other), before=here)
    if step.kind in ("add", "sub"):
        return _first_bias(graph, match.data["layer"], step, here)
    return None


def _fold_into_weight(graph: Graph, match: Match, steps: list[AffineStep]) -> Node:
    """Numbers first, all at once, then tensors of one value for each channel."""
    layer: AffineLayer = match.data["layer"]
    first: AffineStep | None = match.data["first"]
    weight, here = layer.weight, match.nodes[-1]
    scales = [step for step in steps if step.kind in ("mul", "div")]
    number = 1.0 if first is None else _factor(first)
    for step in scales:
        number *= _factor(step) if is_number(step.other) else 1.0
    if number != 1.0:
        weight = graph.call(aten.mul.Tensor, (weight, number), before=here)
    for step in scales:
        if not is_number(step.other):
            rows = conv.by_output(
                graph, layer.weight, step.other, layer.transposed, layer.groups, here
            )
            weight = graph.call(getattr(aten, step.kind).Tensor, (weight, rows), before=here)
    if weight is not layer.weight:
        weight.meta["name"] = "weight"
    return weight


# --- what is matched ---------------------------------------------------------------------


def _layer(graph: Graph, node: Node) -> AffineLayer | None:
    if is_op(node, aten.linear):
        rank = len(graph.fact(node).shape)
        channels = graph.fact(node).shape[-1] if rank > 1 else 0
        return (
            AffineLayer(node=node, channel=rank - 1, channels=channels, groups=1, transposed=False)
            if channels
            else None
        )
    made = conv.read(node)
    if made is None or "bias" in node.kwargs:
        return None
    return AffineLayer(
        node=node,
        channel=1,
        channels=made.out_channels,
        groups=made.groups,
        transposed=made.transposed,
    )


def _scaled_input(graph: Graph, layer: AffineLayer) -> AffineStep | None:
    """A number that multiplies what the layer reads: padding with zeros does not see it."""
    node = layer.node.args[0]
    step = monotone.affine(node)
    if (
        step is None
        or step.kind not in ("mul", "div")
        or not is_number(step.other)
        or step.other == 0
    ):
        return None
    found = AffineStep(node=node, kind=step.kind, other=step.other)
    alone = graph.only_user(node) is layer.node
    return found if alone and 2**-30 <= abs(_factor(found)) <= 2**30 else None


def _factor(step: AffineStep) -> float:
    return float(step.other) if step.kind == "mul" else 1.0 / step.other


def _base(step: AffineStep) -> Node:
    found = monotone.affine(step.node)
    assert found is not None, "matched as affine"
    return found.value


def _chain(graph: Graph, layer: AffineLayer) -> list[AffineStep]:
    """Affine steps that follow the layer, each read by the next one alone."""
    found: list[AffineStep] = []
    node = layer.node
    while (reader := graph.only_user(node)) is not None:
        step = monotone.affine(reader)
        if step is None or step.value is not node or not _fits(graph, layer, reader, step):
            break
        found.append(AffineStep(node=reader, kind=step.kind, other=step.other))
        node = reader
    return found if _stays_finite(found) else []


def _fits(graph: Graph, layer: AffineLayer, reader: Node, step: monotone.Affine) -> bool:
    if is_number(step.other):
        return step.kind in ("add", "sub") or step.other != 0
    shape = graph.fact(step.other).shape
    rank = len(graph.fact(reader).shape)
    full = (1,) * (rank - len(shape)) + shape
    only = all(size == 1 for dim, size in enumerate(full) if dim != layer.channel)
    return (
        only
        and full[layer.channel] in (1, layer.channels)
        and len(shape) > 0
        and _early(graph, layer, step.other)
    )


def _early(graph: Graph, layer: AffineLayer, other: Node) -> bool:
    """A parameter, not something computed from the data on the way."""
    return other in graph.state


def _stays_finite(chain: list[AffineStep]) -> bool:
    """No product on the way is far from those at both ends, where it alone overflows or
    vanishes."""
    product, most, least = 1.0, 1.0, 1.0
    for step in chain:
        if step.kind in ("mul", "div") and is_number(step.other):
            product = product * step.other if step.kind == "mul" else product / step.other
            most, least = max(most, abs(product)), min(least, abs(product))
    ends = min(1.0, abs(product)), max(1.0, abs(product))
    return (
        ends[0] > 2**-60
        and ends[1] < 2**60
        and most <= 2**30 * ends[1]
        and least >= 2**-30 * ends[0]
    )


def _tensors(graph: Graph, layer: AffineLayer, chain: list[AffineStep]) -> list[Node]:
    bias = argument(layer.node, "bias")
    others = [step.other for step in chain if isinstance(step.other, Node)]
    return [*others, bias] if bias is not None else others


# --- what is written ---------------------------------------------------------------------


def _first_bias(graph: Graph, layer: AffineLayer, step: AffineStep, here: Node) -> Node:
    """The layer had none: a number fills it, a tensor of one value is spread."""
    kind, other = step.kind, step.other
    if is_number(other):
        like = graph.fact(layer.node)
        sign = -other if kind == "sub" else other
        kwargs = {"dtype": like.dtype, "device": graph.val(layer.node).device}
        return graph.call(aten.full.default, ([layer.channels], float(sign)), kwargs, before=here)
    if graph.fact(other).numel != layer.channels:
        other = graph.call(aten.expand.default, (other, [layer.channels]), before=here)
    return graph.call(aten.neg.default, (other,), before=here) if kind == "sub" else other


def _words(chain: list[AffineStep]) -> str:
    return ", ".join(dict.fromkeys(step.kind for step in chain))
