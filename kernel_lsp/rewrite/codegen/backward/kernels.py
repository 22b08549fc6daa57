"""A generated kernel's backward: a second kernel that recomputes the forward from its inputs, and
the `torch.autograd.Function` that ties both together. What the forward has reduced over a long row
is kept, one number for each row, so that the backward need not reduce it again.

`differentiable(graph, nodes, lowered, emit) -> Generated | None` renames the forward launcher to
``<name>_forward``, derives ``<name>_backward`` (derive.py) and emits a function ``<name>`` in
front of them. Gradients of operands that are broadcast are finished by ``sum`` in PyTorch, as
eager does. Under ``create_graph=True`` the gradient is taken through the PyTorch operations
instead, which have derivatives of their own. Not covered: several passes over very long rows, bool
outputs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from torch import fx

from kernel_lsp.rewrite.codegen.backward import derive, draws
from kernel_lsp.rewrite.codegen.backward import parts as split
from kernel_lsp.rewrite.codegen.backward.parts import SplitTensor
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import (
    REDUCTIONS,
    Operand,
    Output,
    Region,
    Value,
    load,
    topological,
)
from kernel_lsp.rewrite.codegen.core.nodes import argument_nodes, broadcast_source, op_name
from kernel_lsp.rewrite.codegen.core.space import WEIGHTS
from kernel_lsp.rewrite.codegen.core.strides import inverse
from kernel_lsp.rewrite.codegen.reduction import persistent, segments
from kernel_lsp.rewrite.codegen.regions.lower import LoweredRegion
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph, argument
from kernel_lsp.rewrite.printing import guard
from kernel_lsp.rewrite.printing.calls import Printer

Emit: TypeAlias = Callable[[Region, str], "GeneratedSource | None"]
"""(region, summary) -> kernels and launcher, or None where no template fits."""
MIN_KEPT_COLUMNS = 128
"""Rows as long as this have their statistics kept: four bytes beside at least 256."""
PAIRS = ("moments", "softmax_stats", "argmax", "argmin")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradient:
    """How one operand's gradient comes out of the backward kernel."""

    operand: Operand
    stored: str
    """The kernel's output; or a tensor that is there already."""
    finish: str
    """Python expression in the backward method."""

    @property
    def is_summed(self) -> bool:
        """Whether PyTorch reads what is stored once more, to sum it."""
        return ".sum(" in self.finish


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardPlan:
    region: Region
    gradients: tuple[Gradient, ...]
    seeds: tuple[Operand, ...]
    kept: tuple[Output, ...]
    """What the forward stores for the backward, beside its results."""
    parts: tuple[SplitTensor, ...] = ()
    """Tensors of which the kernel gets the parts, and whose gradients it writes to."""


def plan(graph: Graph, nodes: Sequence[fx.Node], lowered: LoweredRegion) -> BackwardPlan | None:
    """How the backward is computed; None when some operation has no derivative here, or a gradient
    has no operand to go to."""
    wanted = wanted_operands(graph, lowered)
    if not wanted or not _is_covered(graph, nodes, lowered):
        return None
    region = lowered.region
    taken = UniqueNames(item.name for item in source.tensors(region))
    rows = _trailing(region, wanted)
    values = [output.value for output in region.outputs]
    if rows != region.reduced:
        values = _rebase(values, rows)
    operands = [_seed(region, rows, output, taken) for output in region.outputs]
    seeds: dict[Value, Value] = {}
    for output, value, operand in zip(region.outputs, values, operands, strict=True):
        incoming = load(operand, rowwise=output.rowwise)
        seeds[value] = derive.total(seeds.get(value), incoming)
    try:
        found = derive.gradients(values, seeds, wanted)
    except derive.Underivable:
        return None
    found, kept = _keep_statistics(region, found, taken)
    made = _outputs(region, rows, found, taken)
    outputs = tuple({output.name: output for output, _ in made if output is not None}.values())
    backward = Region(
        name=f"{region.name}_backward", dims=region.dims, outputs=outputs, reduced=rows
    )
    parts: tuple[SplitTensor, ...] = ()
    if not by_rows(backward):
        backward = _flatten_region(backward)
        backward, parts = split.written_in_place(backward, split.parts_of(lowered))
    order = _needed_operands(backward, (*region.operands, *kept.values(), *operands))
    return BackwardPlan(
        region=replace(backward, order=order),
        gradients=tuple(g for _, g in made),
        seeds=tuple(operands),
        kept=tuple(_kept_output(region, value, operand) for value, operand in kept.items()),
        parts=parts,
    )


