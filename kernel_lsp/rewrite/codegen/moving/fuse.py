"""Sites of kernels that move elements, what they are worth, and the rewrite.

A site is one result that a kernel writes: the pointwise operations and moves that lead to it, as
far back as nobody else reads what lies between. Views are read through: a kernel addresses the
tensor that they are views of, and the gradient of that is made by one kernel, however many slices
of it are read. Not covered: several results, gradients that are sums over many elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.backward import derive
from kernel_lsp.rewrite.codegen.backward import kernels as backward
from kernel_lsp.rewrite.codegen.core import affine, cost, launching, source, strides
from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Operand, Value, load, moved, topological
from kernel_lsp.rewrite.codegen.core.lower import is_identity
from kernel_lsp.rewrite.codegen.core.moves import Permute
from kernel_lsp.rewrite.codegen.core.space import shape_of
from kernel_lsp.rewrite.codegen.moving import operations
from kernel_lsp.rewrite.codegen.moving import source as moving
from kernel_lsp.rewrite.codegen.moving.cost import eager_seconds
from kernel_lsp.rewrite.codegen.moving.evaluate import MovedTensor
from kernel_lsp.rewrite.codegen.moving.source import MovedJob, MovedOutput, PlannedKernel
from kernel_lsp.rewrite.codegen.pointwise import rotary
from kernel_lsp.rewrite.codegen.pointwise.operations import (
    FLOATS,
    Unsupported,
    dtype_name,
    is_pointwise,
    op_name,
    value_of,
)
from kernel_lsp.rewrite.generated import GeneratedSource, Match
from kernel_lsp.rewrite.graph import Graph

MIN_SAVING = 0.1
MAX_NODES = 48
BACKWARD = "backward_"
"""Before the name of a parameter that is the backward kernel's own."""
SEVERED = ("detach",)


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedRegion:
    """One result and what leads to it, in graph order."""

    out: fx.Node
    nodes: tuple[fx.Node, ...]
    own: tuple[fx.Node, ...]
    """Those that nobody else needs."""

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        inside = set(self.nodes)
        read = [
            arg
            for node in self.nodes
            for arg in node.all_input_nodes
            if arg not in inside and isinstance(arg.meta.get("val"), torch.Tensor)
        ]
        return tuple(dict.fromkeys(read))


# --- finding it --------------------------------------------------------------------------


def region_of(graph: Graph, out: fx.Node) -> MovedRegion | None:
    """All that can be computed on the way to a result."""
    if not _fits(graph, out) or operations.is_part(out) or _is_free(out):
        return None
    inside, own = {out}, {out}
    nodes = graph.nodes
    for node in reversed(nodes[: nodes.index(out)]):
        users = list(node.users)
        if not any(user in inside for user in users) or len(inside) >= MAX_NODES:
            continue
        alone = not graph.is_output(node) and all(user in own for user in users)
        if _joins(graph, node, inside, alone):
            inside.add(node)
            own |= {node} if alone else set()
    return _without_loose_parts(graph, out, inside, own)


def _joins(graph: Graph, node: fx.Node, inside: set[fx.Node], alone: bool) -> bool:
    """``alone``: nobody outside needs the node."""
    if op_name(node) in operations.SPLITS:
        return alone or not graph.gradients  # autograd joins the gradients of parts in one go
    if operations.is_part(node):
        return _may_open(graph, node, inside)
    return _fits(graph, node) and (alone or _is_free(node))


def _may_open(graph: Graph, node: fx.Node, inside: set[fx.Node]) -> bool:
    """A part whose split can join: all parts are read here, where gradients are recorded."""
    users = [user for part in node.args[0].users for user in part.users]
    return operations.is_move(node) and (
        not graph.gradients or all(user in inside for user in users)
    )


def _without_loose_parts(
    graph: Graph, out: fx.Node, inside: set[fx.Node], own: set[fx.Node]
) -> MovedRegion:
    """A part whose split did not join is read as it is."""
    loose = {n for n in inside if operations.is_part(n) and n.args[0] not in inside}
    inside, own = inside - loose, own - loose
    return MovedRegion(out=out, nodes=tuple(graph.ordered(inside)), own=tuple(graph.ordered(own)))


