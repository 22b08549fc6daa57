"""A network of 2-D convolutions moved to channels-last memory, from the first convolution to the
results.

`to_channels_last(graph)` keeps for each 4-D value a twin of shape (N, H, W, C) that is contiguous:
pointwise operations and concatenations run on the twins, pools and convolutions on their NCHW
views. Whatever reads a value in another way, and every result, gets a contiguous NCHW copy, so
strides are what they were. Batch norm in eval mode is written out, so that it can share a kernel
with what follows. Not covered: 1-D and 3-D convolutions, norms in train mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.pointwise.operations import is_pointwise
from kernel_lsp.rewrite.cost import operations as cost
from kernel_lsp.rewrite.graph import Graph, argument, is_op

aten = torch.ops.aten
CONVOLUTIONS = (aten.conv2d, aten.conv_transpose2d)
POOLS = (
    aten.max_pool2d,
    aten.avg_pool2d,
    aten.adaptive_avg_pool2d,
    aten.upsample_nearest2d,
    aten.upsample_bilinear2d,
)
"""Their channels-last kernels return channels-last results."""
REDUCTIONS = (aten.mean, aten.sum, aten.amax, aten.amin)
"""They read any memory; a result without height and width has no layout of its own."""
CHANNELS_MATTER = ("prelu", "glu", "dropout", "feature_dropout")
TF32_FLOPS_PER_S = 150e12
"""What cuDNN reaches on convolutions of 64 channels: assumed, a third of the peak."""
ENTERS = "The channels of a pixel become neighbors: convolutions run fastest on such memory."
LEAVES = "Back to the memory layout that is expected from here on."
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def convolutions(graph: Graph) -> list[fx.Node]:
    """All 2-D convolutions with a batch axis, in order."""
    return [
        node for node in graph.nodes if is_op(node, *CONVOLUTIONS) and graph.val(node).dim() == 4
    ]


def seconds(graph: Graph, node: fx.Node) -> float:
    """Time of a convolution. On a GPU they run in TF32, three times as fast as float32 products
    and more."""
    if graph.device != "cuda":
        return cost.seconds(graph, node)
    return max(
        cost.flops(node) / TF32_FLOPS_PER_S, cost.moved_bytes(node) / cost.rates(graph).bytes_per_s
    )


def copied_values(graph: Graph) -> list[fx.Node]:
    """Values that have to be laid out anew when the network moves: what enters it, and what leaves
    it."""
    inside = _movable_nodes(graph)
    enters = {
        arg
        for node in inside
        for arg in node.all_input_nodes
        if arg not in inside and _is_image(graph, arg)
    }
    leaves = {
        n for n in inside if graph.is_output(n) or any(user not in inside for user in n.users)
    }
    weights = {node.args[1] for node in convolutions(graph)}
    return [n for n in graph.fx.nodes if n in (enters | leaves) - weights and _is_image(graph, n)]


def to_channels_last(graph: Graph) -> None:
    """Moves what it reaches to channels-last memory, in place. Nodes that are not reached stay as
    they are."""
    moved = _movable_nodes(graph)
    mover = _Mover(graph)
    for node in graph.nodes:
        if node in moved:
            mover.move(node)
        else:
            mover.restore_inputs(node)
    mover.restore_inputs(graph.output)
    graph.drop_unused()


def _movable_nodes(graph: Graph) -> set[fx.Node]:
    """Convolutions, and what follows them and can run on channels-last memory."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        follows = any(arg in found for arg in node.all_input_nodes)
        if node in convolutions(graph) or (follows and _can_follow(graph, node)):
            found.add(node)
    return found


def _can_follow(graph: Graph, node: fx.Node) -> bool:
    if not _is_image(graph, node):
        return False
    if is_op(node, aten.batch_norm):
        return argument(node, "training") is False and argument(node, "running_mean") is not None
    if is_op(node, *POOLS):
        return True
    if is_op(node, aten.cat):
        return argument(node, "dim", 0) % 4 == 1 and all(
            _is_image(graph, arg) for arg in node.args[0]
        )
    plain = all(graph.val(arg).dim() <= 4 for arg in node.all_input_nodes)
    return is_pointwise(node) and op_name(node) not in CHANNELS_MATTER and plain


def _is_image(graph: Graph, node: Any) -> bool:
    value = graph.val(node) if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dim() == 4


def _is_input(graph: Graph, node: fx.Node) -> bool:
    return any(item.node is node for item in graph.inputs)


