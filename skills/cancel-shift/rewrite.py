"""What is the same for all that a normalization averages is subtracted again: a shift before it
cancels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernel_lsp.rewrite.algebra import convolution as conv
from kernel_lsp.rewrite.algebra import monotone
from kernel_lsp.rewrite.skill import (
    EXACT_DTYPES,
    NONFINITE,
    Graph,
    Match,
    Node,
    Proof,
    argument,
    aten,
    cost,
    dims_of,
    flatten_channels,
    is_number,
    is_op,
    nonfinite,
    proof,
    without_gradients,
)

SOFTMAX = (aten.softmax, aten.log_softmax)
SPREADS = (aten.var, aten.std)


@dataclass(frozen=True, kw_only=True)
class Shift:
    value: Node
    """What the normalization reads."""
    base: Node
    """The same without the shift: an earlier value, or the layer whose bias it is."""
    other: Any
    """A number, or a tensor with one value for each channel."""
    subtracted: bool
    from_layer: bool


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    return {} if is_number(match.data["shift"].other) else dict(NONFINITE)


def match(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        shift = _shift(graph, node)
        if shift is None:
            continue
        what = "the bias of " + shift.base.target._opname if shift.from_layer else "a shift"
        found.append(
            Match(
                nodes=(shift.value, node),
                label=graph.label(shift.value, node),
                summary=f"drop {what} that {_word(node)} subtracts again",
                benefit=cost.share(graph, _saved_seconds(graph, shift, node)),
                data={"shift": shift},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    value, node = match.nodes
    readers = set(graph.users(value)) <= {node, _average(node)} and not graph.is_output(value)
    dtype = graph.fact(node).dtype
    return [
        proof(
            "the shift is the same for all that is averaged",
            True,
            f"{_word(node)} over {_over(graph, node)}",
        ),
        proof(
            "only the normalization reads the shifted value", readers, f"readers of {value.name}"
        ),
        proof("the difference stays within rounding", dtype in EXACT_DTYPES, f"dtype is {dtype}"),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    shift: Shift = match.data["shift"]
    node = match.nodes[1]
    base = _without_bias(graph, shift.base) if shift.from_layer else shift.base
    args, kwargs = _arguments(graph, shift, base, node, parameters)
    word = _word(node)
    _correct_running_mean(graph, shift, node)
    graph.caveat(f"a value that {word} subtracts again is not added first: fewer roundings")
    made = node
    if is_op(node, aten.batch_norm):
        # It writes statistics: the call itself stays and reads something else.
        node.args, node.kwargs = args, kwargs
    else:
        made = graph.call(node.target, args, kwargs, before=node)
    graph.note(made, f"A shift before {word} is subtracted with the mean, so it is left out.")
    if made is not node:
        graph.replace(node, made)
    graph.drop_unused()


# --- what is matched ---------------------------------------------------------------------


def _shift(graph: Graph, node: Node) -> Shift | None:
    value = node.args[0] if node.args else None
    if not isinstance(value, Node) or not graph.fact(node).floating or not _normalizes(graph, node):
        return None
    step = monotone.affine(value)
    if step is not None and step.kind in ("add", "sub"):
        if not is_number(step.other) and not _by_channel(graph, node, value, step.other):
            return None
        subtracted = step.kind == "sub"
        return Shift(
            value=value, base=step.value, other=step.other, subtracted=subtracted, from_layer=False
        )
    made = conv.read(value)
    if made is None or made.bias is None or not _per_channel(graph, node):
        return None
    return Shift(value=value, base=value, other=made.bias, subtracted=False, from_layer=True)


def _normalizes(graph: Graph, node: Node) -> bool:
    """Adding one number to everything that is averaged changes nothing."""
    if is_op(node, aten.batch_norm):
        tracked = argument(node, "running_mean") is not None
        return argument(node, "training") is True and not (
            tracked and not 0 <= argument(node, "momentum") < 0.9
        )
    if is_op(node, aten.instance_norm):
        return argument(node, "use_input_stats") is True and argument(node, "running_mean") is None
    if is_op(node, *SOFTMAX):
        return argument(node, "dtype") is None
    if is_op(node, *SPREADS):
        return dims_of(node) is not None
    return is_op(node, aten.layer_norm, aten.group_norm) or _average(node) is not None


def _average(node: Node) -> Node | None:
    """The mean in ``x - x.mean(dim, keepdim=True)``."""
    if (
        not is_op(node, aten.sub)
        or len(node.args) != 2
        or argument(node, "alpha", 1) not in (None, 1)
    ):
        return None
    value, mean = node.args
    found = is_op(mean, aten.mean) and mean.args[0] is value and argument(mean, "dtype") is None
    if not found or set(mean.users) != {node}:
        return None
    return mean if bool(argument(mean, "keepdim")) or dims_of(mean) is None else None


def _per_channel(graph: Graph, node: Node) -> bool:
    """Each channel is averaged by itself."""
    return is_op(node, aten.batch_norm, aten.instance_norm)


def _by_channel(graph: Graph, node: Node, value: Node, other: Node) -> bool:
    """A parameter with one value for each channel, in front of a norm of each channel."""
    rank = len(graph.fact(value).shape)
    shape = (1,) * (rank - len(graph.fact(other).shape)) + graph.fact(other).shape
    channels = graph.fact(value).shape[1] if rank > 1 else 0
    flat = all(size == 1 for dim, size in enumerate(shape) if dim != 1) and shape[1:2] == (
        channels,
    )
    return flat and other in graph.state and _per_channel(graph, node)


def _word(node: Node) -> str:
    return "x - mean(x)" if _average(node) is not None else str(node.target._opname)


def _over(graph: Graph, node: Node) -> str:
    if _per_channel(graph, node):
        return "each channel by itself, and the shift has one value for each"
    return "dimensions along which a number does not vary"


def _saved_seconds(graph: Graph, shift: Shift, node: Node) -> float:
    """One pass over the value: library convolutions add their bias in a pass of its own."""
    rates = cost.rates(graph)
    passes = 2 * cost.moved_bytes_of(graph, shift.value) / rates.bytes_per_s + rates.overhead_s
    small = 0 if is_number(shift.other) else 2
    return passes - rates.overhead_s * (small + (argument(node, "running_mean") is not None))


# --- what is written ---------------------------------------------------------------------


def _without_bias(graph: Graph, layer: Node) -> Node:
    args = (*layer.args[:2], None, *layer.args[3:])
    kwargs = {key: value for key, value in layer.kwargs.items() if key != "bias"}
    return graph.call(layer.target, args, kwargs, before=layer)


def _arguments(
    graph: Graph, shift: Shift, base: Node, node: Node, parameters: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the normalization is called with instead."""
    average = _average(node)
    if average is not None:
        again = graph.call(average.target, (base, *average.args[1:]), average.kwargs, before=node)
        return (base, again), {}
    if is_number(shift.other):
        return (base, *node.args[1:]), node.kwargs
    names = [item.name for item in node.target._schema.arguments]
    args = [argument(node, name) for name in names]
    args[0], args[names.index("bias")] = base, _bias(graph, shift, node, parameters)
    return tuple(args), {}