def differentiable(
    graph: Graph,
    nodes: Sequence[fx.Node],
    lowered: LoweredRegion,
    forward: GeneratedSource,
    emit: Emit,
) -> GeneratedSource | None:
    """``forward`` is the kernel of ``lowered`` with its launcher under the region's name."""
    planned = plan(graph, nodes, lowered)
    if planned is None:
        return None
    name, kernels, numbers = lowered.region.name, list[str](), forward.numbers
    if planned.region.outputs:
        made = emit(planned.region, f"Gradients of {name}.")
        if made is None:
            return None
        kernels, numbers = (
            [_without_known(made.definitions, forward.definitions)],
            numbers + made.numbers,
        )
    definitions = [
        *([draws.HELPERS] if source.draws(lowered.region) else []),
        forward.definitions.replace(f"def {name}(", f"def {name}_forward("),
        *kernels,
        reference_source(nodes, lowered, f"{name}_eager", planned.parts),
        _function(planned, lowered, forward.summary),
        _public(nodes, lowered, planned.parts),
    ]
    return replace(
        forward,
        has_effect=bool(source.draws(lowered.region)),
        definitions="\n\n".join(text.strip("\n") + "\n" for text in definitions),
        numbers=tuple(dict.fromkeys(numbers)),
        supports_autograd=True,
    )


def forward_region(graph: Graph, nodes: Sequence[fx.Node], lowered: LoweredRegion) -> Region:
    """The region with what its backward keeps as further outputs."""
    planned, region = plan(graph, nodes, lowered), lowered.region
    kept = planned.kept if planned is not None else ()
    return replace(region, outputs=(*region.outputs, *kept))


# --- which operands --------------------------------------------------------------------------


def wanted_operands(graph: Graph, lowered: LoweredRegion) -> list[Operand]:
    """Float operands that something trained flows into, in the launcher's order."""
    pairs = zip(lowered.region.operands, lowered.inputs, strict=True)
    return [
        operand for operand, node in pairs if operand.dtype in derive.FLOATS and graph.carries(node)
    ]


def require_constants(graph: Graph, lowered: LoweredRegion) -> None:
    """Requires that nobody asks for a gradient of the other operands, for which the kernel makes
    none."""
    wanted = wanted_operands(graph, lowered)
    for operand, node in zip(lowered.region.operands, lowered.inputs, strict=True):
        if operand.dtype in derive.FLOATS and operand not in wanted:
            require_constant(graph, node)


def require_constant(graph: Graph, node: fx.Node) -> None:
    """Requires that nobody asks for a gradient of the node, for which the kernel makes none: the
    fast path ends where somebody does."""
    for text in guard.flags(graph, node):
        graph.require(f"not (torch.is_grad_enabled() and {text})", "no gradient is computed for it")


def _is_covered(graph: Graph, nodes: Sequence[fx.Node], lowered: LoweredRegion) -> bool:
    if any(output.dtype not in derive.FLOATS for output in lowered.region.outputs):
        return False
    if not all(graph.carries(node) for node in lowered.outputs):
        return False  # the Function marks every result as trained
    constants = [
        arg for node in nodes for name, arg in argument_nodes(node) if name in _constants(node)
    ]
    return not any(graph.carries(arg) for arg in constants)


def _constants(node: fx.Node) -> tuple[str, ...]:
    """Arguments of a loss with another gradient than the formula's, or none. xlogy has a slope of
    its own at target 0."""
    if op_name(node) == "kl_div":
        return () if argument(node, "log_target") else ("target",)
    if op_name(node) == "binary_cross_entropy":
        return ("target", "weight")
    return WEIGHTS if op_name(node) == "binary_cross_entropy_with_logits" else ()


# --- the backward region ---------------------------------------------------------------------


