"""The backward of batch norm in train mode and its tail: two sums by channel, then all gradients
at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen.backward import derive
from kernel_lsp.rewrite.codegen.backward import kernels as backward
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import (
    Operand,
    Output,
    Region,
    Value,
    apply,
    load,
    topological,
)
from kernel_lsp.rewrite.codegen.normalization import batch_norm_channels, batch_norm_rows
from kernel_lsp.rewrite.codegen.normalization.batch_norm_region import BatchNormRegion
from kernel_lsp.rewrite.codegen.reduction import channels
from kernel_lsp.rewrite.graph import Graph, argument


def is_trainable(graph: Graph, parts: BatchNormRegion) -> bool:
    """Whether the gradients of the norm and its tail can be generated too."""
    return not graph.origin.hides_gradients and _plan_backward(graph, parts) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    sums: tuple[Value, Value]
    region: Region
    finish: dict[Operand, str]
    seeds: tuple[Operand, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Derived:
    """What the tail alone says about gradients."""

    grads: dict[Operand, Value]
    at_norm: Value
    """The gradient at the norm's result."""
    beside: tuple[Operand, ...]
    """Operands with a gradient, without the norm's own three."""
    seeds: tuple[Operand, ...]


def _plan_backward(graph: Graph, parts: BatchNormRegion) -> Planned | None:
    """The gradient at the norm's result from the tail, and everything else from its two sums by
    channel."""
    derived = _derive_tail(graph, parts)
    return None if derived is None else _with_sums(parts, derived)


def _derive_tail(graph: Graph, parts: BatchNormRegion) -> _Derived | None:
    """None: a tail that has no derivative here, or one of another shape than the result's."""
    region = parts.lowered.region
    if any(output.dtype not in derive.FLOATS for output in region.outputs):
        return None
    beside = _operands_beside(graph, parts)
    if beside is None:
        return None
    cut = load(Operand(name="normalized", dtype="float32", axes=parts.x.axes))
    assert cut.operand is not None
    roots = _substitute([o.value for o in region.outputs], {parts.affine: cut})
    incoming = _incoming(parts)
    seeds: dict[Value, Value] = {}
    for seed, root in zip(incoming, roots, strict=True):
        seeds[root] = derive.total(seeds.get(root), load(seed))
    try:
        tape = derive.tape(roots, seeds)
    except derive.Underivable:
        return None
    if any(operand not in tape for operand in (cut.operand, *beside)):
        return None
    back = {cut: parts.affine}
    grads = {operand: _substitute([value], back)[0] for operand, value in tape.items()}
    return _Derived(grads=grads, at_norm=grads[cut.operand], beside=beside, seeds=incoming)


def _incoming(parts: BatchNormRegion) -> tuple[Operand, ...]:
    """The gradient of each output, as the backward gets it."""
    region = parts.lowered.region
    names = UniqueNames([o.name for o in region.operands] + ["sum_grad", "sum_grad_normed"])
    return tuple(
        Operand(name=names.fresh(f"grad_{o.name}"), dtype=o.dtype, axes=parts.x.axes)
        for o in region.outputs
    )


def _affine_operands(parts: BatchNormRegion) -> set[Operand]:
    own = (argument(parts.norm, "weight"), argument(parts.norm, "bias"))
    return {operand for operand, node in parts.given if node in own}


def _operands_beside(graph: Graph, parts: BatchNormRegion) -> tuple[Operand, ...] | None:
    """Operands of the tail that want a gradient; None: nothing wants one, or one has fewer
    dimensions than the result."""
    wanted = [o for o, node in parts.given if o.dtype in derive.FLOATS and graph.carries(node)]
    affine = _affine_operands(parts)
    beside = tuple(o for o in wanted if o not in affine and o is not parts.x)
    if not wanted or any(len(o.axes) != len(parts.lowered.region.dims) for o in beside):
        return None
    return beside


