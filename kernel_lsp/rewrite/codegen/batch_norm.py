"""Batch norm in train mode with the pointwise work behind it: one pass for statistics, one for all the rest.

Eager reads the input for its statistics, reads it again to normalize, writes, and each activation, residual
or scale behind it moves the tensor once more. Here one kernel leaves mean and 1 / sqrt(var + eps) by channel
and brings the running statistics up to date as eager does (momentum, unbiased variance), and one pass
normalizes and does the rest. The backward is two passes: two sums by channel, then all gradients.
Covered: contiguous floats [N, C] and [N, C, ...], with weight and bias or without both. Not covered:
statistics across devices, operands of the tail that are broadcast and trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen import backward, channels, cost, derive, flat, launching, source
from kernel_lsp.rewrite.codegen.body import Names
from kernel_lsp.rewrite.codegen.grow import grow
from kernel_lsp.rewrite.codegen.ir import Operand, Output, Region, Value, apply, load, topological
from kernel_lsp.rewrite.codegen.lower import Lowered, is_identity, lower
from kernel_lsp.rewrite.codegen.pointwise import FLOATS, Unsupported, op_name
from kernel_lsp.rewrite.codegen.space import Shape
from kernel_lsp.rewrite.codegen.wording import worded
from kernel_lsp.rewrite.generated import Generated, Match
from kernel_lsp.rewrite.graph import Graph, argument, is_op

aten = torch.ops.aten
PARAMETERS: dict[str, list[Any]] = {"BLOCK_SIZE": [1024, 2048], "num_warps": [4, 8]}
MIN_SAVING = 0.1
CORE = ("centered", "normed", "scaled", "affine", "cast")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """A batch norm and its tail as one pointwise region over x, mean, rstd and the rest."""

    norm: fx.Node
    nodes: tuple[fx.Node, ...]
    """Of the graph: the norm, then its tail."""
    lowered: Lowered
    """Inputs are nodes of the graph; None stands for the statistics."""
    inputs: tuple[fx.Node | None, ...]
    x: Operand
    mean: Operand
    rstd: Operand
    normed: Value
    affine: Value
    """``normed`` with weight and bias."""
    layout: channels.Layout

    @property
    def given(self) -> list[tuple[Operand, fx.Node]]:
        """What the launcher takes besides the running statistics."""
        pairs = zip(self.lowered.region.operands, self.inputs, strict=True)
        return [(operand, node) for operand, node in pairs if node is not None]


def matches(graph: Graph) -> list[Match]:
    found = []
    for node in graph.nodes:
        parts = parts_of(graph, node) if is_op(node, aten.batch_norm) else None
        if parts is None or (graph.gradients and not _is_trainable(graph, parts)):
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
                data={"norm": node.name},
            )
        )
    return found


def parts_of(graph: Graph, norm: fx.Node) -> Parts | None:
    """None when the norm is not covered; the tail is what the pointwise generator can take along."""
    if not _covered(graph, norm):
        return None
    scratch = graph.copy()
    made = _expanded(scratch, scratch.named(norm.name))
    space = Shape(sizes=tuple(int(n) for n in norm.meta["val"].shape))
    nodes = grow(scratch, made["out"], space)
    if made["out"] not in nodes:
        return None
    core = {node for key, node in made.items() if key in CORE}
    tail = [node for node in nodes if node not in core]
    nodes = scratch.ordered({*core, *_behind(tail, made["out"])})
    try:
        lowered = worded(scratch, lower(scratch, nodes, space, _name(nodes, core)))
    except Unsupported:
        return None
    return _assembled(graph, norm, made, nodes, core, lowered)


def _covered(graph: Graph, norm: fx.Node) -> bool:
    value, running = norm.args[0].meta["val"], argument(norm, "running_mean")
    affine = {argument(norm, "weight") is None, argument(norm, "bias") is None}
    shared = running is not None and (
        len(running.users) != 1 or len(argument(norm, "running_var").users) != 1 or running not in graph.state
    )
    return (
        argument(norm, "training") is True
        and isinstance(argument(norm, "momentum"), float)
        and value.dtype in FLOATS
        and value.dim() >= 2
        and value.shape[1] > 1
        and value.shape[0] > 1
        and value.is_contiguous()
        and len(affine) == 1
        and not shared
    )


def _expanded(scratch: Graph, norm: fx.Node) -> dict[str, fx.Node]:
    """The norm as pointwise operations in front of it; its statistics are placeholders of the right kind."""
    x, value = norm.args[0], norm.meta["val"]
    dims = [axis for axis in range(value.dim()) if axis != 1]
    wide = {"dtype": torch.float32}
    made = {}
    for name in ("mean", "rstd"):
        made[name] = scratch.call(aten.mean.dim, (x, dims, True), wide, before=norm, name=name)
    made["centered"] = scratch.call(aten.sub.Tensor, (x, made["mean"]), before=norm)
    made["out"] = made["normed"] = scratch.call(
        aten.mul.Tensor, (made["centered"], made["rstd"]), before=norm, name="normed"
    )
    shape = [1, value.shape[1], *[1] * (value.dim() - 2)]
    if argument(norm, "weight") is not None:
        for name in ("weight", "bias"):
            made[name] = scratch.call(aten.view.default, (argument(norm, name), shape), before=norm)
        made["scaled"] = scratch.call(aten.mul.Tensor, (made["normed"], made["weight"]), before=norm)
        made["out"] = scratch.call(aten.add.Tensor, (made["scaled"], made["bias"]), before=norm)
    made["affine"] = made["out"]
    if value.dtype != made["out"].meta["val"].dtype:
        made["out"] = made["cast"] = scratch.call(aten.to.dtype, (made["out"], value.dtype), before=norm)
    norm.replace_all_uses_with(made["out"])
    scratch.fx.erase_node(norm)
    return made


def _behind(tail: Sequence[fx.Node], out: fx.Node) -> set[fx.Node]:
    """Tail nodes that depend on the norm; what merely stands beside it stays where it is."""
    found = {out}
    for node in tail:
        if set(node.all_input_nodes) & found:
            found.add(node)
    return found - {out}


def _assembled(
    graph: Graph,
    norm: fx.Node,
    made: dict[str, fx.Node],
    nodes: Sequence[fx.Node],
    core: set[fx.Node],
    lowered: Lowered,
) -> Parts | None:
    by_name = {node.name: node for node in graph.fx.nodes}
    statistics = {made["mean"]: "mean", made["rstd"]: "rstd"}
    views = {made[key]: argument(norm, key) for key in ("weight", "bias") if key in made}
    pairs = list(zip(lowered.region.operands, lowered.inputs, strict=True))
    named = {statistics[node]: operand for operand, node in pairs if node in statistics}
    x = next((o for o, node in pairs if node.name == norm.args[0].name), None)
    if x is None or len(named) != 2 or len(named["mean"].axes) != 1:
        return None
    channel = named["mean"].axes[0]
    if channel != 1 or len(lowered.region.dims) not in (2, 3) or len(x.axes) != len(lowered.region.dims):
        return None
    inputs = tuple(
        None if node in statistics else views.get(node, by_name.get(node.name)) for _, node in pairs
    )
    tail = tuple(by_name[node.name] for node in nodes if node not in core)
    return Parts(
        norm=norm,
        nodes=(norm, *tail),
        lowered=lowered,
        inputs=inputs,
        x=x,
        mean=named["mean"],
        rstd=named["rstd"],
        normed=lowered.values[made["normed"]],
        affine=lowered.values[made["affine"]],
        layout=channels.Layout(region=lowered.region, channel=channel),
    )


def _name(nodes: Sequence[fx.Node], core: set[fx.Node]) -> str:
    words = [op_name(node) for node in nodes if node not in core and not is_identity(node)]
    return "_".join(["batch", "norm", *list(dict.fromkeys(words))[:3]])


def _benefit(graph: Graph, parts: Parts) -> float:
    """Eager's batch norm reads twice and writes once; its backward reads twice two tensors and writes one."""
    moved, rate = cost.bytes_of(parts.norm), cost.rates(graph)
    eager_s = 3.0 * moved / rate.bytes_per_s + 2 * rate.overhead_s
    eager_s += sum(cost.eager_seconds(graph, node) for node in parts.nodes[1:])
    region = parts.lowered.region
    ours = cost.region_seconds(graph, region, 3, 1.0) + moved / rate.bytes_per_s
    if graph.gradients:
        eager_s += 5.0 * moved / rate.bytes_per_s
        eager_s += sum(cost.trained_seconds(graph, n) - cost.eager_seconds(graph, n) for n in parts.nodes[1:])
        ours += 5.0 * moved / rate.bytes_per_s + 3 * cost.TRITON_OVERHEAD_S + cost.AUTOGRAD_OVERHEAD_S
    if ours > eager_s * (1.0 - MIN_SAVING):
        return 0.0
    each = cost.trained_seconds if graph.gradients else cost.eager_seconds
    return round((eager_s - ours) / max(sum(each(graph, n) for n in graph.nodes), eager_s), 4)


