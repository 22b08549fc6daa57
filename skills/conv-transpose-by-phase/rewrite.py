"""A strided transposed convolution as one plain convolution whose results are put in place by one
kernel."""

from __future__ import annotations

import math
from typing import Any

from kernel_lsp.rewrite.algebra import convolution as conv
from kernel_lsp.rewrite.algebra import phase_tail, phases
from kernel_lsp.rewrite.codegen.convolution.facts import KEPT
from kernel_lsp.rewrite.skill import (
    Graph,
    Match,
    Node,
    Proof,
    argument,
    aten,
    cost,
    is_op,
    proof,
)

parameters: dict[str, list[Any]] = {"BLOCK_SIZE": [1024, 512, 2048]}
MAX_WASTE = 2.5
"""Zero taps where the stride does not divide the kernel: 64 / 27 for kernel 3, stride 2 in 3-D
still pays."""
MIN_OUTPUT = 1 << 20
"""Elements of an output for which five launches instead of two are nothing."""


def match(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        made = conv.read(node) if KEPT not in node.meta else None
        if (
            made is None
            or not made.transposed
            or graph.device != "cuda"
            or not graph.fact(node).floating
        ):
            continue
        tail = phase_tail.tail_of(graph, node)
        words = "".join(f", {name}" for name in dict.fromkeys(item.target._opname for item in tail))
        found.append(
            Match(
                nodes=(node, *tail),
                label=graph.label(node),
                summary=f"compute {node.target._opname} as one convolution and interleave its "
                f"phases{words}",
                benefit=_share(graph, made, _saved_seconds(graph, made, tail)),
                plain=False,
                data={"convolution": made, "tail": tail},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    made: conv.Convolution = match.data["convolution"]
    strides = [axis.stride for axis in made.axes]
    dilations = [axis.dilation for axis in made.axes]
    crops = all(axis.out > 0 for axis in made.axes)
    return [
        proof("outputs fall into phases", max(strides) > 1, f"strides {strides}"),
        proof(
            "taps of a phase are next to each other",
            set(dilations) == {1},
            f"dilations {dilations}",
        ),
        proof(
            "the result is contiguous",
            graph.fact(match.nodes[-1]).contiguous,
            "strides of the workload",
        ),
        proof(
            "the output is not empty",
            crops and graph.fact(made.node).numel > 0,
            "sizes of the workload",
        ),
        proof(
            "no gradient is lost",
            True,
            "the dispatch guard takes the original path while gradients are recorded",
        ),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, Any]) -> None:
    made: conv.Convolution = match.data["convolution"]
    tail: tuple[Node, ...] = match.data["tail"]
    last = match.nodes[-1]
    weight = phases.phase_weight(graph, made, last)
    graph.note(
        weight,
        "Each output is reached by the taps of one phase only: (position + padding) % stride.",
    )
    graph.note(
        weight,
        "So every phase is a small stride-1 convolution, and all of them are one with more "
        "channels.",
    )
    ones = [1] * len(made.axes)
    padding = [phases.taps(axis) - 1 for axis in made.axes]
    args = (made.input, weight, None, ones, padding, ones, made.groups)
    result = graph.call(conv.PLAIN[len(ones) - 1].default, args, before=last, name="by_phase")
    kernel, found = phases.interleave(graph, made, tail, parameters.get("BLOCK_SIZE", 1024))
    value = graph.val(last)
    with value.fake_mode:
        like = value.new_empty(value.shape)
    operands = (result, *(node for node, _, _ in found.operands))
    placed = graph.call_generated(kernel, operands, like=like, before=last, name="interleaved")
    graph.caveat("products are summed in another order, by another library kernel")
    if tail:
        graph.caveat(
            "intermediate results stay in float32; eager rounds each of them to the tensor's dtype"
        )
    graph.replace(last, placed)


def _folds_first(graph: Graph, node: Node) -> bool:
    """Batch norm in eval mode belongs into the weight (fold-batchnorm-eval) before phases are made
    of it."""
    reader = graph.only_user(node)
    return is_op(reader, aten.batch_norm) and argument(reader, "training") is False


def _share(graph: Graph, made: conv.Convolution, saved: float) -> float:
    """Of the target's time, in which the convolution counts as what the library needs for it."""
    whole = cost.total(graph) - cost.seconds(graph, made.node) + conv.library_seconds(graph, made)
    return max(0.0, min(1.0, saved / whole))


def _saved_seconds(graph: Graph, made: conv.Convolution, tail: tuple[Node, ...]) -> float:
    rates = cost.rates(graph)
    if _folds_first(graph, made.node):
        return 0.0
    waste = math.prod(phases.taps(a) * a.stride / a.kernel for a in made.axes)
    out = cost.moved_bytes_of(graph, made.node)
    if waste > MAX_WASTE or graph.fact(made.node).numel < MIN_OUTPUT:
        return 0.0
    # The phases are written, transposed on the way, and read; then the result is written.
    passes = 4 * waste + 1
    ours = (
        waste * cost.flops(made.node) / conv.rate(graph, made, False)
        + passes * out / rates.bytes_per_s
        + 3 * rates.overhead_s
    )
    gone = conv.library_seconds(graph, made) + sum(cost.seconds(graph, node) for node in tail)
    return gone - ours