def _trailing(region: Region, wanted: Sequence[Operand]) -> tuple[int, ...]:
    """A pointwise region whose broadcast operands all lack the last dimension, or all have nothing
    else, is walked by rows: their gradients are then sums over rows or columns, made on the
    way."""
    if region.reduced:
        return region.reduced
    last = len(region.dims) - 1
    narrow = [operand.axes for operand in wanted if len(operand.axes) < len(region.dims)]
    by_row = all(last not in axes for axes in narrow)
    by_column = all(axes == (last,) for axes in narrow) and persistent.fits(region, (last,))
    return (last,) if last > 0 and narrow and (by_row or by_column) else ()


def _seed(region: Region, rows: tuple[int, ...], output: Output, taken: UniqueNames) -> Operand:
    """The gradient that comes in for an output."""
    gone = rows if output.rowwise else ()
    axes = tuple(axis for axis in range(len(region.dims)) if axis not in gone)
    # Attention hands back the gradients of heads in the layout of what they were cut from.
    by_strides = region.reduced and any(operand.inner is not None for operand in region.operands)
    inner = len(region.dims) - 1 if by_strides and not gone else None
    return Operand(
        name=taken.fresh(f"grad_{output.name}"), dtype=output.dtype, axes=axes, inner=inner
    )


def _kept_output(region: Region, value: Value, operand: Operand) -> Output:
    shape = _sizes(region, operand.axes)
    return Output(name=operand.name, value=value, dtype=operand.dtype, shape=shape, rowwise=True)


def _keep_statistics(
    region: Region, found: Mapping[Operand, Value], taken: UniqueNames
) -> tuple[dict[Operand, Value], dict[Value, Operand]]:
    """The gradients with loads of what the forward has reduced, and what these are loads of."""
    if math.prod(region.dims[axis].size for axis in region.reduced) < MIN_KEPT_COLUMNS:
        return dict(found), {}
    statistics, forward = _statistics(region), set(region.values)
    kept: dict[Value, Operand] = {}
    made: dict[Value, Value] = {}

    def visit(value: Value) -> Value:
        if value not in made:
            key = _statistic(value)
            made[value] = (
                keep(statistics.setdefault(key, value)) if is_kept(key) else rebuild(value)
            )
        return made[value]

    def is_kept(key: Any) -> bool:
        return key in statistics or (isinstance(key, tuple) and key[0] in forward)

    def keep(value: Value) -> Value:
        if value not in kept:
            name = taken.fresh(value.hint or f"row_{value.op}")
            kept[value] = Operand(name=name, dtype=value.dtype, axes=region.row_axes)
            made[value] = load(kept[value], rowwise=True)
        return made[value]

    def rebuild(value: Value) -> Value:
        args = tuple(visit(arg) if isinstance(arg, Value) else arg for arg in value.args)
        changed = any(new is not old for new, old in zip(args, value.args, strict=True))
        return replace(value, args=args) if changed else value

    return {operand: visit(value) for operand, value in found.items()}, kept


def _statistics(region: Region) -> dict[Any, Value]:
    """Numbers of a row that come from a reduction over it."""
    reduced: set[Value] = set()
    for value in region.values:
        if value.op in REDUCTIONS or (value.rowwise and reduced.intersection(value.values)):
            reduced.add(value)
    kept = (value for value in reduced if value.op not in PAIRS and value.dtype == "float32")
    return {_statistic(value): value for value in kept}


def _statistic(value: Value) -> Any:
    """What is the same for all values that are the same part of a pair."""
    return value.args if value.op == "part" else value


def _rebase(roots: Sequence[Value], rows: tuple[int, ...]) -> list[Value]:
    """The same values with other reduced dimensions; without any, nothing is rowwise."""
    made: dict[Value, Value] = {}
    for value in topological(roots):
        args = tuple(made[arg] if isinstance(arg, Value) else arg for arg in value.args)
        flags = [arg.rowwise for arg in args if isinstance(arg, Value)]
        rowwise = bool(rows and value.op != "kept") and (
            not set(value.operand.axes) & set(rows) if value.operand is not None else all(flags)
        )
        made[value] = replace(value, args=args, rowwise=rowwise)
    return [made[root] for root in roots]


def by_rows(region: Region) -> bool:
    """Whether a backward is walked row by row: it reduces, or stores less than one number an
    element."""
    narrow = any(o.columns or o.rowwise or o.segments for o in region.outputs)
    return narrow or any(value.op in REDUCTIONS for value in region.values)