# --- source ----------------------------------------------------------------------------------


def rewrite(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
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
    kernel = _generated(graph, parts, choice)
    for old, new in zip(outputs, launching.results(graph, kernel, arguments, outputs, before), strict=True):
        old.replace_all_uses_with(new)
    graph.drop_unused()
    if norm in graph.nodes:  # with running statistics it has an effect, and the kernel now has it
        graph.fx.erase_node(norm)
    graph.caveat("batch norm and what follows stay in float32 until the result is stored")


def _running(norm: fx.Node) -> list[fx.Node]:
    found = [argument(norm, "running_mean"), argument(norm, "running_var")]
    return [node for node in found if node is not None]


def _generated(graph: Graph, parts: Parts, choice: dict[str, Any]) -> Generated:
    name = launching.unique_name(graph, f"fused_{parts.lowered.region.name}")
    region = replace(parts.lowered.region, name=f"{name}_apply")
    norm, running = parts.norm, _running(parts.norm)
    summary = f"{name.replace('_', ' ').capitalize()} in one pass over given statistics."
    forward = flat.emit(region, choice, summary)
    momentum = float(argument(norm, "momentum")) if running else None
    statistics = channels.statistics(
        parts.layout, f"{name}_statistics", parts.x, float(argument(norm, "eps")), momentum
    )
    pieces = [statistics, forward.definitions]
    if graph.gradients:
        pieces += _training(graph, parts, name)
    pieces.append(_launcher(graph, parts, name))
    return replace(
        forward,
        name=name,
        definitions="\n\n".join(piece.strip("\n") + "\n" for piece in pieces),
        summary=f"{name.replace('_', ' ')} in two passes",
        supports_autograd=graph.gradients,
        has_effect=bool(running),
    )


def _launcher(graph: Graph, parts: Parts, name: str) -> str:
    given = [operand.name for operand, _ in parts.given]
    running = ["running_mean", "running_var"] if _running(parts.norm) else []
    every = ", ".join(o.name for o in parts.lowered.region.operands)
    last = f"_{source.title(name)}.apply({every})" if graph.gradients else f"{name}_apply({every})"
    x = f"{parts.x.name}.detach()" if graph.gradients else parts.x.name
    return "\n".join(
        [
            f"def {name}({', '.join([*given, *running])}):",
            f'    """{name.replace("_", " ").capitalize()}: batch statistics, then one pass."""',
            f"    mean, rstd = {name}_statistics({', '.join([x, *running])})",
            f"    return {last}",
            "",
        ]
    ).replace("mean, rstd =", f"{parts.mean.name}, {parts.rstd.name} =")


# --- training --------------------------------------------------------------------------------


def _is_trainable(graph: Graph, parts: Parts) -> bool:
    return not graph.origin.hides_gradients and _planned(graph, parts) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    sums: tuple[Value, Value]
    region: Region
    finish: dict[Operand, str]
    seeds: tuple[Operand, ...]


def _planned(graph: Graph, parts: Parts) -> Planned | None:
    """The gradient at the norm's result from the tail, and everything else from its two sums by channel."""
    region = parts.lowered.region
    wanted = [
        operand for operand, node in parts.given if operand.dtype in derive.FLOATS and graph.carries(node)
    ]
    names = Names([o.name for o in region.operands] + ["sum_grad", "sum_grad_normed"])
    cut = load(Operand(name="normalized", dtype="float32", axes=parts.x.axes))
    roots = _substituted([o.value for o in region.outputs], {parts.affine: cut})
    seeds: dict[Value, Value] = {}
    incoming = []
    for output, root in zip(region.outputs, roots, strict=True):
        if output.dtype not in derive.FLOATS:
            return None
        seed = Operand(name=names.fresh(f"grad_{output.name}"), dtype=output.dtype, axes=parts.x.axes)
        incoming.append(seed)
        seeds[root] = derive.total(seeds.get(root), load(seed))
    affine = {
        o for o, node in parts.given if node in (argument(parts.norm, "weight"), argument(parts.norm, "bias"))
    }
    assert cut.operand is not None
    beside = [o for o in wanted if o not in affine and o is not parts.x]
    if any(len(o.axes) != len(region.dims) for o in beside) or not wanted:
        return None
    try:
        tape = derive.tape(roots, seeds)
    except derive.Underivable:
        return None
    if cut.operand not in tape or any(operand not in tape for operand in beside):
        return None
    back = {cut: parts.affine}
    found = {operand: _substituted([value], back)[0] for operand, value in tape.items()}
    return _with_sums(parts, found, found[cut.operand], affine, beside, tuple(incoming))


def _with_sums(
    parts: Parts,
    found: dict[Operand, Value],
    grad: Value,
    affine: set[Operand],
    beside: list[Operand],
    seeds: tuple[Operand, ...],
) -> Planned:
    region = parts.lowered.region
    product = apply("mul", grad, parts.normed, hint="grad_times_normed")
    totals = [
        Operand(name=name, dtype="float32", axes=parts.mean.axes) for name in ("sum_grad", "sum_grad_normed")
    ]
    lengths = " * ".join(d.name for i, d in enumerate(region.dims) if i != parts.layout.channel)
    count = Value(op="count", hint=f"({lengths})" if "*" in lengths else lengths)
    along = apply("mul", parts.normed, load(totals[1]), hint="along_normed")
    shared = apply("add", load(totals[0]), along, hint="grad_of_statistics")
    inner = apply("sub", grad, apply("div", shared, count, hint="mean_grad"), hint="centered_grad")
    scale = load(parts.rstd)
    weight = next(
        (
            v
            for v in topological([parts.affine])
            if v.operand is not None and v.operand.name == _weight(parts)
        ),
        None,
    )
    scale = apply("mul", scale, weight, hint="scale") if weight is not None else scale
    grad_x = derive.total(found.get(parts.x), apply("mul", inner, scale, hint=f"grad_{parts.x.name}"))
    outputs, finish = [], dict[Operand, str]()
    for operand, value in [(parts.x, grad_x), *((o, found[o]) for o in beside)]:
        if value.operand is not None and value.operand.dtype == operand.dtype:
            finish[operand] = f"{value.operand.name}.reshape({operand.name}.shape)"
            continue
        name = f"grad_{operand.name}"
        outputs.append(Output(name=name, value=value, dtype=operand.dtype, shape=f"{operand.name}.shape"))
        finish[operand] = name
    for operand in affine:
        total = "sum_grad_normed" if operand.name == _weight(parts) else "sum_grad"
        finish[operand] = f"{total}.to({operand.name}.dtype)"
    made = Region(name="", dims=region.dims, outputs=tuple(outputs))
    return Planned(sums=(grad, product), region=made, finish=finish, seeds=seeds)


def _weight(parts: Parts) -> str:
    weight = argument(parts.norm, "weight")
    return next((operand.name for operand, node in parts.given if weight is not None and node is weight), "")


def _substituted(roots: Sequence[Value], new: dict[Value, Value]) -> list[Value]:
    made = dict(new)
    for value in topological(roots):
        if value not in made:
            args = tuple(made.get(arg, arg) if isinstance(arg, Value) else arg for arg in value.args)
            made[value] = value if args == value.args else replace(value, args=args)
    return [made[root] for root in roots]


def _training(graph: Graph, parts: Parts, name: str) -> list[str]:
    planned = _planned(graph, parts)
    if planned is None:
        raise RewriteError(f"{name} has no backward", "keep the original path while training")
    needed = _operands(planned.sums)
    sums = channels.sums(parts.layout, f"{name}_sums", planned.sums, needed)
    region = replace(planned.region, name=f"{name}_backward")
    last = flat.emit(region, {"BLOCK_SIZE": 1024, "num_warps": 4}, f"Gradients of {name}.")
    return [sums, last.definitions, _eager(parts, name), _function(parts, planned, name, needed, region)]


def _operands(roots: Sequence[Value]) -> list[Operand]:
    """What the values read, the tensor that has all dimensions first: sizes come from it."""
    found = [value.operand for value in topological(roots) if value.operand is not None]
    return sorted(dict.fromkeys(found), key=lambda operand: -len(operand.axes))


def _eager(parts: Parts, name: str) -> str:
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


def _function(parts: Parts, planned: Planned, name: str, needed: list[Operand], region: Region) -> str:
    arguments = ", ".join(operand.name for operand in parts.lowered.region.operands)
    incoming = ", ".join(seed.name for seed in planned.seeds)
    pad = " " * 8
    stored = ", ".join(output.name for output in region.outputs)
    results = [planned.finish.get(operand, "None") for operand in parts.lowered.region.operands]
    lines = [
        f"class _{source.title(name)}(torch.autograd.Function):",
        f'    """{name.replace("_", " ").capitalize()}, given the statistics of the batch.',
        "",
        "    Inputs and statistics are kept for the backward. It takes two passes: sums by channel of the",
        "    gradient and of the gradient times the normalized input, then all gradients at once.",
        '    """',
        "",
        "    @staticmethod",
        f"    def forward(ctx, {arguments}):",
        f"        ctx.save_for_backward({arguments})",
        f"        return {name}_apply({arguments})",
        "",
        "    @staticmethod",
        f"    def backward(ctx, {incoming}):",
        "        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of its own",
        f"            return differentiate_again(ctx, {name}_eager, {incoming})",
        f"        {arguments} = ctx.saved_tensors",
        source.wrapped(f"sum_grad, sum_grad_normed = {name}_sums(", [o.name for o in needed], ")", pad),
        source.wrapped(f"{stored} = {region.name}(", [o.name for o in region.operands], ")", pad),
        *backward.returned(results),
        "",
    ]
    return "\n".join([backward.AGAIN, "", *lines])
