"""From a region that moves elements to its kernels: values, tensors, gradients.

One forward kernel, or one for each sum over all elements; one backward kernel for each shape of a
gradient, which reads the incoming one wherever an element went. Shapes that hold the same elements
in other orders share one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx

from kernel_lsp.rewrite.codegen.backward import derive
from kernel_lsp.rewrite.codegen.core import affine, strides
from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Operand, Value, apply, load, moved, topological
from kernel_lsp.rewrite.codegen.core.moves import (
    DimSizes,
    ElementMove,
    Expand,
    Gather,
    Join,
    Permute,
    is_bijection,
)
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported, dtype_name, op_name
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.codegen.moving import complex_numbers, operations
from kernel_lsp.rewrite.codegen.moving.evaluate import MAX_COPIES, MovedTensor
from kernel_lsp.rewrite.codegen.moving.jobs import (
    RESERVED,
    MovedJob,
    MovedOutput,
    PlannedKernel,
    operand_tensor,
    plan_kernel,
)
from kernel_lsp.rewrite.codegen.moving.region import MovedRegion, is_total
from kernel_lsp.rewrite.codegen.pointwise.operations import value_of
from kernel_lsp.rewrite.graph import Graph

MAX_TILE = 1.25
"""Elements of a tile over those of a sum that shares it with others."""
MIN_SUMMED = 32
"""Columns whose sums over rows a kernel makes itself."""


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
        """Sizes of the result in the order in which it lies in memory."""
        own = shape_of(self.region.out)
        return tuple(own[dim] for dim in self.order) if self.order else own

    @property
    def names(self) -> list[str]:
        """What the tensors that are read are called in the source."""
        return [tensor.operand.name for tensor in self.tensors]


def lower(graph: Graph, region: MovedRegion, *, is_named: bool = False) -> LoweredMoves:
    """``is_named``: values have the program's names, which take a while to find. Raises
    Unsupported."""
    out = region.out
    tensors = _tensors(graph, region)
    values = {node: _loaded(node, item.operand) for node, item in tensors.items()}

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
        if complex_numbers.is_step(node):
            return complex_numbers.value_of(node, lambda arg: values[arg])
        if operations.is_move(node):
            return operations.moved_value(node, get)
        shape = shape_of(node)
        made = value_of(node, lambda arg: operations.expanded(get(arg), shape_of(arg), shape))
        known = not is_named or not isinstance(made, Value) or made in values.values()
        return made if known else replace(made, hint=graph.variable(node))

    for node in region.nodes:  # in order: no deep recursion
        if op_name(node) not in operations.SPLITS and node not in values:
            values[node] = make(node)
    order = _order_in_memory(out)
    value = moved(get(out), Permute(shape_of(out), order))
    turned = () if list(order) == sorted(order) else order
    totals = {node: get(node.args[0]) for node in region.totals}
    return LoweredMoves(
        region=region,
        order=turned,
        value=value,
        tensors=tuple(tensors.values()),
        totals=totals,
    )


def _order_in_memory(out: fx.Node) -> tuple[int, ...]:
    """The result's dimensions, the slowest first. Raises Unsupported."""
    order: tuple[int, ...] = strides.order_of([out.meta["val"]], out.meta["val"].dim())
    if not out.meta["val"].permute(order).is_contiguous():
        raise Unsupported("a result with gaps")
    return order


def _loaded(node: fx.Node, operand: Operand) -> Any:
    value = load(operand)
    if complex_numbers.is_complex(node):
        return complex_numbers.from_real(value, shape_of(node))
    return value


def _total(node: fx.Node, value: Value) -> Value:
    """A sum, or its share for each element."""
    every = Expand((), shape_of(node.args[0]))
    made = Value(op="totaled", args=(value,), move=every)
    if op_name(node) == "sum":
        return made
    return apply("mul", made, Value(op="share", move=every, hint="share"))


