"""Pointwise operations whose parameters have one element for each channel: batch norm in eval
mode, PReLU.

Their operands do not broadcast from the last dimension, so they stay out of `pointwise.TABLE`,
which chains of other kernels read too; PReLU with a single slope is there. Not covered: training
mode (batch_norm.py), gradients and statistics of a batch norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core.ir import Value, apply
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, op_name
from kernel_lsp.rewrite.codegen.pointwise.operations import as_float, prelu
from kernel_lsp.rewrite.graph import Graph, argument

STATISTICS = ("running_mean", "running_var")


def is_channelwise(graph: Graph, node: fx.Node) -> bool:
    """Batch norm with the statistics that it keeps, of a contiguous tensor; PReLU with several
    slopes."""
    if op_name(node) == "prelu":
        return _has_slopes(node) and all(
            arg.meta["val"].dtype in FLOATS for arg in node.all_input_nodes
        )
    if op_name(node) != "batch_norm" or argument(node, "training") is not False or graph.gradients:
        return False
    tensors = [arg.meta["val"] for arg in node.all_input_nodes]
    known = all(isinstance(argument(node, name), fx.Node) for name in STATISTICS)
    readable = all(isinstance(t, torch.Tensor) and t.dtype in FLOATS for t in tensors)
    return known and readable and tensors[0].dim() >= 2 and tensors[0].is_contiguous()


def _has_slopes(node: fx.Node) -> bool:
    """Several of them; a single one broadcasts as any number does."""
    slopes: fx.Node = argument(node, "weight")
    return bool(slopes.meta["val"].numel() > 1)


def has_channels(node: fx.Node) -> bool:
    """What `build` is for."""
    return op_name(node) == "batch_norm" or (op_name(node) == "prelu" and _has_slopes(node))


def per_channel(user: fx.Node, name: str) -> bool:
    """Whether an argument has one element for each channel."""
    return has_channels(user) and name not in ("input", "self")


def build(node: fx.Node, get: Callable[[str], Any]) -> Value:
    """The value in the order in which eager computes it on CUDA."""
    return prelu(node, get) if op_name(node) == "prelu" else _batch_norm(node, get)


def _batch_norm(node: fx.Node, get: Callable[[str], Any]) -> Value:
    """(x - mean) / sqrt(var + eps) * weight + bias."""
    x, mean, var = (as_float(get(name)) for name in ("input", *STATISTICS))
    rstd = apply(
        "rsqrt", apply("add", var, float(argument(node, "eps")), hint="var_eps"), hint="rstd"
    )
    made = apply("mul", apply("sub", x, mean, hint="centered"), rstd, hint="normed")
    if isinstance(argument(node, "weight"), fx.Node):
        made = apply("mul", made, as_float(get("weight")), hint="scaled")
    if isinstance(argument(node, "bias"), fx.Node):
        made = apply("add", made, as_float(get("bias")), hint="shifted")
    return made
