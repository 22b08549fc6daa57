"""What the fusing skills share: from a group of nodes to a match, and from a match to a launch."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen import cost, flat, rows, split
from kernel_lsp.rewrite.codegen.grow import grow, pointwise_groups
from kernel_lsp.rewrite.codegen.lower import Lowered, is_identity, lower
from kernel_lsp.rewrite.codegen.pointwise import Unsupported, op_name
from kernel_lsp.rewrite.codegen.source import next_power_of_two
from kernel_lsp.rewrite.codegen.space import NORMS, Shape, space_of
from kernel_lsp.rewrite.codegen.wording import worded
from kernel_lsp.rewrite.generated import Generated, Match
from kernel_lsp.rewrite.graph import Graph

MIN_SAVING = 0.1
"""Share of the covered operations' own time that must be saved, by the estimate, to speak up."""
ONE_BLOCK = 16384
"""Longest row that stays in registers: 16 elements a thread at 32 warps."""
FEW_ROWS = 132
"""Fewer rows than an H200 has multiprocessors leave some idle: split the rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    kind: str
    """flat, rows or split."""
    parameters: dict[str, list[Any]]
    launches: int = 1
    passes: float = 1.0
    """How often operands are read."""


def reduction_matches(graph: Graph, ops: Sequence[str], *, alone: bool = True) -> list[Match]:
    """Matches around reductions of one family. ``alone``: worth a kernel without neighbors."""
    found, taken = [], set[fx.Node]()
    for seed in graph.nodes:
        if seed in taken or op_name(seed) not in ops or (space := space_of(seed)) is None:
            continue
        nodes = grow(graph, seed, space)
        taken.update(nodes)
        match = match_of(graph, nodes, space, alone=alone)
        if match is not None:
            found.append(match)
    return found


def norm_matches(graph: Graph) -> list[Match]:
    """Library norms, and RMS norm written by hand: a mean of squares that scales its own input."""
    hand = [match for match in reduction_matches(graph, ("mean",), alone=False) if is_rms(graph, match)]
    return [*reduction_matches(graph, NORMS), *hand]


def is_rms(graph: Graph, match: Match) -> bool:
    """A mean of squares that scales its own input."""
    names = {op_name(node) for node in match.nodes}
    full = any(tuple(n.meta["val"].shape) == tuple(m.meta["val"].shape) for n, m in _scalings(graph, match))
    return bool(names & {"rsqrt", "sqrt"}) and "mean" in names and full


def _scalings(graph: Graph, match: Match) -> list[tuple[fx.Node, fx.Node]]:
    """Products and quotients of a tensor with something computed from its own mean."""
    return [
        (node, node.args[0] if isinstance(node.args[0], fx.Node) else node)
        for node in match.nodes
        if op_name(node) in ("mul", "div")
        and len(node.all_input_nodes) == 2
        and any(op_name(arg) in ("rsqrt", "sqrt", "pow", "reciprocal") for arg in node.all_input_nodes)
    ]


def pointwise_matches(graph: Graph) -> list[Match]:
    matches = [match_of(graph, nodes, space) for nodes, space in pointwise_groups(graph)]
    return [match for match in matches if match is not None]


def match_of(graph: Graph, nodes: Sequence[fx.Node], space: Shape, *, alone: bool = False) -> Match | None:
    """None when the group cannot be generated or placed. A kernel that would not pay has benefit 0."""
    real = [node for node in nodes if not is_identity(node)]
    if not nodes or (len(real) < 2 and not alone):
        return None
    try:
        lowered = lower(graph, nodes, space, "fused")
    except Unsupported:
        return None
    if not lowered.inputs or not lowered.outputs or _place(graph, nodes, lowered) is None:
        return None
    template = template_for(lowered, space)
    fused_s = cost.fused_seconds(graph, lowered, template.launches, template.passes)
    return Match(
        nodes=tuple(nodes),
        label=graph.label(*nodes),
        summary=f"fuse {_words(real)} into {'one kernel' if template.launches == 1 else 'two kernels'}",
        benefit=cost.benefit(graph, nodes, fused_s, MIN_SAVING),
        plain=False,
        data={"nodes": [node.name for node in nodes], "space": space, "parameters": template.parameters},
    )


def parameters(graph: Graph, match: Match) -> dict[str, list[Any]]:
    """Finite search space, default first."""
    return dict(match.data["parameters"])


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Replace the match's nodes with one launch."""
    by_name = {node.name: node for node in graph.nodes}
    nodes = [by_name[name] for name in match.data["nodes"] if name in by_name]
    space: Shape = match.data["space"]
    try:
        lowered = lower(graph, nodes, space, _name(nodes))
    except Unsupported as error:
        raise RewriteError(f"{match.label} can no longer be generated: {error}") from error
    before = _place(graph, nodes, lowered)
    if before is None:
        raise RewriteError(f"{match.label}: a result is needed before its inputs exist")
    template = template_for(lowered, space)
    defaults = {name: choices[0] for name, choices in template.parameters.items()}
    known = {name: value for name, value in choice.items() if name in defaults}
    kernel = _unique(graph, nodes, space, template, {**defaults, **known}, lowered)
    _launch(graph, kernel, lowered, before)
    graph.caveat("intermediate results stay in float32; eager rounds each of them to the tensor's dtype")