def _tensors(graph: Graph, region: MovedRegion) -> dict[fx.Node, MovedTensor]:
    """What the region reads, under names that nothing else has."""
    names = UniqueNames([*RESERVED, "out", "partial", "ctx"])
    tensors: dict[fx.Node, MovedTensor] = {}
    for node in region.inputs:
        value = complex_numbers.real_view(node.meta["val"])
        path = graph.state.get(node)
        called = path.split(".")[-1] if path else node.name
        name = names.fresh(f"given_{called}" if called.startswith(("grad", "full")) else called)
        axes = tuple(range(value.dim()))
        operand = Operand(name=name, dtype=dtype_name(value.dtype), axes=axes)
        tensors[node] = operand_tensor(operand, value)
    return tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class Summed:
    """A gradient of something that is broadcast, which a kernel stores for each element."""

    stored: str
    name: str
    """Of the sum."""
    gather: Gather
    dtype: str
    kept: DimSizes = ()
    """What is left where the kernel sums rows, of which a few are left to add up; else empty."""

    @property
    def statement(self) -> str:
        """The line that adds up what a kernel has stored."""
        if self.kept:
            shape = f".view({self.gather.target})" if len(self.gather.target) > 1 else ""
            cast = f".to(torch.{self.dtype})" if self.dtype != "float32" else ""
            return f"{self.name} = {self.stored}.sum(0){cast}{shape}"
        source, target = self.gather.source, self.gather.target
        lead = len(source) - len(target)
        kept = [d for d in range(lead, len(source)) if target[d - lead] != source[d]]
        kept = kept if not lead else [d - lead for d in kept]
        text = self.stored
        if lead:
            text += f".sum({_axes(range(lead))}, dtype=torch.{self.dtype})"
        if kept:
            text += f".sum({_axes(kept)}, keepdim=True, dtype=torch.{self.dtype})"
        return f"{self.name} = {text}"


