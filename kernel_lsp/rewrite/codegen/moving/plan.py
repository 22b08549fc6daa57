"""From a region that moves elements to its kernels: values, tensors, gradients.

One forward kernel, or one for each sum over all elements; one backward kernel for each shape of a
gradient, which reads the incoming one wherever an element went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from kernel_lsp.rewrite.codegen.backward import derive
from kernel_lsp.rewrite.codegen.core import affine, strides
from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Operand, Value, apply, load, moved
from kernel_lsp.rewrite.codegen.core.moves import Expand, Permute
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.codegen.moving import operations
from kernel_lsp.rewrite.codegen.moving import source as moving
from kernel_lsp.rewrite.codegen.moving.evaluate import MovedTensor
from kernel_lsp.rewrite.codegen.moving.region import MovedRegion, is_total
from kernel_lsp.rewrite.codegen.moving.source import MovedJob, MovedOutput, PlannedKernel
from kernel_lsp.rewrite.codegen.pointwise.operations import (
    Unsupported,
    dtype_name,
    op_name,
    value_of,
)
from kernel_lsp.rewrite.graph import Graph


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredMoves:
    region: MovedRegion
    order: tuple[int, ...]
    """Dimensions of the result as they lie in memory; empty for their own order."""
    value: Value
    """Of the result, in that order."""
    tensors: tuple[MovedTensor, ...]
    totals: dict[fx.Node, Value]
    """What sums and means are taken of."""

    @property
    def shape(self) -> tuple[int, ...]:
        own = shape_of(self.region.out)
        return tuple(own[dim] for dim in self.order) if self.order else own

    @property
    def names(self) -> list[str]:
        return [tensor.operand.name for tensor in self.tensors]


def lower(graph: Graph, region: MovedRegion, *, is_named: bool = False) -> LoweredMoves:
    """``is_named``: values have the program's names, which take a while to find. Raises
    Unsupported."""
    out = region.out
    names = UniqueNames([*moving.RESERVED, "out", "grad"])
    tensors: dict[fx.Node, MovedTensor] = {}
    values: dict[fx.Node, Any] = {}
    for node in region.inputs:
        value = node.meta["val"]
        path = graph.state.get(node)
        name = names.fresh(path.split(".")[-1] if path else node.name)
        axes = tuple(range(value.dim()))
        operand = Operand(name=name, dtype=dtype_name(value.dtype), axes=axes)
        tensors[node] = moving.operand_tensor(operand, value)
        values[node] = load(operand)

    def get(node: fx.Node) -> Value:
        if node not in values:
            values[node] = make(node)
        value = values[node]
        if not isinstance(value, Value):
            raise Unsupported("a number where a tensor is expected")
        return value

    def make(node: fx.Node) -> Any:
        if is_total(node):
            return _total(node, get(node.args[0]))
        if operations.is_move(node):
            return operations.moved_value(node, get)
        shape = shape_of(node)
        made = value_of(node, lambda arg: operations.expanded(get(arg), shape_of(arg), shape))
        known = not is_named or not isinstance(made, Value) or made in values.values()
        return made if known else replace(made, hint=graph.variable(node))

    for node in region.nodes:  # in order: no deep recursion
        if op_name(node) not in operations.SPLITS:
            get(node)
    order: tuple[int, ...] = strides.order_of([out.meta["val"]], out.meta["val"].dim())
    value = moved(get(out), Permute(shape_of(out), order))
    if not out.meta["val"].permute(order).is_contiguous():
        raise Unsupported("a result with gaps")
    turned = () if list(order) == sorted(order) else order
    totals = {node: get(node.args[0]) for node in region.totals}
    return LoweredMoves(
        region=region,
        order=turned,
        value=value,
        tensors=tuple(tensors.values()),
        totals=totals,
    )


def _total(node: fx.Node, value: Value) -> Value:
    """A sum, or its share for each element."""
    every = Expand((), shape_of(node.args[0]))
    made = Value(op="totaled", args=(value,), move=every)
    if op_name(node) == "sum":
        return made
    return apply("mul", made, Value(op="share", move=every, hint="share"))


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedPlan:
    """The kernels of a region."""

    lowered: LoweredMoves
    forward: tuple[PlannedKernel, ...]
    """One, or one for each sum over all elements."""
    backward: tuple[PlannedKernel, ...]
    """One for each shape of a gradient."""
    wanted: tuple[Operand, ...]
    doc: str
    handed: tuple[str, ...]
    """Names of those whose gradient is the incoming one."""


def plan(
    graph: Graph, region: MovedRegion, name: str, doc: str = "", *, is_named: bool = False
) -> MovedPlan:
    """``doc``: what the kernels do, as a sentence. Raises Unsupported."""
    lowered = lower(graph, region, is_named=is_named)
    wanted = _wanted(graph, lowered)
    dtype = dtype_name(region.out.meta["val"].dtype)
    jobs = (
        _totals(lowered, name, doc)
        if lowered.totals
        else [
            MovedJob(
                name=f"{name}_forward" if wanted else name,
                doc=doc,
                shape=lowered.shape,
                outputs=(MovedOutput(name="out", value=lowered.value, dtype=dtype),),
                tensors=lowered.tensors,
            )
        ]
    )
    kernels, handed = _backward(lowered, wanted, name, dtype) if wanted else ((), ())
    return MovedPlan(
        lowered=lowered,
        forward=tuple(map(moving.plan_kernel, jobs)),
        backward=kernels,
        wanted=wanted,
        doc=doc,
        handed=handed,
    )


def _totals(lowered: LoweredMoves, name: str, doc: str) -> list[MovedJob]:
    jobs = list[MovedJob]()
    for index, (node, value) in enumerate(lowered.totals.items()):
        dtype = dtype_name(node.meta["val"].dtype)
        job = MovedJob(
            name=f"{name}_{op_name(node)}" + (f"_{index + 1}" if index else ""),
            doc=doc,
            shape=shape_of(node.args[0]),
            outputs=(MovedOutput(name="partial", value=value, dtype=dtype),),
            tensors=lowered.tensors,
            total=op_name(node),
        )
        jobs.append(job)
    return jobs


def _wanted(graph: Graph, lowered: LoweredMoves) -> tuple[Operand, ...]:
    if not graph.gradients or not graph.carries(lowered.region.out):
        return ()
    if graph.origin.hides_gradients:
        raise Unsupported("a part hides its gradients")
    pairs = zip(lowered.tensors, lowered.region.inputs, strict=True)
    return tuple(
        tensor.operand
        for tensor, node in pairs
        if tensor.operand.dtype in derive.FLOATS and graph.carries(node)
    )


def _backward(
    lowered: LoweredMoves, wanted: Sequence[Operand], name: str, dtype: str
) -> tuple[tuple[PlannedKernel, ...], tuple[str, ...]]:
    """The kernels, and which gradients are the incoming one: these are not stored again."""
    shape = lowered.shape
    seed = Operand(name="grad", dtype=dtype, axes=tuple(range(len(shape))))
    incoming = MovedTensor(operand=seed, shape=shape, steps=affine.strides(shape))
    try:
        found = derive.gradients([lowered.value], {lowered.value: load(seed)}, wanted)
    except derive.Underivable as error:
        raise Unsupported(str(error)) from error
    by_shape: dict[tuple[int, ...], list[MovedOutput]] = {}
    handed = [o.name for o, v in found.items() if v.operand is seed and o.dtype == dtype]
    for tensor in lowered.tensors:
        if tensor.operand in found and tensor.operand.name not in handed:
            operand = tensor.operand
            gradient = MovedOutput(
                name=f"grad_{operand.name}",
                value=found[operand],
                dtype=operand.dtype,
                like=operand.name,
            )
            by_shape.setdefault(tensor.shape, []).append(gradient)
    jobs = [
        MovedJob(
            name=f"{name}_backward" + (f"_{index + 1}" if index else ""),
            doc=f"Gradients of {name}.",
            shape=shape,
            outputs=tuple(outputs),
            tensors=(incoming, *lowered.tensors),
        )
        for index, (shape, outputs) in enumerate(by_shape.items())
    ]
    return tuple(moving.plan_kernel(job) for job in jobs), tuple(handed)