def proofs(graph: Graph, match: Match) -> list[Proof]:
    names = ", ".join(match.data["nodes"])
    return [
        Proof(
            claim="the operations act element by element or along one run of dimensions",
            holds=True,
            because=f"shapes and schemas of {names}",
        ),
        Proof(claim="no path leaves the group and returns", holds=True, because="the graph's edges"),
        Proof(
            claim="no gradient is lost",
            holds=True,
            because="the dispatch guard takes the original path while gradients are recorded",
        ),
    ]


def template_for(lowered: Lowered, space: Shape) -> Template:
    """How the region is run, from the workload's sizes."""
    region = lowered.region
    if not space.reduced:
        low = all(operand.dtype in ("bfloat16", "float16") for operand in region.operands)
        blocks = [2048, 1024, 4096] if low else flat.PARAMETERS["BLOCK_SIZE"]
        return Template(kind="flat", parameters={**flat.PARAMETERS, "BLOCK_SIZE": blocks})
    columns, lines = (
        _points(region.dims[axis].size for axis in axes) for axes in (region.reduced, region.row_axes)
    )
    # The batch may be larger in another call: a row that contains it is never one block.
    free = 0 in space.reduced
    if any(axis > max(region.reduced) for axis in region.row_axes):
        return _strided(columns, free)
    if lines < FEW_ROWS and columns * lines > 2**18 and columns > 4096 and split.splittable(region):
        return _split(lowered, lines)
    if columns > ONE_BLOCK or free:
        return _looped(lowered, columns)
    return _one_block(columns, lines)


