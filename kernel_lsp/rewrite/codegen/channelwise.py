"""Batch norm in eval mode as a pointwise operation: its parameters have one element for each channel.

The only operation that is pointwise and whose operands do not broadcast from the last dimension, so it stays
out of `pointwise.TABLE`, which chains of other kernels read too. Not covered: training mode (batch_norm.py),
gradients, statistics of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.ir import Value, apply
from kernel_lsp.rewrite.codegen.pointwise import FLOATS, as_float, op_name
from kernel_lsp.rewrite.graph import Graph, argument

STATISTICS = ("running_mean", "running_var")


def is_channelwise(graph: Graph, node: fx.Node) -> bool:
    """Batch norm with the statistics that it keeps, of a contiguous tensor with channels."""
    if op_name(node) != "batch_norm" or argument(node, "training") is not False or graph.gradients:
        return False
    tensors = [arg.meta["val"] for arg in node.all_input_nodes]
    known = all(isinstance(argument(node, name), fx.Node) for name in STATISTICS)
    readable = all(isinstance(t, torch.Tensor) and t.dtype in FLOATS for t in tensors)
    return known and readable and tensors[0].dim() >= 2 and tensors[0].is_contiguous()


def per_channel(user: fx.Node, name: str) -> bool:
    """Whether an argument has one element for each channel."""
    return op_name(user) == "batch_norm" and name != "input"


def build(node: fx.Node, get: Callable[[str], Any]) -> Value:
    """(x - mean) / sqrt(var + eps) * weight + bias, in the order in which eager computes it on CUDA."""
    x, mean, var = (as_float(get(name)) for name in ("input", *STATISTICS))
    rstd = apply("rsqrt", apply("add", var, float(argument(node, "eps")), hint="var_eps"), hint="rstd")
    made = apply("mul", apply("sub", x, mean, hint="centered"), rstd, hint="normed")
    if isinstance(argument(node, "weight"), fx.Node):
        made = apply("mul", made, as_float(get("weight")), hint="scaled")
    if isinstance(argument(node, "bias"), fx.Node):
        made = apply("add", made, as_float(get("bias")), hint="shifted")
    return made