def _fits(graph: Graph, node: fx.Node) -> bool:
    if graph.gradients and op_name(node) in SEVERED:
        return False
    return operations.is_move(node) or (is_pointwise(node) and op_name(node) != "broadcast_part")


def _is_free(node: fx.Node) -> bool:
    """It costs nothing in eager, for other readers as well."""
    if operations.name_of(node) in operations.BUILDERS or op_name(node) == "contiguous":
        return operations.is_view(node)
    return is_identity(node) and not strides.is_copy(node) and op_name(node) != "clone"


def moves_much(graph: Graph, region: MovedRegion) -> bool:
    """Something is read elsewhere than a pointwise kernel would: a copy with other places, or
    several slices of one tensor."""
    slices: dict[fx.Node, int] = {}
    for node in region.nodes:
        name = operations.name_of(node)
        if name in ("slice", "select", "narrow", "part"):
            (base,) = operations.sources(node)
            slices[base] = slices.get(base, 0) + 1
        moves = name in operations.BUILDERS or name == "contiguous"
        if moves and name != "expand" and not operations.is_view(node):
            return True
    return any(count > 1 for count in slices.values()) or bool(graph.gradients and slices)


# --- values ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LoweredMoves:
    region: MovedRegion
    order: tuple[int, ...]
    """Dimensions of the result as they lie in memory; empty for their own order."""
    value: Value
    """Of the result, in that order."""
    tensors: tuple[MovedTensor, ...]

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
        if operations.is_move(node):
            return operations.moved_value(node, get)
        shape = shape_of(node)
        made = value_of(node, lambda arg: operations.expanded(get(arg), shape_of(arg), shape))
        known = not is_named or not isinstance(made, Value) or made in values.values()
        return made if known else replace(made, hint=graph.variable(node))

    for node in region.nodes:  # in order: no deep recursion
        if op_name(node) not in operations.SPLITS:
            get(node)
    order = strides.order_of([out.meta["val"]], out.meta["val"].dim())
    value = moved(get(out), Permute(shape_of(out), order))
    if not out.meta["val"].permute(order).is_contiguous():
        raise Unsupported("a result with gaps")
    turned = () if list(order) == sorted(order) else order
    return LoweredMoves(region=region, order=turned, value=value, tensors=tuple(tensors.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedPlan:
    """The kernels of a region."""

    lowered: LoweredMoves
    forward: PlannedKernel
    backward: tuple[PlannedKernel, ...]
    """One for each shape of a gradient."""
    wanted: tuple[Operand, ...]


def plan(graph: Graph, region: MovedRegion, name: str, *, is_named: bool = False) -> MovedPlan:
    """Raises Unsupported."""
    lowered = lower(graph, region, is_named=is_named)
    wanted = _wanted(graph, lowered)
    dtype = dtype_name(region.out.meta["val"].dtype)
    out = MovedOutput(name="out", value=lowered.value, dtype=dtype)
    words = _words(region)
    forward = MovedJob(
        name=f"{name}_forward" if wanted else name,
        doc=f"{words[:80].capitalize()} in one pass.",
        shape=lowered.shape,
        outputs=(out,),
        tensors=lowered.tensors,
    )
    return MovedPlan(
        lowered=lowered,
        forward=moving.plan_kernel(forward),
        backward=_backward(lowered, wanted, name, dtype) if wanted else (),
        wanted=wanted,
    )


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
) -> tuple[PlannedKernel, ...]:
    shape = lowered.shape
    seed = Operand(name="grad", dtype=dtype, axes=tuple(range(len(shape))))
    incoming = MovedTensor(operand=seed, shape=shape, steps=affine.strides(shape))
    try:
        found = derive.gradients([lowered.value], {lowered.value: load(seed)}, wanted)
    except derive.Underivable as error:
        raise Unsupported(str(error)) from error
    by_shape: dict[tuple[int, ...], list[MovedOutput]] = {}
    for tensor in lowered.tensors:
        if tensor.operand in found:
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
    return tuple(moving.plan_kernel(job) for job in jobs)


# --- what it is worth --------------------------------------------------------------------


def matches(graph: Graph) -> list[Match]:
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
    ours_s = _seconds(graph, planned.forward, nodes)
    eager_s = eager_seconds(graph, region.own, region.nodes, bool(planned.wanted))
    launches = 1 + len(planned.backward)
    ours_s += sum(_seconds(graph, kernel, nodes) for kernel in planned.backward)
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
    moved_bytes = sum(size * source.itemsize(output.dtype) for output in kernel.job.outputs)
    for tensor in kernel.read:
        reads = sum(load.tensor is tensor for load in kernel.loads)
        whole = torch.Size(tensor.shape).numel()
        moved_bytes += min(whole, reads * size) * source.itemsize(tensor.operand.dtype)
    speed = cost.rates(graph)
    return moved_bytes / speed.bytes_per_s + speed.overhead_s


def parameters(planned: MovedPlan) -> dict[str, list[Any]]:
    found = moving.parameters(planned.forward)
    if planned.backward:
        own = moving.parameters(planned.backward[0])
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
            else "the dispatch guard takes the original path while gradients are recorded",
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
    launching.launch(graph, kernel, region.inputs, (region.out,), before, planned.lowered.order)
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
    planned = plan(graph, region, name, is_named=True)
    parts = moving.texts(planned.forward, choice)
    own = {
        key.removeprefix(BACKWARD): item for key, item in choice.items() if key.startswith(BACKWARD)
    }
    for index, kernel in enumerate(planned.backward):
        first = {key: choices[0] for key, choices in moving.parameters(kernel).items()}
        parts += moving.texts(kernel, first if index else {**first, **own})
    if planned.wanted:
        parts += [_eager(planned, name), _function(planned, name), _public(planned, name)]
    numbers = _numbers([output.value for output in planned.forward.job.outputs])
    kernels = (planned.forward, *planned.backward)
    made = source.module(name, parts, planned.forward.job.doc, numbers)
    return replace(
        made,
        sizes="; ".join(kernel.sizes for kernel in kernels),
        supports_autograd=graph.gradients,
    )


def _numbers(values: Sequence[Value]) -> tuple[float, ...]:
    every = topological(values)
    found = [arg for value in every for arg in value.args if isinstance(arg, (int, float))]
    return tuple(float(number) for number in found)


def _eager(planned: MovedPlan, name: str) -> str:
    """The region as plain PyTorch."""
    region = planned.lowered.region
    names = dict(zip(region.inputs, planned.lowered.names, strict=True))
    lines = [f"def {name}_eager({', '.join(planned.lowered.names)}):"]
    lines.append('    """The same in PyTorch, for gradients of gradients."""')
    made, last = backward.statements(region.nodes, names)
    turned = f".permute({planned.lowered.order})" if planned.lowered.order else ""
    return "\n".join([*lines, *made, f"    return {last}{turned}", ""])


def _function(planned: MovedPlan, name: str) -> str:
    given = planned.lowered.names
    arguments = ", ".join(given)
    saved = arguments if len(given) > 1 else f"({arguments},)"
    calls = []
    for kernel in planned.backward:
        made = ", ".join(output.name for output in kernel.job.outputs)
        read = [tensor.operand.name for tensor in kernel.given]
        calls.append(source.wrap_items(f"{made} = {kernel.job.name}(", read, ")", indent=" " * 8))
    wanted = {operand.name for operand in planned.wanted}
    results = [f"grad_{item}" if item in wanted else "None" for item in given]
    lines = [
        backward.AGAIN,
        "",
        f"class _{source.title(name)}(torch.autograd.Function):",
        f'    """{planned.forward.job.doc} Its gradient is gathered from where elements went."""',
        "",
        "    @staticmethod",
        f"    def forward(ctx, {arguments}):",
        f"        ctx.save_for_backward({arguments})",
        f"        return {name}_forward({', '.join(_given(planned.forward))})",
        "",
        "    @staticmethod",
        "    def backward(ctx, grad):",
        "        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of "
        "its own",
        f"            return differentiate_again(ctx, {name}_eager, grad)",
        f"        {saved} = ctx.saved_tensors",
        *calls,
        *backward.return_lines(results),
        "",
    ]
    return "\n".join(lines)


def _given(kernel: PlannedKernel) -> list[str]:
    return [tensor.operand.name for tensor in kernel.given]


def _public(planned: MovedPlan, name: str) -> str:
    arguments = ", ".join(planned.lowered.names)
    return f"def {name}({arguments}):\n    return _{source.title(name)}.apply({arguments})\n"