def _one_block(columns: int, lines: int) -> Template:
    block = next_power_of_two(columns)
    tile = max(1, min(1024 // block, next_power_of_two(max(1, lines // FEW_ROWS))))
    warps = max(1, min(16, block * tile // 256))
    choices = list(dict.fromkeys([warps, min(32, warps * 2), max(1, warps // 2)]))
    rows_ = list(dict.fromkeys([tile, max(1, tile // 2)]))
    return Template(kind="rows", parameters={"BLOCK_ROWS": rows_, "num_warps": choices, "BLOCK_SIZE": [0]})


def _looped(lowered: Lowered, columns: int) -> Template:
    full = any(not output.rowwise for output in lowered.region.outputs)
    parameters: dict[str, list[Any]] = {
        "BLOCK_SIZE": [4096, 8192, 2048],
        "num_warps": [16, 8],
        "BLOCK_ROWS": [1],
    }
    if columns <= 2048:
        parameters |= {"BLOCK_SIZE": [next_power_of_two(columns)], "num_warps": [4, 8]}
    return Template(kind="rows", parameters=parameters, passes=2.0 if full else 1.0)


def _strided(columns: int, free: bool) -> Template:
    """Neighbors in memory belong to different rows: a tile takes 32 of them at a time."""
    block = min(next_power_of_two(columns), 128)
    looped = columns > block or free
    parameters: dict[str, list[Any]] = {
        "BLOCK_SIZE": [block if looped else 0],
        "BLOCK_ROWS": [32, 64],
        "num_warps": [4, 8],
    }
    return Template(kind="rows", parameters=parameters, passes=2.0 if looped else 1.0)


def _split(lowered: Lowered, lines: int) -> Template:
    full = any(not output.rowwise for output in lowered.region.outputs)
    most = next_power_of_two(max(8, (512 if full else 1024) // lines))
    parameters: dict[str, list[Any]] = {
        "BLOCK_SIZE": [4096, 2048, 8192],
        "MAX_CHUNKS": [most, most // 2],
        "num_warps": [8, 4],
    }
    return Template(kind="split", parameters=parameters, launches=2, passes=2.0 if full else 1.0)


def _emit(lowered: Lowered, template: Template, choice: dict[str, Any], summary: str) -> Generated:
    if template.kind == "flat":
        return flat.emit(lowered.region, choice, summary)
    if template.kind == "split":
        return split.emit(lowered.region, choice, summary)
    return rows.emit(lowered.region, {**choice, "looped": choice["BLOCK_SIZE"] > 0}, summary)


def _unique(
    graph: Graph,
    nodes: list[fx.Node],
    space: Shape,
    template: Template,
    choice: dict[str, Any],
    lowered: Lowered,
) -> Generated:
    """A name that nothing else has; equal source under one name is shared on purpose."""
    summary = f"{_words([n for n in nodes if not is_identity(n)])[:80]} in one pass.".capitalize()
    taken = {n.meta["generated"].name: n.meta["generated"] for n in graph.nodes if "generated" in n.meta}
    name, count = lowered.region.name, 1
    while True:
        kernel = _emit(worded(graph, lowered), template, choice, summary)
        clash = name in graph.origin.program or (name in taken and taken[name] != kernel)
        if not clash:
            return kernel
        count += 1
        name = f"{_name(nodes)}_{count}"
        lowered = lower(graph, nodes, space, name)


def _launch(graph: Graph, kernel: Generated, lowered: Lowered, before: fx.Node) -> None:
    values = [_contiguous(node.meta["val"]) for node in lowered.outputs]
    like = values[0] if len(values) == 1 else tuple(values)
    name = "results" if len(values) > 1 else f"{lowered.outputs[0].name}_fused"  # never the launcher's own
    call = graph.call_generated(kernel, list(lowered.inputs), like=like, before=before, name=name)
    if len(values) == 1:
        graph.replace(lowered.outputs[0], call)
        return
    parts = [graph.call(operator.getitem, (call, index), before=before) for index in range(len(values))]
    for old, new in zip(lowered.outputs, parts, strict=True):
        old.replace_all_uses_with(new)  # all of them before unused nodes are dropped
    graph.drop_unused()


def _contiguous(value: Any) -> Any:
    """The fake result: kernels always write contiguous tensors."""
    with value.fake_mode:
        return value.contiguous()


def _place(graph: Graph, nodes: Sequence[fx.Node], lowered: Lowered) -> fx.Node | None:
    """The first reader of a result, or the group's last node: all inputs must exist by then."""
    order = {node: index for index, node in enumerate(graph.fx.nodes)}
    inside = set(nodes)
    readers = [u for n in lowered.outputs for u in n.users if u not in inside]
    spot = min([*readers, graph.output], key=lambda node: order[node])
    ready = all(order[node] < order[spot] for node in lowered.inputs)
    return spot if ready else None


def _name(nodes: Sequence[fx.Node]) -> str:
    words = list(dict.fromkeys(_word(node) for node in nodes if not is_identity(node)))
    if {"mean", "rsqrt"} <= set(words):
        words = [
            "rms_norm",
            *(word for word in words if word not in ("pow", "square", "mean", "add", "rsqrt")),
        ]
    return "fused_" + "_".join(words[:4])


def _word(node: fx.Node) -> str:
    return (
        op_name(node)
        .strip("_")
        .replace("binary_cross_entropy_with_logits", "bce")
        .replace("linalg_vector_", "")
    )


def _words(nodes: Sequence[fx.Node]) -> str:
    words = [_word(node) for node in nodes]
    shown = words if len(words) <= 5 else [*words[:2], "…", *words[-2:]]
    return ", ".join(shown[:-1]) + (" and " if len(shown) > 1 else "") + shown[-1]


def _points(sizes: Iterable[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