def _with_sums(parts: BatchNormRegion, derived: _Derived) -> Planned:
    region, grad = parts.lowered.region, derived.at_norm
    grad_x = derive.total(derived.grads.get(parts.x), _through_statistics(parts, grad))
    outputs, finish = [], dict[Operand, str]()
    for operand, value in [(parts.x, grad_x), *((o, derived.grads[o]) for o in derived.beside)]:
        if value.operand is not None and value.operand.dtype == operand.dtype:
            finish[operand] = f"{value.operand.name}.reshape({operand.name}.shape)"
            continue
        name = f"grad_{operand.name}"
        outputs.append(
            Output(name=name, value=value, dtype=operand.dtype, shape=f"{operand.name}.shape")
        )
        finish[operand] = name
    for operand in _affine_operands(parts):
        total = "sum_grad_normed" if operand.name == _weight(parts) else "sum_grad"
        finish[operand] = f"{total}.to({operand.name}.dtype)"
    product = apply("mul", grad, parts.normed, hint="grad_times_normed")
    made = Region(name="", dims=region.dims, outputs=tuple(outputs))
    return Planned(sums=(grad, product), region=made, finish=finish, seeds=derived.seeds)


def _through_statistics(parts: BatchNormRegion, grad: Value) -> Value:
    """The gradient of the norm's input: its own, without what it adds to mean and variance."""
    totals = [
        Operand(name=name, dtype="float32", axes=parts.mean.axes)
        for name in ("sum_grad", "sum_grad_normed")
    ]
    dims = parts.lowered.region.dims
    lengths = " * ".join(d.name for i, d in enumerate(dims) if i != parts.layout.channel)
    count = Value(op="count", hint=f"({lengths})" if "*" in lengths else lengths)
    along = apply("mul", parts.normed, load(totals[1]), hint="along_normed")
    shared = apply("add", load(totals[0]), along, hint="grad_of_statistics")
    share = apply("div", 1.0, count, hint="share")  # one division for all elements
    inner = apply("sub", grad, apply("mul", shared, share, hint="mean_grad"), hint="centered_grad")
    return apply("mul", inner, _scale(parts), hint=f"grad_{parts.x.name}")


def _scale(parts: BatchNormRegion) -> Value:
    """The reciprocal deviation, times the weight where the norm has one."""
    for value in topological([parts.affine]):
        if value.operand is not None and value.operand.name == _weight(parts):
            return apply("mul", load(parts.rstd), value, hint="scale")
    return load(parts.rstd)


def _weight(parts: BatchNormRegion) -> str:
    weight = argument(parts.norm, "weight")
    return next(
        (operand.name for operand, node in parts.given if weight is not None and node is weight), ""
    )


def _substitute(roots: Sequence[Value], new: dict[Value, Value]) -> list[Value]:
    made = dict(new)
    for value in topological(roots):
        if value not in made:
            args = tuple(
                made.get(arg, arg) if isinstance(arg, Value) else arg for arg in value.args
            )
            made[value] = value if args == value.args else replace(value, args=args)
    return [made[root] for root in roots]


def in_passes(graph: Graph, parts: BatchNormRegion, name: str) -> list[str]:
    """Source of kernels that walk the whole tensor, for the sums and for all gradients; of eager's
    twin, and of the Function that has them."""
    planned = _planned(graph, parts, name)
    region, needed = planned.region, _operands(planned.sums)
    blocks = {"BLOCK_SIZE": 1024, "num_warps": 4}
    arguments = ", ".join(operand.name for operand in parts.lowered.region.operands)
    made = f"{name}_apply({arguments})"
    return [
        channels.sums(parts.layout, f"{name}_sums", planned.sums, needed),
        *batch_norm_rows.pieces(parts.layout, region, blocks, f"Gradients of {name}."),
        _eager(parts, name),
        _function(parts, planned, name, _call(name, needed, region), made),
    ]


def by_channel(
    graph: Graph, parts: BatchNormRegion, name: str, choice: Mapping[str, Any]
) -> list[str]:
    """Source of a kernel of which each program has a channel, of eager's twin, and of the Function
    that has them; its forward is given the outputs, in a list."""
    planned = _planned(graph, parts, name)
    kernel, given = batch_norm_channels.backward(parts, planned.region, planned.sums, choice)
    call = _call_of_channels(planned.region, given)
    made = "tuple(made)" if len(parts.lowered.region.outputs) > 1 else "made[0]"
    return [kernel, _eager(parts, name), _function(parts, planned, name, call, made, ["made"])]


