"""What the fusing skills share: from a group of nodes to a match, and from a match to a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Proof
from kernel_lsp.rewrite.codegen.backward import draws, parts, training
from kernel_lsp.rewrite.codegen.backward import kernels as backward
from kernel_lsp.rewrite.codegen.core import launching, source, strides
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported, op_name
from kernel_lsp.rewrite.codegen.core.space import NORMS, RegionShape, space_of
from kernel_lsp.rewrite.codegen.groups import gated
from kernel_lsp.rewrite.codegen.pointwise.dropping import is_dropping
from kernel_lsp.rewrite.codegen.regions import cost
from kernel_lsp.rewrite.codegen.regions.grow import grow, pointwise_groups
from kernel_lsp.rewrite.codegen.regions.lower import LoweredRegion, is_identity, lower
from kernel_lsp.rewrite.codegen.regions.program_names import apply_program_names
from kernel_lsp.rewrite.codegen.regions.templates import Template, emit, template_for
from kernel_lsp.rewrite.generated import GUARDED, GeneratedSource, Match
from kernel_lsp.rewrite.graph import Graph

MIN_SAVING = 0.1
"""Share of the covered operations' own time that must be saved, by the estimate, to speak up."""
NO_BACKWARD = "this workload records gradients, and its kernel has no backward"
GRADIENTS = {
    False: GUARDED,
    True: "each operation's derivative, in a backward kernel behind torch.autograd.Function",
}


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
    hand = [
        match for match in reduction_matches(graph, ("mean",), alone=False) if is_rms(graph, match)
    ]
    return [*reduction_matches(graph, NORMS), *hand]


def is_rms(graph: Graph, match: Match) -> bool:
    """A mean of squares that scales its own input."""
    names = {op_name(node) for node in match.nodes}
    full = any(
        tuple(n.meta["val"].shape) == tuple(m.meta["val"].shape) for n, m in _scalings(match)
    )
    return bool(names & {"rsqrt", "sqrt"}) and "mean" in names and full


def _scalings(match: Match) -> list[tuple[fx.Node, fx.Node]]:
    """Products and quotients of a tensor with something computed from its own mean."""
    return [
        (node, node.args[0] if isinstance(node.args[0], fx.Node) else node)
        for node in match.nodes
        if op_name(node) in ("mul", "div")
        and len(node.all_input_nodes) == 2
        and any(
            op_name(arg) in ("rsqrt", "sqrt", "pow", "reciprocal") for arg in node.all_input_nodes
        )
    ]


def pointwise_matches(graph: Graph) -> list[Match]:
    """Groups of pointwise operations that are worth a kernel, F.glu opened where one is."""
    written, parts = gated.written_out(graph) if gated.gates(graph) else (graph, {})
    matches = [match_of(written, nodes, space) for nodes, space in pointwise_groups(written)]
    found = [match for match in matches if match is not None]
    return [
        _restore_glu(graph, match, parts)
        for match in found
        if graph.gradients or _is_chain(match, parts)
    ]


def _is_chain(match: Match, parts: dict[str, str]) -> bool:
    """More than the two parts of one glu, which is a single kernel in eager's forward."""
    return len({parts.get(node.name, node.name) for node in _real(match.nodes)}) > 1


