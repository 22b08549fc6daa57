"""A convolution's bias as an operation of its own, so that the kernel of what follows adds it on
the way."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.convolution.facts import KEPT
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, op_name
from kernel_lsp.rewrite.codegen.core.space import REDUCE, SOFTMAX
from kernel_lsp.rewrite.codegen.pointwise.operations import is_pointwise
from kernel_lsp.rewrite.skill import Graph, Match, Node, Proof, argument, aten, is_op, proof

CONVOLUTIONS = {
    aten.conv1d: 1, aten.conv2d: 2, aten.conv3d: 3,
    aten.conv_transpose1d: 1, aten.conv_transpose2d: 2, aten.conv_transpose3d: 3,
}  # fmt: skip
"""Call -> spatial dimensions; what the result has before them ends with the channels."""
NORMS = ("group_norm", "layer_norm")
"""Norms whose kernels add on the way; what batch norm and instance norm cancel is other skills' to
drop."""
MIN_BYTES = 1 << 20
"""A smaller result is added to in the time of a launch."""
ALONE = 1e-3
"""What the step saves by itself is nothing: the kernels that can take the addition count it."""
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    if graph.device != "cuda":  # on a CPU the library adds the bias where it sums
        return []
    if graph.generated:  # too late: what could take the addition is a kernel already
        return []
    found = []
    for node in graph.nodes:
        if not is_op(node, *CONVOLUTIONS) or argument(node, "bias") is None:
            continue
        value = graph.val(node)
        large = value.numel() * value.element_size() >= MIN_BYTES and value.dtype in FLOATS
        takers = [reader for reader in graph.users(node) if _takes(reader, node)]
        found.append(
            Match(
                nodes=(node,),
                label=graph.label(node),
                summary=f"add the bias of {node.target._opname} in the kernel of what follows",
                benefit=ALONE if large and takers else 0.0,
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    (node,) = match.nodes
    bias, shape = argument(node, "bias"), graph.val(node).shape
    rank = next(count for op, count in CONVOLUTIONS.items() if is_op(node, op))
    size, channels = tuple(graph.val(bias).shape), shape[len(shape) - rank - 1]
    dtypes = {str(graph.val(item).dtype) for item in (node, bias)}
    return [
        proof(
            "the bias is one number for each channel",
            size == (channels,),
            f"{size} beside {tuple(shape)}",
        ),
        proof("bias and result share one dtype", len(dtypes) == 1, ", ".join(sorted(dtypes))),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    (node,) = match.nodes
    bias = argument(node, "bias")
    rank = next(count for op, count in CONVOLUTIONS.items() if is_op(node, op))
    args, kwargs = (
        (*node.args[:2], None, *node.args[3:]),
        {k: v for k, v in node.kwargs.items() if k != "bias"},
    )
    summed = graph.call(node.target, args, kwargs, before=node, name="weighted")
    column = graph.call(aten.view.default, (bias, [-1, *[1] * rank]), before=node)
    biased = graph.call(aten.add.Tensor, (summed, column), before=node, name="biased")
    summed.meta[KEPT] = True
    graph.note(biased, "cuDNN adds a bias in a pass of its own: here it is part of what follows.")
    graph.replace(node, biased)


def _takes(reader: Node, node: Node) -> bool:
    """Its kernel can add on the way: it reads the result element by element, in windows or in
    rows."""
    name = op_name(reader)
    if not reader.args or reader.args[0] is not node:
        return is_pointwise(reader)
    return is_pointwise(reader) or "_pool" in name or name in (*NORMS, *SOFTMAX, *REDUCE)
