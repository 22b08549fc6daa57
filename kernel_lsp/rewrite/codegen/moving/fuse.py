"""Sites of kernels that move elements, what they are worth, and the rewrite.

The gradient of a tensor is made by one kernel, however many slices of it are read. Not covered:
several results, gradients that are sums over many elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.backward import derive
from kernel_lsp.rewrite.codegen.backward import kernels as backward
from kernel_lsp.rewrite.codegen.core import launching, source
from kernel_lsp.rewrite.codegen.core.ir import Value, topological
from kernel_lsp.rewrite.codegen.core.nodes import FLOATS, Unsupported, op_name
from kernel_lsp.rewrite.codegen.moving import complex_numbers, function, jobs, operations
from kernel_lsp.rewrite.codegen.moving import source as moving_source
from kernel_lsp.rewrite.codegen.moving.cost import eager_seconds
from kernel_lsp.rewrite.codegen.moving.jobs import PlannedKernel
from kernel_lsp.rewrite.codegen.moving.plan import MovedPlan, plan
from kernel_lsp.rewrite.codegen.moving.region import MovedRegion, moves_much, region_of
from kernel_lsp.rewrite.codegen.regions import cost
from kernel_lsp.rewrite.codegen.regions.lower import is_identity
from kernel_lsp.rewrite.codegen.rotary import fuse as rotary
from kernel_lsp.rewrite.generated import GUARDED, GeneratedSource, Match
from kernel_lsp.rewrite.graph import Graph

MIN_SAVING = 0.1
BACKWARD = "backward_"
"""Before the name of a parameter that is the backward kernel's own."""


# --- what it is worth --------------------------------------------------------------------


def matches(graph: Graph) -> list[Match]:
    """Sites of kernels that move elements, in the order of the graph; those that save nothing have
    a benefit of 0."""
    found, taken = list[Match](), set[fx.Node]()
    for node in reversed(graph.nodes):
        if node in taken or node.meta.get("val") is None:
            continue
        if (rotation := rotary.find(graph, node)) is not None:
            taken.update(rotation.nodes)
            continue
        region = region_of(graph, node)
        if region is None or not moves_much(graph, region):
            continue
        match = match_of(graph, region)
        if match is not None:  # also one that saves nothing: with another batch it may
            found.append(match)
            taken.update(region.nodes if match.benefit else ())
    return found[::-1]


def match_of(graph: Graph, region: MovedRegion) -> Match | None:
    """None where no kernel can be made."""
    value = region.out.meta["val"]
    if value.dtype not in FLOATS:
        return None
    try:
        planned = plan(graph, region, "moved")
    except Unsupported:
        return None
    if _place(graph, region) is None:
        return None
    return Match(
        nodes=region.own,
        label=graph.label(*region.own),
        summary=f"{_words(region)} in one pass",
        benefit=_benefit(graph, planned),
        plain=False,
        differentiable=True,
        data={"out": region.out.name, "parameters": parameters(planned)},
    )


def _benefit(graph: Graph, planned: MovedPlan) -> float:
    region, speed = planned.lowered.region, cost.rates(graph)
    nodes = dict(zip(planned.lowered.names, region.inputs, strict=True))
    kernels = (*planned.forward, *planned.backward, *planned.last)
    ours_s = sum(_seconds(graph, kernel, nodes) for kernel in kernels)
    eager_s = eager_seconds(graph, region.own, region.nodes, bool(planned.wanted))
    launches = len(kernels)
    launches += sum(bool(kernel.job.totals) for kernel in kernels)  # partial sums are added up
    for one in planned.sums:
        launches += 1
        stored = 0 if one.kept else cost.bytes_of(region.out)
        ours_s += stored / speed.bytes_per_s + speed.overhead_s
    if planned.wanted:
        ours_s = max(ours_s, cost.host_seconds(launches))
    ours_s = cost.launched_seconds(graph, ours_s - launches * speed.overhead_s, launches)
    if ours_s > eager_s * (1.0 - MIN_SAVING):
        return 0.0
    inside = set(region.own)
    rest = [node for node in graph.nodes if node not in inside]
    each = cost.trained_seconds if graph.gradients else cost.eager_seconds
    total = eager_s + sum(each(graph, node) for node in rest)
    return round((eager_s - ours_s) / total, 4)


def _seconds(graph: Graph, kernel: PlannedKernel, nodes: dict[str, fx.Node]) -> float:
    """By bytes: what is read of a tensor is at most all of it."""
    size = torch.Size(kernel.job.shape).numel()
    moved_bytes = sum(size * source.itemsize(output.dtype) for output in kernel.job.stored)
    for tensor in kernel.read:
        reads = sum(load.tensor is tensor for load in kernel.loads)
        whole = torch.Size(tensor.shape).numel()
        moved_bytes += min(whole, reads * size // kernel.width) * source.itemsize(
            tensor.operand.dtype
        )
    speed = cost.rates(graph)
    return moved_bytes / speed.bytes_per_s + speed.overhead_s