def _real(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Those that compute or move something."""
    return [node for node in nodes if not is_identity(node) or strides.is_copy(node)]


def _restore_glu(graph: Graph, match: Match, parts: dict[str, str]) -> Match:
    """The match in a graph where each glu is still one operation."""
    if not parts:
        return match
    names = dict.fromkeys(parts.get(node.name, node.name) for node in match.nodes)
    nodes = tuple(graph.named(name) for name in names)
    gates = [name for name in names if name in parts.values()]
    return replace(
        match, nodes=nodes, label=graph.label(*nodes), data={**match.data, "gates": gates}
    )


def match_of(
    graph: Graph, nodes: Sequence[fx.Node], space: RegionShape, *, alone: bool = False
) -> Match | None:
    """None when the group cannot be generated or placed. A kernel that would not pay has benefit
    0."""
    try:
        return demanded_match(graph, nodes, space, alone=alone)
    except Unsupported:
        return None


def demanded_match(
    graph: Graph, nodes: Sequence[fx.Node], space: RegionShape, *, alone: bool = False
) -> Match | None:
    """The same; None when there is nothing to fuse. Raises Unsupported.

    One pointwise operation alone is at copy speed in eager's forward, but its backward often takes
    several kernels: a step of `where` 0.453 ms, 0.234 by torch.compile (H100, 16384 x 3072)."""
    real = _real(nodes)
    if not nodes or (len(real) < 2 and not alone and not graph.gradients):
        return None
    lowered = lower(graph, nodes, space, "fused", any_layout=True)
    is_batch_last = lowered.order[-1:] == (0,)
    if graph.gradients and is_batch_last:  # its sums are made within one block
        raise Unsupported("its backward would sum over a transposed batch")
    if not lowered.inputs or not lowered.outputs:
        return None
    _place(graph, nodes, lowered)
    template = template_for(lowered.region, space)
    fused_s = cost.fused_seconds(graph, lowered, template.launches, template.passes)
    trained = _is_trained(graph, lowered)
    if trained and not training.is_trainable(graph, nodes, lowered, space):
        raise Unsupported(NO_BACKWARD)
    if trained:
        saved = training.benefit(
            graph, nodes, lowered, space, fused_s, template.launches, MIN_SAVING
        )
    else:
        saved = cost.benefit(graph, nodes, fused_s, MIN_SAVING)
    return Match(
        nodes=tuple(nodes),
        label=graph.label(*nodes),
        summary=f"fuse {_words(real)} into "
        f"{'one kernel' if template.launches == 1 else 'two kernels'}",
        benefit=saved,
        plain=False,
        differentiable=True,
        data={
            "nodes": [node.name for node in nodes],
            "space": space,
            "trained": trained,
            "parameters": {
                **(training.parameters(graph, nodes, lowered, space) if trained else {}),
                **template.parameters,
            },
        },
    )


def _place(graph: Graph, nodes: Sequence[fx.Node], lowered: LoweredRegion) -> fx.Node:
    """What the launch stands before. Raises Unsupported where there is no such place."""
    before = launching.place(graph, nodes, lowered.outputs, lowered.inputs)
    if before is None:
        raise Unsupported("a result is needed before all that it is computed from exists")
    draws.require_order(graph, nodes, lowered, before)
    return before


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Replace the match's nodes with one launch."""
    gated.write_out(graph, match.data.get("gates", ()))
    by_name = {node.name: node for node in graph.nodes}
    nodes = [by_name[name] for name in match.data["nodes"] if name in by_name]
    space: RegionShape = match.data["space"]
    try:
        lowered = lower(graph, nodes, space, _name(nodes), any_layout=True)
        before = _place(graph, nodes, lowered)
    except Unsupported as error:
        raise RewriteError(f"{match.label} can no longer be generated: {error}") from error
    template = template_for(lowered.region, space)
    choice = {**choice, **_complete(choice, template)}
    kernel = _generate_named(graph, nodes, space, template, choice)
    if _is_trained(graph, lowered):
        backward.require_constants(graph, lowered)
    inputs = [_insert_view(graph, lowered, node, before) for node in _inputs(graph, nodes, lowered)]
    checked = any(op_name(node) == "binary_cross_entropy" for node in nodes)
    dropouts = [node for node in nodes if is_dropping(node)]
    launching.launch(graph, kernel, inputs, lowered.outputs, before, lowered.order)
    draws.forget(graph, dropouts)
    if checked:
        graph.caveat("a probability outside of 0 to 1 gives NaN instead of an error")
    graph.caveat(
        "intermediate results stay in float32; eager rounds each of them to the tensor's dtype"
    )


def _is_trained(graph: Graph, lowered: LoweredRegion) -> bool:
    """Whether gradients are recorded and some result could hand one back: places and counts do
    not."""
    return graph.gradients and any(o.dtype != "int64" for o in lowered.region.outputs)


def _complete(choice: dict[str, Any], template: Template) -> dict[str, Any]:
    """Of every parameter of the template the chosen value, or its default."""
    offered = template.parameters.items()
    return {name: choice.get(name, choices[0]) for name, choices in offered}


def _inputs(graph: Graph, nodes: Sequence[fx.Node], lowered: LoweredRegion) -> list[fx.Node]:
    """What the launch is called with."""
    planned = backward.plan(graph, nodes, lowered) if _is_trained(graph, lowered) else None
    return parts.inputs(lowered, planned.parts if planned is not None else ())


def _insert_view(graph: Graph, lowered: LoweredRegion, node: fx.Node, before: fx.Node) -> fx.Node:
    view = lowered.views.get(node)
    return strides.permute_node(graph, node, view, before) if view else node


def proofs(graph: Graph, match: Match) -> list[Proof]:
    """What holds of the match, each with its reason."""
    names = ", ".join(match.data["nodes"])
    return [
        Proof(
            claim="the operations act element by element or along one run of dimensions",
            holds=True,
            because=f"shapes and schemas of {names}",
        ),
        Proof(
            claim="no path leaves the group and returns", holds=True, because="the graph's edges"
        ),
        Proof(claim="no gradient is lost", holds=True, because=_gradients(graph, match)),
    ]


def _gradients(graph: Graph, match: Match) -> str:
    """Where the gradients of the match's results come from."""
    if graph.gradients and not match.data.get("trained", True):
        return "its results are places or counts, which have none"
    return GRADIENTS[graph.gradients]


def _generate_named(
    graph: Graph,
    nodes: list[fx.Node],
    space: RegionShape,
    template: Template,
    choice: dict[str, Any],
) -> GeneratedSource:
    summary = f"{_words([n for n in nodes if not is_identity(n)])[:80]} in one pass.".capitalize()

    def make(name: str) -> GeneratedSource:
        spoken = apply_program_names(graph, lower(graph, nodes, space, name, any_layout=True))
        if _is_trained(graph, spoken):
            region = backward.forward_region(graph, nodes, spoken)
            kernel = emit(region, template, choice, summary)
            return training.with_backward(graph, nodes, spoken, space, kernel, choice)
        kernel = emit(spoken.region, template, choice, summary)
        if not source.draws(spoken.region):
            return replace(kernel, supports_autograd=graph.gradients)
        eager = backward.reference_source(nodes, spoken, f"{name}_eager")
        return draws.with_draws(nodes, spoken, kernel, eager)

    return launching.make_named(graph, _name(nodes), make)


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
        .replace("binary_cross_entropy", "bce")
        .replace("linalg_vector_", "")
    )


def _words(nodes: Sequence[fx.Node]) -> str:
    words = [_word(node) for node in nodes]
    shown = words if len(words) <= 5 else [*words[:2], "…", *words[-2:]]
    return ", ".join(shown[:-1]) + (" and " if len(shown) > 1 else "") + shown[-1]