class _Mover:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.last: dict[fx.Node, fx.Node] = {}
        """NCHW value -> its contiguous (N, H, W, C) twin."""
        self.views: dict[fx.Node, fx.Node] = {}
        """NCHW value -> a view of its twin with its own shape."""
        self.back: dict[fx.Node, fx.Node] = {}

    def move(self, node: fx.Node) -> None:
        """Make the node's twin in channels-last layout, and keep it as its last."""
        if is_op(node, *CONVOLUTIONS):
            made = self._convolution(node)
        elif is_op(node, *POOLS):
            made = self._call(node, (self._view(node.args[0], node), *node.args[1:]), node.kwargs)
        elif is_op(node, aten.cat):
            parts = [self._twin(arg, node) for arg in node.args[0]]
            self.last[node] = self.graph.call(aten.cat.default, (parts, 3), before=node)
            return
        elif is_op(node, aten.batch_norm):
            self.last[node] = self._batch_norm(node)
            return
        else:
            self.last[node] = self._pointwise(node)
            return
        self.last[node] = self._contiguous(self._permuted(made, TO_LAST, node), node)

    def restore_inputs(self, node: fx.Node) -> None:
        """The node reads NCHW memory again."""
        for arg in dict.fromkeys(node.all_input_nodes):
            if arg in self.last:
                reduces = is_op(node, *REDUCTIONS) and self.graph.val(node).dim() == 2
                node.replace_input_with(arg, (self._view if reduces else self._restored)(arg, node))

    def _restored(self, node: fx.Node, before: fx.Node) -> fx.Node:
        if node not in self.back:
            self.back[node] = self._channels_first(self.last[node], before)
            self.graph.note(self.back[node], LEAVES)
            self._named(self.back[node], node)
        return self.back[node]

    def _channels_first(self, twin: fx.Node, before: fx.Node) -> fx.Node:
        """A contiguous NCHW copy. With one channel, or one pixel, it is a view: contiguous() would
        leave strides that only count as contiguous because the dimension has size 1."""
        _, height, width, channels = self.graph.val(twin).shape
        if channels == 1:
            flat = self.graph.call(aten.squeeze.dim, (twin, 3), before=before)
            return self.graph.call(aten.unsqueeze.default, (flat, 1), before=before)
        if height == width == 1:
            flat = self.graph.call(aten.squeeze.dims, (twin, [1, 2]), before=before)
            column = self.graph.call(aten.unsqueeze.default, (flat, 2), before=before)
            return self.graph.call(aten.unsqueeze.default, (column, 3), before=before)
        return self._contiguous(self._permuted(twin, TO_FIRST, before), before)

    def _convolution(self, node: fx.Node) -> fx.Node:
        options = {"memory_format": torch.channels_last}
        weight = self.graph.call(aten.contiguous.default, (node.args[1],), options, before=node)
        return self._call(
            node, (self._view(node.args[0], node), weight, *node.args[2:]), node.kwargs
        )

    def _batch_norm(self, node: fx.Node) -> fx.Node:
        """The library's formula for running statistics, in its order."""
        before, value = node, self._twin(node.args[0], node)
        mean, variance = (argument(node, f"running_{name}") for name in ("mean", "var"))
        weight, bias = argument(node, "weight"), argument(node, "bias")
        shifted = self.graph.call(aten.add.Tensor, (variance, argument(node, "eps")), before=before)
        scale = self.graph.call(aten.rsqrt.default, (shifted,), before=before)
        if weight is not None:
            scale = self.graph.call(aten.mul.Tensor, (scale, weight), before=before)
        value = self.graph.call(aten.sub.Tensor, (value, mean), before=before)
        value = self.graph.call(aten.mul.Tensor, (value, scale), before=before)
        if bias is not None:
            value = self.graph.call(aten.add.Tensor, (value, bias), before=before)
        return value

    def _pointwise(self, node: fx.Node) -> fx.Node:
        args, kwargs = fx.map_arg(
            (node.args, dict(node.kwargs)), lambda arg: self._aligned(arg, node)
        )
        return self._named(self.graph.call(node.target, args, kwargs, before=node), node)

    def _aligned(self, arg: fx.Node, user: fx.Node) -> fx.Node:
        """An operand whose dimensions lie where a (N, H, W, C) value has them."""
        value = self.graph.val(arg)
        if value.dim() == 4:
            small = value.numel() * 4 <= self.graph.val(user).numel()
            narrow = arg not in self.last and small
            return self._permuted(arg, TO_LAST, user) if narrow else self._twin(arg, user)
        if value.dim() == 3:
            return self._permuted(arg, (1, 2, 0), user)
        if value.dim() == 0:
            return arg
        return self.graph.call(aten.unsqueeze.default, (arg, -1), before=user)

    def _twin(self, node: fx.Node, before: fx.Node) -> fx.Node:
        if node not in self.last:
            self.last[node] = self._contiguous(self._permuted(node, TO_LAST, before), before)
            if _is_input(self.graph, node):
                self.graph.note(self.last[node], ENTERS)
        return self.last[node]

    def _view(self, node: fx.Node, before: fx.Node) -> fx.Node:
        if node not in self.views:
            self.views[node] = self._permuted(self._twin(node, before), TO_FIRST, before)
        return self.views[node]

    def _call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        return self._named(self.graph.call(node.target, args, kwargs, before=node), node)

    def _named(self, made: fx.Node, node: fx.Node) -> fx.Node:
        made.meta.setdefault("replaces", node.meta.get("replaces", node.name))
        return made

    def _permuted(self, node: fx.Node, order: tuple[int, ...], before: fx.Node) -> fx.Node:
        return self.graph.call(aten.permute.default, (node, list(order)), before=before)

    def _contiguous(self, node: fx.Node, before: fx.Node) -> fx.Node:
        return self.graph.call(aten.contiguous.default, (node,), before=before)
