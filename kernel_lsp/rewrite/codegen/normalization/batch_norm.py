"""Batch norm in train mode with the pointwise work behind it: one pass for statistics, one for all
the rest.

Eager reads the input for its statistics, reads it again to normalize, writes, and each activation,
residual or scale behind it moves the tensor once more. Here one kernel leaves mean and 1 /
sqrt(var + eps) by channel and brings the running statistics up to date as eager does (momentum,
unbiased variance), and one pass normalizes and does the rest. The backward is two passes: two sums
by channel, then all gradients. Covered: contiguous floats [N, C] and [N, C, ...], with weight and
bias or without both. Not covered: statistics across devices, operands of the tail that are
broadcast and trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen.core import launching, source
from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.normalization import (
    batch_norm_backward,
    batch_norm_channels,
    batch_norm_rows,
)
from kernel_lsp.rewrite.codegen.normalization.batch_norm_region import BatchNormRegion, parts_of
from kernel_lsp.rewrite.codegen.reduction import channels
from kernel_lsp.rewrite.codegen.regions import cost
from kernel_lsp.rewrite.codegen.regions.lower import is_identity
from kernel_lsp.rewrite.generated import GeneratedSource, Match
from kernel_lsp.rewrite.graph import Graph, argument, is_op

aten = torch.ops.aten
PARAMETERS: dict[str, list[Any]] = {"BLOCK_SIZE": [1024, 2048], "num_warps": [4, 8]}
MIN_SAVING = 0.05
"""Of what eager takes, by the estimate, which counts the least that was measured: at 0.1 it was
silent of [3, 256, 130, 130] in float32, where torch.compile took 0.164 ms for 0.194 (H100)."""
EAGER_PASSES = 1.4
"""How much longer eager's batch norm takes than its bytes at copy speed, both ways. On an H100
1.4 for [12345, 2049] in float32, 1.8 for [8192, 16384] in bfloat16, 3.1 for [128, 1536, 12, 12]
(benchmarks/results/training-times-h100-2026-11-26.json): the least is counted."""


def matches(graph: Graph) -> list[Match]:
    """Batch norms in train mode, with what follows them, that two passes can compute."""
    found = []
    for node in graph.nodes:
        parts = parts_of(graph, node) if is_op(node, aten.batch_norm) else None
        if parts is None or (
            graph.gradients and not batch_norm_backward.is_trainable(graph, parts)
        ):
            continue
        words = [op_name(n) for n in parts.nodes[1:] if not is_identity(n)]
        tail = f" with {', '.join(words)}" if words else ""
        found.append(
            Match(
                nodes=parts.nodes,
                label=graph.label(*parts.nodes),
                summary=f"batch norm in train mode{tail} in two passes",
                benefit=_benefit(graph, parts),
                plain=False,
                differentiable=True,
                data={"norm": node.name, "parameters": _parameters(parts)},
            )
        )
    return found


def _parameters(parts: BatchNormRegion) -> dict[str, list[Any]]:
    """The choices of a place, default first. ``whole_channels``: each program has a channel
    (batch_norm_channels.py)."""
    if not batch_norm_channels.is_covered(parts):
        return PARAMETERS
    whole = batch_norm_channels.is_preferred(parts)
    return {**PARAMETERS, "whole_channels": [whole, not whole]}


def _benefit(graph: Graph, parts: BatchNormRegion) -> float:
    """Eager's batch norm reads twice and writes once; its backward reads twice two tensors and
    writes one."""
    moved, rate = cost.bytes_of(parts.norm), cost.rates(graph)
    pass_s = EAGER_PASSES * moved / rate.bytes_per_s
    eager_s = 3.0 * pass_s + 2 * rate.overhead_s
    eager_s += sum(cost.eager_seconds(graph, node) for node in parts.nodes[1:])
    region = parts.lowered.region
    ours = cost.region_seconds(graph, region, 3, 1.0) + moved / rate.bytes_per_s
    if graph.gradients:
        eager_s += 5.0 * pass_s
        eager_s += sum(
            cost.trained_seconds(graph, n) - cost.eager_seconds(graph, n) for n in parts.nodes[1:]
        )
        ours += cost.launched_seconds(graph, 5.0 * moved / rate.bytes_per_s, 3)
        ours = max(ours, cost.host_seconds(6))
    if ours > eager_s * (1.0 - MIN_SAVING):
        return 0.0
    each = cost.trained_seconds if graph.gradients else cost.eager_seconds
    return round((eager_s - ours) / max(sum(each(graph, n) for n in graph.nodes), eager_s), 4)


# --- source ----------------------------------------------------------------------------------


def rewrite(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Puts the generated kernels in the place of the norm and its tail. Raises RewriteError where
    they no longer fit."""
    norm = graph.named(match.data["norm"])
    parts = parts_of(graph, norm)
    if parts is None:
        raise RewriteError(f"{match.label} can no longer be generated")
    by_name = {node.name: node for node in graph.nodes}
    outputs = [by_name.get(node.name, norm) for node in parts.lowered.outputs]
    arguments = [node for _, node in parts.given] + _running(norm)
    before = launching.place(graph, parts.nodes, outputs, arguments)
    if before is None:
        raise RewriteError(f"{match.label}: a result is needed before its inputs exist")
    kernel = _generate(graph, parts, choice)
    for old, new in zip(
        outputs, launching.results(graph, kernel, arguments, outputs, before), strict=True
    ):
        old.replace_all_uses_with(new)
    graph.drop_unused()
    if norm in graph.nodes:  # with running statistics it has an effect, and the kernel now has it
        graph.fx.erase_node(norm)
    graph.caveat("batch norm and what follows stay in float32 until the result is stored")


