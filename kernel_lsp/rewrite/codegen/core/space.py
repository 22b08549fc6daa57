"""Iteration spaces: which dimensions a group of nodes runs over and which of them are reduced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, Unsupported, argument_nodes, op_name
from kernel_lsp.rewrite.graph import argument

NORMS = ("layer_norm", "rms_norm", "group_norm", "instance_norm")
SOFTMAX = ("softmax", "log_softmax", "_softmax", "_log_softmax")
REDUCE = (
    "sum",
    "mean",
    "amax",
    "amin",
    "max",
    "min",
    "prod",
    "logsumexp",
    "var",
    "std",
    "norm",
    "linalg_vector_norm",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "cosine_similarity",
    "pairwise_distance",
    "any",
    "all",
    "argmax",
    "argmin",
)
PLACES = ("argmax", "argmin")
"""Reductions that say where the extreme value is."""
MAX_COUNTED = 2**24
"""Elements that can be counted in float32."""
POOLS = {f"adaptive_avg_pool{rank}d": rank for rank in (1, 2, 3)}
"""With an output of one element a channel they are means over so many last dimensions, which they
keep."""
PAIRS = ("cosine_similarity", "pairwise_distance")
"""Reductions of two tensors of one shape."""
LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy",
          "binary_cross_entropy_with_logits", "hinge_embedding_loss",
          "soft_margin_loss")  # fmt: skip
WEIGHTS = ("weight", "pos_weight")
"""Arguments of a loss that are multiplied in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionShape:
    """The points that a region visits."""

    sizes: tuple[int, ...]
    reduced: tuple[int, ...] = ()
    """Consecutive dimensions, ascending."""
    groups: int | None = None
    """Dimension 1 of the tensors is split into (groups, channels of a group): group norm."""

    @property
    def expanded(self) -> tuple[int, ...]:
        """Sizes after the split; ``reduced`` refers to these."""
        if self.groups is None:
            return self.sizes
        batch, channels, *rest = self.sizes
        return (batch, self.groups, channels // self.groups, *rest)


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of the node's value, in plain numbers."""
    return tuple(int(n) for n in node.meta["val"].shape)


def space_of(node: fx.Node) -> RegionShape | None:
    """The space of a reduction, softmax, norm or loss; None when the node is none that is
    generated."""
    try:
        return demanded_space(node)
    except Unsupported:
        return None


def demanded_space(node: fx.Node) -> RegionShape | None:
    """The same; None when the node is nothing of the kind. Raises Unsupported for a variant that
    is not generated."""
    name = op_name(node)
    if name in SOFTMAX:
        return _along(node, [int(argument(node, "dim"))])
    if name in NORMS:
        return _norm(node, name)
    if name in PAIRS:
        return _pair(node)
    if name in REDUCE:
        return _reduction(node)
    return _loss(node) if name in LOSSES else None


def source(node: fx.Node) -> fx.Node:
    """The tensor that is reduced."""
    return node.args[0]


def _along(
    node: fx.Node, dims: Sequence[int], dtypes: Sequence[torch.dtype] = FLOATS
) -> RegionShape:
    sizes = shape_of(source(node))
    if (dtype := source(node).meta["val"].dtype) not in dtypes:
        raise Unsupported(f"no kernel computes in {dtype}")
    if math.prod(sizes) == 0 or not sizes:
        raise Unsupported("no elements, or no dimensions")
    axes = tuple(sorted({dim % len(sizes) for dim in dims})) or tuple(range(len(sizes)))
    if axes != tuple(range(axes[0], axes[-1] + 1)):
        raise Unsupported("reduced dimensions are not adjacent")
    return RegionShape(sizes=sizes, reduced=axes)


def _norm(node: fx.Node, name: str) -> RegionShape:
    sizes = shape_of(source(node))
    if name in ("layer_norm", "rms_norm"):
        count = len(argument(node, "normalized_shape"))
        return _along(node, range(len(sizes) - count, len(sizes)))
    if name == "instance_norm":
        if not argument(node, "use_input_stats") or argument(node, "running_mean") is not None:
            raise Unsupported("running statistics are an effect")
        groups = sizes[1]
    else:
        groups = int(argument(node, "num_groups"))
    _along(node, [-1])
    rank = len(sizes) + 1
    return RegionShape(sizes=sizes, reduced=tuple(range(2, rank)), groups=groups)


def _reduction(node: fx.Node) -> RegionShape | None:
    value: Any = node.meta["val"]
    if is_counted(node):
        return _count_shape(node)
    if not isinstance(value, torch.Tensor):
        return None  # places beside the values: extremes/
    if op_name(node) in PLACES:
        return _counted(_along(node, _dims(node)))
    if value.dtype not in FLOATS:
        raise Unsupported(f"no kernel computes in {value.dtype}")
    if argument(node, "dtype") not in (None, source(node).meta["val"].dtype):
        raise Unsupported("reduction into another dtype")
    if op_name(node) in ("norm", "linalg_vector_norm"):
        order = argument(node, "p", argument(node, "ord", 2))
        if (2 if order is None else order) not in (1, 2, math.inf):
            raise Unsupported("only 1-, 2- and maximum norms")
    if op_name(node) in ("max", "min") and len(node.all_input_nodes) != 1:
        raise Unsupported("max of two tensors")
    if (rank := POOLS.get(op_name(node))) is not None:
        if any(size != 1 for size in _sizes(argument(node, "output_size"))):
            raise Unsupported("a pool with several results")
        return _along(node, range(-rank, 0))
    return _along(node, _dims(node))


def _dims(node: fx.Node) -> list[int]:
    """Reduced dimensions as the program has them; none for all."""
    dims = argument(node, "dim")
    return [] if dims is None else [dims] if isinstance(dims, int) else list(dims)


def keeps_dims(node: fx.Node) -> bool:
    """Whether a reduction leaves its dimensions in the shape, with one element."""
    return op_name(node) in POOLS or bool(argument(node, "keepdim", False))


def _sizes(given: Any) -> list[Any]:
    return [given] if isinstance(given, int) else list(given)


def is_counted(node: fx.Node) -> bool:
    """How many elements are true, whether any or all of them are."""
    if op_name(node) in ("any", "all"):
        return True
    whole = op_name(node) == "sum" and argument(node, "dtype") in (None, torch.int64)
    return whole and source(node).meta["val"].dtype == torch.bool


def _count_shape(node: fx.Node) -> RegionShape:
    return _counted(_along(node, _dims(node), (*FLOATS, torch.bool)))


def _counted(shape: RegionShape) -> RegionShape:
    """The same shape. Raises Unsupported for rows whose elements float32 does not count."""
    if math.prod(shape.sizes[axis] for axis in shape.reduced) > MAX_COUNTED:
        raise Unsupported("more elements than float32 counts")
    return shape


def _pair(node: fx.Node) -> RegionShape:
    left, right = (argument(node, name) for name in ("x1", "x2"))
    alike = left.meta["val"].dtype == right.meta["val"].dtype and shape_of(left) == shape_of(right)
    if not alike or argument(node, "p", 2.0) not in (1, 2):
        raise Unsupported("two tensors that differ, or another norm")
    return _along(node, [argument(node, "dim", 1) if op_name(node) == "cosine_similarity" else -1])


def _loss(node: fx.Node) -> RegionShape:
    args = dict(argument_nodes(node))
    odd = [dtype for arg in args.values() if (dtype := arg.meta["val"].dtype) not in FLOATS]
    if odd or set(args) - {*WEIGHTS} != PAIR:
        raise Unsupported(f"no kernel computes in {odd[0]}" if odd else "a loss of other tensors")
    sizes = tuple(torch.broadcast_shapes(*(shape_of(args[name]) for name in PAIR)))
    weights = [shape_of(args[name]) for name in WEIGHTS if name in args]
    if any(torch.broadcast_shapes(sizes, shape) != sizes for shape in weights):
        raise Unsupported("weights of more dimensions than the loss")
    if math.prod(sizes) == 0 or not sizes:
        raise Unsupported("no elements")
    none = argument(node, "reduction", 1) == 0
    return RegionShape(sizes=sizes, reduced=() if none else tuple(range(len(sizes))))


PAIR = {"self", "target"}