def _flatten_region(region: Region) -> Region:
    """Nothing is summed: one pass over all elements, and a row's length is written out."""
    lengths = " * ".join(region.dims[axis].name for axis in region.reduced)
    lengths = f"({lengths})" if len(region.reduced) > 1 else lengths
    roots = _rebase([output.value for output in region.outputs], ())
    counted = _count_lengths(roots, lengths)
    outputs = [replace(o, value=v) for o, v in zip(region.outputs, counted, strict=True)]
    return replace(region, outputs=tuple(outputs), reduced=())


def _count_lengths(roots: Sequence[Value], lengths: str) -> list[Value]:
    made: dict[Value, Value] = {}
    for value in topological(roots):
        args = tuple(made[arg] if isinstance(arg, Value) else arg for arg in value.args)
        hint = lengths if value.op == "count" else value.hint
        made[value] = replace(value, args=args, hint=hint)
    return [made[root] for root in roots]


def _outputs(
    region: Region, rows: tuple[int, ...], found: dict[Operand, Value], taken: UniqueNames
) -> list[tuple[Output | None, Gradient]]:
    """What the kernel stores, and each gradient from it. An incoming gradient is not stored
    again."""
    made: list[tuple[Output | None, Gradient]] = []
    sums_columns = persistent.is_aligned(region, rows) or any(
        _by_columns(region, rows, o) and v.operand is None for o, v in found.items()
    )
    for operand, value in found.items():
        summed = sums_columns and _by_columns(region, rows, operand)
        there = None if summed or _by_segments(region, rows, operand) else value.operand
        if there is not None and _can_be_summed_to(there, operand):
            finish = _sum_text(region, operand, there.name, there.axes, "reshape")
            made.append((None, Gradient(operand=operand, stored=there.name, finish=finish)))
            continue
        name = taken.fresh(f"grad_{operand.name}")
        output = Output(name=name, value=value, dtype=operand.dtype, shape="")
        output = _with_shape(output, operand, region, rows)
        known = next((o for o, _ in made if o is not None and _same(o, output)), output)
        axes = _axes(region, rows, known)
        finish = _sum_text(region, operand, known.name, axes, "view")
        finish += "" if known.dtype == operand.dtype else f".to({operand.name}.dtype)"
        made.append((known, Gradient(operand=operand, stored=known.name, finish=finish)))
    return made


def _can_be_summed_to(there: Operand, operand: Operand) -> bool:
    """Whether an operand's gradient is a tensor that is there already, or a sum of it."""
    return set(operand.axes) <= set(there.axes) and there.dtype == operand.dtype


def _with_shape(output: Output, operand: Operand, region: Region, rows: tuple[int, ...]) -> Output:
    """The operand's gradient as far as the kernel can sum it itself."""
    if len(operand.axes) == len(region.dims):  # empty_like would give a strided one its gaps
        size = "size()" if operand.inner is not None else "shape"
        return replace(output, shape=f"{operand.name}.{size}")
    if rows and not set(operand.axes) & set(rows):
        left = tuple(axis for axis in range(len(region.dims)) if axis not in rows)
        if operand.axes == left:
            return replace(output, shape=f"{operand.name}.shape", rowwise=True)
        return replace(output, dtype="float32", shape=_sizes(region, left), rowwise=True)
    if _by_columns(region, rows, operand):
        shape = f"(n_programs, {', '.join(region.dims[axis].source for axis in rows)})"
        return replace(output, dtype="float32", shape=shape, columns=True)
    if _by_segments(region, rows, operand):
        sizes = [region.dims[axis].source for axis in (*region.row_axes, *rows[:-1])]
        shape = f"({', '.join(sizes)}, n_blocks)"
        return replace(output, dtype="float32", shape=shape, segments=True)
    every = tuple(range(len(region.dims)))
    return replace(output, name=f"{output.name}_all", shape=_sizes(region, every))


def _by_columns(region: Region, rows: tuple[int, ...], operand: Operand) -> bool:
    return operand.axes == rows and persistent.fits(region, rows)


def _by_segments(region: Region, rows: tuple[int, ...], operand: Operand) -> bool:
    return (
        rows == region.reduced
        and segments.fits(region)
        and segments.is_segmentwise(region, operand.axes)
    )