def _axes(dims: Sequence[int]) -> str:
    return str(tuple(dims)) if len(dims) > 1 else str(dims[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class _BackwardKernels:
    """The second half of a plan."""

    kernels: tuple[PlannedKernel, ...] = ()
    sums: tuple[Summed, ...] = ()
    last: tuple[PlannedKernel, ...] = ()
    handed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedPlan:
    """The kernels of a region."""

    lowered: LoweredMoves
    forward: tuple[PlannedKernel, ...]
    """One, or one for each sum over all elements."""
    backward: tuple[PlannedKernel, ...]
    """One for each shape of a gradient."""
    sums: tuple[Summed, ...]
    """What PyTorch adds up behind them."""
    last: tuple[PlannedKernel, ...]
    """Kernels that read the sums."""
    wanted: tuple[Operand, ...]
    doc: str
    handed: tuple[str, ...]
    """Names of those whose gradient is the incoming one."""


def plan(
    graph: Graph, region: MovedRegion, name: str, doc: str = "", *, is_named: bool = False
) -> MovedPlan:
    """The kernels of a region that moves values, and those of its gradient where one is asked for.

    ``doc``: what they do, as a sentence. Raises Unsupported."""
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
    gradients = _backward(lowered, wanted, name, dtype) if wanted else _BackwardKernels()
    return MovedPlan(
        lowered=lowered,
        forward=tuple(map(plan_kernel, jobs)),
        backward=gradients.kernels,
        sums=gradients.sums,
        last=gradients.last,
        wanted=wanted,
        doc=doc,
        handed=gradients.handed,
    )


def _totals(lowered: LoweredMoves, name: str, doc: str) -> list[MovedJob]:
    """One job where a tile has nearly all elements of each sum, else one for each."""
    outputs = list[MovedOutput]()
    for index, (node, value) in enumerate(lowered.totals.items()):
        output = MovedOutput(
            name=f"total_{index + 1}",
            value=value,
            dtype=dtype_name(node.meta["val"].dtype),
            shape=shape_of(node.args[0]),
            total=op_name(node),
        )
        outputs.append(output)
    groups = [outputs] if _share_tiles(outputs) else [[output] for output in outputs]
    return [
        MovedJob(
            name=f"{name}_{group[0].total}" + (f"_{index + 1}" if index else ""),
            doc=doc,
            shape=tuple(map(max, zip(*(output.shape for output in group), strict=True))),
            outputs=tuple(group),
            tensors=lowered.tensors,
        )
        for index, group in enumerate(groups)
    ]


def _share_tiles(outputs: Sequence[MovedOutput]) -> bool:
    if len({(len(output.shape), output.dtype) for output in outputs}) > 1:
        return False
    whole = math.prod(map(max, zip(*(output.shape for output in outputs), strict=True)))
    return all(math.prod(output.shape) * MAX_TILE >= whole for output in outputs)


def _wanted(graph: Graph, lowered: LoweredMoves) -> tuple[Operand, ...]:
    if not graph.gradients or not graph.carries(lowered.region.out):
        return ()
    if graph.origin.hides_gradients:
        raise Unsupported("a part hides its gradients")
    if any(complex_numbers.is_complex(n) and graph.carries(n) for n in lowered.region.inputs):
        raise Unsupported("a trained complex tensor")
    pairs = zip(lowered.tensors, lowered.region.inputs, strict=True)
    return tuple(
        tensor.operand
        for tensor, node in pairs
        if tensor.operand.dtype in derive.FLOATS and graph.carries(node)
    )


def _backward(
    lowered: LoweredMoves, wanted: Sequence[Operand], name: str, dtype: str
) -> _BackwardKernels:
    """What makes the gradients; those that are the incoming one are not stored again."""
    shape = lowered.shape
    seed = Operand(name="grad", dtype=dtype, axes=tuple(range(len(shape))))
    incoming = MovedTensor(operand=seed, shape=shape, steps=affine.strides(shape))
    try:
        found = derive.gradients([lowered.value], {lowered.value: load(seed)}, wanted)
    except derive.Underivable as error:
        raise Unsupported(str(error)) from error
    handed = [o.name for o, v in found.items() if v.operand is seed and o.dtype == dtype]
    left = [t for t in lowered.tensors if t.operand in found and t.operand.name not in handed]
    needed = {tensor: found[tensor.operand] for tensor in left}
    try:
        return _gradient_kernels(needed, [incoming, *lowered.tensors], name, handed, True)
    except Unsupported:
        return _gradient_kernels(needed, [incoming, *lowered.tensors], name, handed, False)


@dataclass
class _GradientOutputs:
    """What the backward kernels write, by the shape that they walk."""

    in_kernel: bool
    """Sums over rows are the kernel's, as far as it can."""
    first: dict[DimSizes, list[MovedOutput]] = field(default_factory=dict)
    """Gradients, and what is to be summed to one."""
    last: dict[DimSizes, list[MovedOutput]] = field(default_factory=dict)
    """Gradients that are computed from sums."""
    sums: list[Summed] = field(default_factory=list)
    tensors: dict[Operand, MovedTensor] = field(default_factory=dict)
    """The sums, as what the last kernels read."""

    def add(self, tensor: MovedTensor, gradient: Value) -> None:
        """Notes what the gradient of a tensor needs. Raises Unsupported."""
        operand = tensor.operand
        parts = _SummedParts(gradient, operand, len(self.sums), self.in_kernel)
        for one, value in zip(parts.sums, parts.stored, strict=True):
            output = MovedOutput(
                name=one.stored,
                value=value,
                dtype=operand.dtype,
                total="rows" if one.kept else "",
                kept=one.kept,
            )
            self.first.setdefault(one.gather.source, []).append(output)
        self.sums += parts.sums
        self.tensors |= parts.tensors
        if parts.rest is not None:
            made = MovedOutput(
                name=f"grad_{operand.name}",
                value=parts.rest,
                dtype=operand.dtype,
                like=operand.name,
            )
            (self.last if parts.sums else self.first).setdefault(tensor.shape, []).append(made)

    def jobs(self, name: str, tensors: Sequence[MovedTensor]) -> list[MovedJob]:
        """One for each shape, those that read sums last; ``tensors``: what else can be read."""
        jobs = [
            MovedJob(
                name=f"{name}_backward" + (f"_{index + 1}" if index else ""),
                doc=f"Gradients of {name}.",
                shape=shape,
                outputs=tuple(sorted(outputs, key=_place_among_outputs)),
                tensors=(*tensors, *self.tensors.values()),
            )
            for index, (shape, outputs) in enumerate([*self.first.items(), *self.last.items()])
        ]
        if any(len({output.kept for output in job.row_sums}) > 1 for job in jobs):
            raise Unsupported("sums over different rows")
        return jobs


def _place_among_outputs(output: MovedOutput) -> tuple[bool, bool]:
    """Sums behind what is stored; of these first what has the shape of a tensor."""
    return bool(output.total), not output.like


def _gradient_kernels(
    needed: dict[MovedTensor, Value],
    tensors: list[MovedTensor],
    name: str,
    handed: Sequence[str],
    in_kernel: bool,
) -> _BackwardKernels:
    """``tensors``: what can be read, the seed first. ``in_kernel``: sums over rows are the
    kernel's."""
    outputs = _GradientOutputs(in_kernel)
    for tensor, gradient in needed.items():
        outputs.add(tensor, gradient)
    kernels = tuple(map(plan_kernel, outputs.jobs(name, tensors)))
    first, last = kernels[: len(outputs.first)], kernels[len(outputs.first) :]
    return _BackwardKernels(
        kernels=_as_one(first, tensors[0].operand) or first,
        sums=tuple(outputs.sums),
        last=last,
        handed=tuple(handed),
    )


def _as_one(kernels: Sequence[PlannedKernel], seed: Operand) -> tuple[PlannedKernel, ...]:
    """One kernel for gradients of several shapes that hold the same elements in other orders: each
    tensor is read once. Empty where there is none."""
    ways = [_way_to(kernel.job.outputs[0].value, seed) for kernel in kernels]
    found = [way for way in ways if way is not None]
    apart = len(kernels) < 2 or len(found) < len(kernels)
    if apart or any(kernel.width > 1 or kernel.job.row_sums for kernel in kernels):
        return ()
    main = _with_most_tensors(kernels)
    job = replace(kernels[main].job, name=kernels[0].job.name)
    others = [
        _in_another_order(kernel.job, found[main], way)
        for kernel, way in zip(kernels, found, strict=True)
        if kernel is not kernels[main]
    ]
    outputs = (*job.outputs, *(output for other in others for output in other))
    try:
        planned = plan_kernel(replace(job, outputs=outputs))
    except Unsupported:
        return ()
    return () if planned.is_turned else (planned,)


def _with_most_tensors(kernels: Sequence[PlannedKernel]) -> int:
    """The kernel in whose order most lies that is read or written."""
    tensors = {t.operand: t for kernel in kernels for t in kernel.read}.values()
    jobs = [kernel.job for kernel in kernels]
    alike = [sum(t.shape == job.shape for t in tensors) + len(job.outputs) for job in jobs]
    return alike.index(max(alike))


def _in_another_order(
    job: MovedJob, main: Sequence[ElementMove], own: Sequence[ElementMove]
) -> list[MovedOutput]:
    """The job's outputs, made at positions of another; both ways lead to the seed."""
    back = [move.adjoint() for move in reversed(own) if not isinstance(move, Join)]
    return [replace(out, shape=job.shape, via=(*main, *back)) for out in job.outputs]


def _way_to(value: Value, seed: Operand) -> tuple[ElementMove, ...] | None:
    """The moves that take a position of the value to the only one of the seed that belongs to it;
    None where there are others, or none."""
    if value.operand is seed:
        return ()
    if value.move is not None and not is_bijection(value.move):
        return None
    for arg in value.args:
        if isinstance(arg, Value) and (way := _way_to(arg, seed)) is not None:
            return (value.move, *way) if value.move is not None else way
    return None


class _SummedParts:
    """A gradient as sums over many elements, and what is computed from these."""

    def __init__(self, value: Value, operand: Operand, known: int, in_kernel: bool) -> None:
        self.sums: list[Summed] = []
        self.stored: list[Value] = []
        """For each sum what is summed."""
        self.tensors: dict[Operand, MovedTensor] = {}
        """The sums, as what the last kernels read."""
        self.rest: Value | None = None
        """The gradient; None where it is the sum itself."""
        many = [item for item in topological([value]) if _is_long_sum(item)]
        made: dict[Value, Value] = {}
        for place, item in enumerate(many):
            gather, number = item.move, known + place + 1
            assert isinstance(gather, Gather) and isinstance(item.args[0], Value)
            if any(inner in made for inner in topological([item.args[0]])):
                raise Unsupported("a sum of sums")
            whole = item is value
            self.sums.append(
                Summed(
                    stored=f"full_{number}",
                    name=f"grad_{operand.name}" if whole else f"full_sum_{number}",
                    gather=gather,
                    dtype=operand.dtype if whole else "float32",
                    kept=_kept(gather) if in_kernel else (),
                )
            )
            self.stored.append(item.args[0])
            if not whole:
                made[item] = self._read(f"full_sum_{number}", gather.target)
        if not (many and many[-1] is value):
            self.rest = _rebuilt(value, made)

    def _read(self, name: str, shape: DimSizes) -> Value:
        operand = Operand(name=name, dtype="float32", axes=tuple(range(len(shape))))
        self.tensors[operand] = MovedTensor(
            operand=operand, shape=shape, steps=affine.strides(shape)
        )
        return load(operand)


def _kept(gather: Gather) -> DimSizes:
    """Sizes of the last dimensions, where all before them are summed; else empty."""
    source = gather.source
    target = (1,) * (len(source) - len(gather.target)) + gather.target
    first = next((dim for dim, size in enumerate(target) if size != 1), len(target))
    whole = first > 0 and target[first:] == source[first:]
    return source[first:] if whole and math.prod(source[first:]) >= MIN_SUMMED else ()


def _is_long_sum(value: Value) -> bool:
    return isinstance(value.move, Gather) and value.move.count > MAX_COPIES


def _rebuilt(value: Value, made: dict[Value, Value]) -> Value:
    """The value with others in the place of some that it is computed from."""
    known = dict(made)
    for item in topological([value]):
        if item in known:
            continue
        args = tuple(known[arg] if isinstance(arg, Value) else arg for arg in item.args)
        changed = any(new is not old for new, old in zip(args, item.args, strict=True))
        known[item] = replace(item, args=args) if changed else item
    return known[value]