def _bias(graph: Graph, shift: Shift, node: Node, parameters: dict[str, Any]) -> Node | None:
    """Infinity and NaN of the shift still reach its channel unless the caller lets them go."""
    bias: Node | None = argument(node, "bias")
    if nonfinite(parameters):
        without_gradients(graph, "a bias that is left out gets no gradient, eager gives it zeros")
        graph.caveat("an infinite or NaN shift no longer makes its channel NaN")
        return bias
    flat = flatten_channels(graph, shift.other, node)
    kept = graph.call(aten.sub.Tensor, (flat, flat), before=node, name="shift")
    graph.note(
        kept, "Zero, unless the shift is infinite or NaN: then its channel is NaN, as it was."
    )
    return (
        kept
        if bias is None
        else graph.call(aten.add.Tensor, (bias, kept), before=node, name="bias")
    )


def _correct_running_mean(graph: Graph, shift: Shift, node: Node) -> None:
    """Statistics in train mode are those of the shifted value.

    ``(1 - momentum) * stored + momentum * (mean + c)`` is what the norm itself makes of ``stored +
    momentum / (1 - momentum) * c``. Added before the norm: autograd refuses to see the buffer
    change after it."""
    stored = argument(node, "running_mean") if is_op(node, aten.batch_norm) else None
    if stored is None:
        return
    momentum = argument(node, "momentum")
    factor = momentum / (1.0 - momentum) * (-1.0 if shift.subtracted else 1.0)
    if is_number(shift.other):
        made = graph.call(aten.add_.Scalar, (stored, shift.other * factor), before=node)
    else:
        part = graph.call(
            aten.detach.default, (flatten_channels(graph, shift.other, node),), before=node
        )
        part = graph.call(aten.mul.Tensor, (part, factor), before=node)
        made = graph.call(aten.add_.Tensor, (stored, part), before=node)
    graph.note(
        made, "The running mean stays that of the shifted value: the norm scales what is stored."
    )