def _planned(graph: Graph, parts: BatchNormRegion, name: str) -> Planned:
    planned = _plan_backward(graph, parts)
    if planned is None:
        raise RewriteError(f"{name} has no backward", "keep the original path while training")
    return replace(planned, region=replace(planned.region, name=f"{name}_backward"))


PAD = " " * 8


def _call(name: str, needed: Sequence[Operand], region: Region) -> list[str]:
    """The backward's lines that launch the sums and what needs them."""
    stored = ", ".join(output.name for output in region.outputs)
    return [
        source.wrap_items(
            f"sum_grad, sum_grad_normed = {name}_sums(", [o.name for o in needed], ")", PAD
        ),
        source.wrap_items(
            f"{stored} = {region.name}(", [o.name for o in region.operands], ")", PAD
        ),
    ]


def _call_of_channels(region: Region, given: Sequence[Operand]) -> list[str]:
    stored = ", ".join([*(output.name for output in region.outputs), "sums"])
    return [
        source.wrap_items(f"{stored} = {region.name}(", [o.name for o in given], ")", PAD),
        f"{PAD}sum_grad, sum_grad_normed = sums",
    ]


def _operands(roots: Sequence[Value]) -> list[Operand]:
    """What the values read, the tensor that has all dimensions first: sizes come from it."""
    found = [value.operand for value in topological(roots) if value.operand is not None]
    return sorted(dict.fromkeys(found), key=lambda operand: -len(operand.axes))


def _eager(parts: BatchNormRegion, name: str) -> str:
    """Plain PyTorch on batch statistics, running ones left alone, for gradients of gradients."""
    norm = parts.norm
    names: dict[Any, str] = {node: operand.name for operand, node in parts.given}
    weight, bias = (names.get(argument(norm, key), "None") for key in ("weight", "bias"))
    given = ", ".join(operand.name for operand in parts.lowered.region.operands)
    x, eps = names[norm.args[0]], argument(norm, "eps")
    lines = [
        f"def {name}_eager({given}):",
        '    """The same in PyTorch, for gradients of gradients; the statistics are made again."""',
        "    normalized = torch.nn.functional.batch_norm(",
        f"        {x}, None, None, {weight}, {bias}, training=True, eps={eps!r}",
        "    )",
    ]
    names[norm] = "normalized"
    text, last = backward.statements(parts.nodes[1:], names)
    outputs = [names[n] for n in parts.nodes if n.name in {o.name for o in parts.lowered.outputs}]
    return "\n".join([*lines, *text, f"    return {', '.join(outputs or [last or 'normalized'])}"])


def _function(
    parts: BatchNormRegion,
    planned: Planned,
    name: str,
    call: Sequence[str],
    made: str,
    more: Sequence[str] = (),
) -> str:
    """Source of the Function. ``made``: what its forward returns; ``more``: what that takes besides
    the operands, without gradients."""
    arguments = ", ".join(operand.name for operand in parts.lowered.region.operands)
    incoming = ", ".join(seed.name for seed in planned.seeds)
    results = [planned.finish.get(operand, "None") for operand in parts.lowered.region.operands]
    lines = [
        f"class _{source.title(name)}(torch.autograd.Function):",
        f'    """{name.replace("_", " ").capitalize()}, given the statistics of the batch.',
        "",
        "    Inputs and statistics are kept for the backward. It takes two passes: sums by "
        "channel of the",
        "    gradient and of the gradient times the normalized input, then all gradients at once.",
        '    """',
        "",
        "    @staticmethod",
        f"    def forward(ctx, {', '.join([arguments, *more])}):",
        f"        ctx.save_for_backward({arguments})",
        f"        return {made}",
        "",
        "    @staticmethod",
        f"    def backward(ctx, {incoming}):",
        "        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of "
        "its own",
        f"            return differentiate_again(ctx, {name}_eager, {incoming})",
        f"        {arguments} = ctx.saved_tensors",
        *call,
        *backward.return_lines([*results, *("None" for _ in more)]),
        "",
    ]
    return "\n".join([backward.AGAIN, "", *lines])