def _same(one: Output, other: Output) -> bool:
    kinds = [(o.value, o.dtype, o.rowwise, o.columns, o.segments) for o in (one, other)]
    return kinds[0] == kinds[1]


def _axes(region: Region, rows: tuple[int, ...], output: Output) -> tuple[int, ...]:
    """Dimensions of the region that the output has; those of a row's sums stand behind the
    programs, those of a segment's before the blocks."""
    if output.columns:
        return (-1, *rows)
    if output.segments:
        return (*region.row_axes, *rows[:-1], -1)
    return tuple(axis for axis in range(len(region.dims)) if not output.rowwise or axis not in rows)


def _sizes(region: Region, axes: Sequence[int]) -> str:
    parts = [region.dims[axis].source for axis in axes]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})" if parts else "()"


def _sum_text(region: Region, operand: Operand, text: str, axes: tuple[int, ...], view: str) -> str:
    """A tensor over ``axes``, summed over those along which the operand is broadcast, in its
    shape."""
    gone = tuple(i for i, axis in enumerate(axes) if axis not in operand.axes)
    shape = f".{view}({operand.name}.shape)" if view == "reshape" else f".view_as({operand.name})"
    if not gone:
        return f"{text}{shape}" if view == "reshape" else text
    if len(gone) == len(axes):
        return f"{text}.sum(){shape}"
    if -1 not in axes:
        text += f".{view}{_sizes(region, axes)}"
    return f"{text}.sum({gone[0] if len(gone) == 1 else gone}){shape}"


def _needed_operands(region: Region, operands: Sequence[Operand]) -> tuple[Operand, ...]:
    """Operands whose values or sizes the backward reads."""
    loaded = {value.operand for value in region.values}
    texts = [*(dim.source for dim in region.dims), *(output.shape for output in region.outputs)]
    return tuple(
        o for o in operands if o in loaded or any(guard.mentions(text, o.name) for text in texts)
    )


# --- source ----------------------------------------------------------------------------------


def reference_source(
    nodes: Sequence[fx.Node], lowered: LoweredRegion, name: str, parts: Sequence[SplitTensor] = ()
) -> str:
    """The group as plain PyTorch: a function of what a program calls the launcher with."""
    pairs = zip(lowered.inputs, lowered.region.operands, strict=True)
    names = {node: operand.name for node, operand in pairs}
    lines = [f"def {name}({', '.join(split.names(lowered, parts))}):"]
    lines.append('    """The same in PyTorch, for gradients of gradients."""')
    lines += [f"    {one.statement()}" for one in parts]
    for node, view in lowered.views.items():
        lines.append(f"    {names[node]} = {names[node]}.permute({inverse(view)})")
    lines += statements(nodes, names)[0]
    turned = f".permute({lowered.order})" if lowered.order else ""
    results = ", ".join(f"{names[node]}{turned}" for node in lowered.outputs)
    return "\n".join([*lines, f"    return {results}"])


def statements(nodes: Sequence[fx.Node], names: dict[fx.Node, str]) -> tuple[list[str], str]:
    """One line for each node, and the name of the last; ``names`` has the inputs and gets the
    results."""
    taken, printer, lines, last = (
        UniqueNames(names.values()),
        Printer("torch.nn.functional", None),
        list[str](),
        "",
    )
    for node in nodes:
        base = broadcast_source(node)
        if base is not None and node.args[0] not in names:  # other parts are read elsewhere
            names[node] = names[base]
            continue
        text, _ = printer.call(node, lambda item, level: names[item])
        names[node] = last = taken.fresh(node.name)
        lines.append(f"    {last} = {text}")
    return lines, last