def _running(norm: fx.Node) -> list[fx.Node]:
    found = [argument(norm, "running_mean"), argument(norm, "running_var")]
    return [node for node in found if node is not None]


def _generate(graph: Graph, parts: BatchNormRegion, choice: dict[str, Any]) -> GeneratedSource:
    name = launching.unique_name(graph, f"fused_{parts.lowered.region.name}")
    write = _by_channel if choice.get("whole_channels") else _in_passes
    pieces = write(graph, parts, name, choice)
    text = "\n\n".join(piece.strip("\n") + "\n" for piece in pieces)
    summary = f"{name.replace('_', ' ')} in two passes"
    made = source.module(name, [text], summary, source.numbers(parts.lowered.region))
    return replace(made, supports_autograd=graph.gradients, has_effect=bool(_running(parts.norm)))


def _constants(norm: fx.Node) -> tuple[float, float | None]:
    """eps and momentum; None: there are no running statistics."""
    momentum = float(argument(norm, "momentum")) if _running(norm) else None
    return float(argument(norm, "eps")), momentum


def _in_passes(
    graph: Graph, parts: BatchNormRegion, name: str, choice: dict[str, Any]
) -> list[str]:
    """Source of kernels and launchers that walk the whole tensor."""
    region = replace(parts.lowered.region, name=f"{name}_apply")
    summary = f"{name.replace('_', ' ').capitalize()} in one pass over given statistics."
    return [
        channels.statistics(parts.layout, f"{name}_statistics", parts.x, *_constants(parts.norm)),
        *batch_norm_rows.pieces(parts.layout, region, choice, summary),
        *(batch_norm_backward.in_passes(graph, parts, name) if graph.gradients else []),
        _launch_passes(graph, parts, name),
    ]


def _by_channel(
    graph: Graph, parts: BatchNormRegion, name: str, choice: dict[str, Any]
) -> list[str]:
    """Source of kernels and launchers of which each program has a channel."""
    return [
        batch_norm_channels.forward(parts, name, *_constants(parts.norm), choice),
        *(batch_norm_backward.by_channel(graph, parts, name, choice) if graph.gradients else []),
        _launch_channels(graph, parts, name),
    ]


def _arguments(parts: BatchNormRegion) -> str:
    """Of a launcher."""
    running = ["running_mean", "running_var"] if _running(parts.norm) else []
    return ", ".join([*(operand.name for operand, _ in parts.given), *running])


def _launch_passes(graph: Graph, parts: BatchNormRegion, name: str) -> str:
    operands = ", ".join(o.name for o in parts.lowered.region.operands)
    last, x = f"{name}_apply({operands})", parts.x.name
    if graph.gradients:
        last, x = f"_{source.title(name)}.apply({operands})", f"{x}.detach()"
    statistics = ", ".join([x, *(["running_mean", "running_var"] if _running(parts.norm) else [])])
    return "\n".join(
        [
            f"def {name}({_arguments(parts)}):",
            f'    """{name.replace("_", " ").capitalize()}: batch statistics, then one pass."""',
            f"    {parts.mean.name}, {parts.rstd.name} = {name}_statistics({statistics})",
            f"    return {last}",
            "",
        ]
    )


def _launch_channels(graph: Graph, parts: BatchNormRegion, name: str) -> str:
    region = parts.lowered.region
    outputs = ", ".join(output.name for output in region.outputs)
    operands = ", ".join(o.name for o in region.operands)
    # The Function is given what was made: running statistics change outside of it.
    last = f"_{source.title(name)}.apply({operands}, [{outputs}])" if graph.gradients else outputs
    arguments = _arguments(parts)
    return "\n".join(
        [
            f"def {name}({arguments}):",
            f'    """{name.replace("_", " ").capitalize()}: a program for each channel."""',
            f"    {outputs}, {parts.mean.name}, {parts.rstd.name} = {name}_normalize({arguments})",
            f"    return {last}",
            "",
        ]
    )