def parameters(planned: MovedPlan) -> dict[str, list[Any]]:
    """Choices for each parameter of the first forward kernel and of the first backward kernel, the
    default first."""
    found = jobs.parameters(planned.forward[0])
    if planned.backward:
        own = jobs.parameters(planned.backward[0])
        found |= {f"{BACKWARD}{name}": choices for name, choices in own.items()}
    return found


def _words(region: MovedRegion) -> str:
    names = [
        "slices" if name in ("slice", "narrow", "select", "part") else name
        for node in region.nodes
        if (name := operations.name_of(node).strip("_"))
        and not is_identity(node)
        and name not in operations.SPLITS
    ]
    few = list(dict.fromkeys(names))
    shown = few if len(few) <= 5 else [*few[:3], "…", few[-1]]
    return ", ".join(shown[:-1]) + (" and " if len(shown) > 1 else "") + shown[-1]


# --- applying it -------------------------------------------------------------------------


def proofs(graph: Graph, match: Match) -> list[Proof]:
    """What must hold for the rewrite of a match, and why it does."""
    return [
        Proof(
            claim="every element that is read lies where the operations take it from",
            holds=True,
            because=f"shapes and arguments of {match.label}",
        ),
        Proof(
            claim="nobody else reads what is no longer written",
            holds=True,
            because="the graph's edges",
        ),
        Proof(
            claim="no gradient is lost",
            holds=True,
            because="each element gathers its gradient from where it went, in a backward kernel "
            "behind torch.autograd.Function"
            if graph.gradients
            else GUARDED,
        ),
    ]


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Replace the region's result by one launch."""
    region = region_of(graph, graph.named(match.data["out"]))
    if region is None:
        raise RewriteError(f"{match.label} is no longer a region", "apply it first")
    try:
        planned = plan(graph, region, "moved")
    except Unsupported as error:
        raise RewriteError(f"{match.label} can no longer be generated: {error}") from error
    before = _place(graph, region)
    if before is None:
        raise RewriteError(f"{match.label} is read before its inputs exist", "apply it first")
    defaults = {name: choices[0] for name, choices in parameters(planned).items()}
    chosen = {**defaults, **{name: item for name, item in choice.items() if name in defaults}}
    kernel = launching.make_named(
        graph, _name(region), lambda name: generate(graph, region, chosen, name)
    )
    if graph.gradients:
        for tensor, node in zip(planned.lowered.tensors, region.inputs, strict=True):
            if tensor.operand.dtype in derive.FLOATS and tensor.operand not in planned.wanted:
                backward.require_constant(graph, node)
    inputs = [complex_numbers.real_node(graph, node, before) for node in region.inputs]
    launching.launch(graph, kernel, inputs, (region.out,), before, planned.lowered.order)
    graph.caveat(
        "intermediate results stay in float32; eager rounds each of them to the tensor's dtype"
    )


def _place(graph: Graph, region: MovedRegion) -> fx.Node | None:
    return launching.place(graph, region.nodes, (region.out,), region.inputs)


def _name(region: MovedRegion) -> str:
    words = [
        operations.name_of(node).strip("_")
        for node in region.nodes
        if not is_identity(node)
        and op_name(node) not in (*operations.SPLITS, *operations.RESHAPES, *operations.TURNS)
    ]
    return "_".join(["moved", *list(dict.fromkeys(words))[:4]])


def generate(
    graph: Graph, region: MovedRegion, choice: dict[str, Any], name: str
) -> GeneratedSource:
    """Kernels and launchers under this name."""
    planned = plan(graph, region, name, doc_of(region), is_named=True)
    parts = list[str]()
    own = {
        key.removeprefix(BACKWARD): item for key, item in choice.items() if key.startswith(BACKWARD)
    }
    kernels = (*planned.forward, *planned.backward, *planned.last)
    for index, kernel in enumerate(kernels):
        first = {key: choices[0] for key, choices in jobs.parameters(kernel).items()}
        chosen = {0: choice, len(planned.forward): own}.get(index, {})
        parts += moving_source.texts(kernel, {**first, **chosen})
    if planned.lowered.totals:
        parts.append(function.sums_text(planned, f"{name}_forward" if planned.wanted else name))
    if planned.wanted:
        parts += [
            function.eager_text(planned, name),
            function.function_text(planned, name),
            function.public_text(planned, name),
        ]
    numbers = _numbers([planned.lowered.value])
    made = source.module(name, parts, planned.doc, numbers)
    return replace(
        made,
        sizes="; ".join([*(k.sizes for k in kernels), *(s.statement for s in planned.sums)]),
        launches=len(planned.forward),
        supports_autograd=graph.gradients,
    )


def doc_of(region: MovedRegion) -> str:
    """A sentence on what the kernels of the region do, for their docstrings."""
    return f"{_words(region)[:80].capitalize()} in one pass."


def _numbers(values: Sequence[Value]) -> tuple[float, ...]:
    every = topological(values)
    found = [arg for value in every for arg in value.args if isinstance(arg, (int, float))]
    return tuple(float(number) for number in found)