def _function(planned: BackwardPlan, lowered: LoweredRegion, summary: str) -> str:
    name = lowered.region.name
    given, drawn = split.names(lowered, planned.parts), source.draws(lowered.region)
    arguments, eager = ", ".join(given), f"{name}_eager"
    divided = [f"        {one.statement()}" for one in planned.parts]
    if drawn:
        eager = f"draw_again(ctx.drawn, {eager})"
    incoming = ", ".join(seed.name for seed in planned.seeds)
    saved = arguments if len(given) > 1 else f"({arguments},)"
    kept = ", ".join(output.name for output in planned.kept)
    kept = f"({kept},)" if len(planned.kept) == 1 else kept
    inputs = "inputs and what was reduced over each row" if kept else "inputs"
    lines = [
        f"class _{source.title(name)}(torch.autograd.Function):",
        f'    """{summary}',
        "",
        f"    Only the {inputs} are kept for the backward, which computes what lies between again.",
        '    """',
        "",
        "    @staticmethod",
        f"    def forward(ctx, {', '.join([*given, *drawn])}):",
        f"        ctx.save_for_backward({arguments})",
        *(f"        ctx.{state} = {state}" for state in drawn),
        *divided,
        *_forward_lines(planned, lowered),
        "",
        "    @staticmethod",
        f"    def backward(ctx, {incoming}):",
        "        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of "
        "its own",
        f"            return differentiate_again(ctx, {eager}, {incoming})",
        f"        {saved} = ctx.saved_tensors",
        *([f"        {kept} = ctx.kept"] if kept else []),
        *divided,
        *_result_texts(planned, lowered),
        "",
    ]
    return "\n".join([AGAIN, "", *lines])


def _forward_lines(planned: BackwardPlan, lowered: LoweredRegion) -> list[str]:
    """The launch of the forward, and what is kept of it."""
    region = lowered.region
    call, results = f"{region.name}_forward({source.signature(region)})", source.result(region)
    if not planned.kept:
        return [f"        return {call}"]
    return [
        f"        {results}, *ctx.kept = {call}",
        f"        return {results}",
    ]


def _public(nodes: Sequence[fx.Node], lowered: LoweredRegion, parts: Sequence[SplitTensor]) -> str:
    """The function that a program calls."""
    name, arguments = lowered.region.name, ", ".join(split.names(lowered, parts))
    call = f"_{source.title(name)}.apply"
    if source.draws(lowered.region):
        return draws.public_source(nodes, lowered, call)
    return f"def {name}({arguments}):\n    return {call}({arguments})\n"


def _result_texts(planned: BackwardPlan, lowered: LoweredRegion) -> list[str]:
    region, stored = planned.region, source.result(planned.region)
    called = [operand.name for operand in region.operands]
    called += [output.name for output in split.given_outputs(region)]
    called += [f"ctx.{state}" for state in source.draws(region)]
    by_name = {g.operand.name: g.finish for g in planned.gradients}
    by_name |= {one.name: f"grad_{one.name}" for one in planned.parts}
    results = [by_name.get(name, "None") for name in split.names(lowered, planned.parts)]
    results += ["None" for _ in source.draws(lowered.region)]
    divided = [line for one in planned.parts for line in one.gradient_lines()]
    if not region.outputs:
        return return_lines(results)
    if len(region.outputs) == 1 and results == [region.outputs[0].name]:
        return [source.wrap_items(f"return {region.name}(", called, ")", indent=" " * 8)]
    head = f"{stored} = " if stored else ""
    return [
        *(f"        {line}" for line in divided),
        source.wrap_items(f"{head}{region.name}(", called, ")", indent=" " * 8),
        *return_lines(results),
    ]


def return_lines(results: list[str]) -> list[str]:
    """The return statement of a backward."""
    flat = f"        return {', '.join(results)}"
    if len(flat) <= source.MAX_LINE:
        return [flat]
    return ["        return (", *(f"            {text}," for text in results), "        )"]


AGAIN = '''\
def differentiate_again(ctx, eager, *grads):
    """Gradients through PyTorch operations, so that they can be differentiated once more."""
    inputs = [saved.view_as(saved) for saved in ctx.saved_tensors]  # each use gets a gradient of its own
    asked = [item for item, needed in zip(inputs, ctx.needs_input_grad) if needed]
    outputs = eager(*inputs)
    found = iter(torch.autograd.grad(outputs, asked, grads, create_graph=True, allow_unused=True))
    return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)
'''


def _without_known(text: str, known: str) -> str:
    """Helpers that the forward defines are not defined twice."""
    blocks = re.split(r"^(?=@triton\.jit)", text, flags=re.MULTILINE)
    return "".join(block for block in blocks if block.strip() and block.strip() not in known)
