"""What takes the place of a loop over cells: each cell as one layer of the library, in the order
of a step.

`apply(graph, label)`. What the loop reads is turned and moved once, what stands beside the cells
is done for all steps (spreading.py), and readers get the same tensors as before (results.py)."""

from __future__ import annotations

import operator

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.launching import unique_name
from kernel_lsp.rewrite.codegen.recurrence.cells import CellLoop, RecurrentCell, cell_loops
from kernel_lsp.rewrite.codegen.recurrence.spreading import last_of, spread, stack_walk
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph
from kernel_lsp.rewrite.loops.open_cells import require_kind
from kernel_lsp.rewrite.loops.results import Result, first_reader, redirect
from kernel_lsp.rewrite.printing import guard

aten = torch.ops.aten


def apply(graph: Graph, label: str) -> None:
    """Puts torch's layer in the place of the loop over its cells. Raises RewriteError when the loop
    is not there, or is read before its inputs exist."""
    found = next((found for found in cell_loops(graph) if found.label(graph) == label), None)
    if found is None:
        raise RewriteError(
            "the loop is no longer in the graph", "apply this rewrite before what changes it"
        )
    before = first_reader(graph, found.loop)
    _check_order(graph, found, before)
    every, last = _all_steps(graph, found, before)
    for index, each in found.loop.results:
        result = Result(index=index, every=each, dim=found.dim)
        node = found.loop.steps[1][index]
        part = every[node] if each else last.get(node)
        if part is None:
            part = last_of(graph, every[node], found.dim, before)
        redirect(graph, found.loop, result, part, before)
    graph.drop_unused()


def _all_steps(
    graph: Graph, found: CellLoop, before: fx.Node
) -> tuple[dict[fx.Node, fx.Node], dict[fx.Node, fx.Node]]:
    """Operation of step 1 -> its values in all steps, and -> the one of the last step, of those
    that cells yield."""
    step, cells = found.loop.steps[1], {cell.node: cell for cell in found.cells}
    every, last = _all_slices(graph, found, before), dict[fx.Node, fx.Node]()
    for node in step:
        if (cell := cells.get(node)) is not None:
            made = _layer(graph, found, cell, every[node.args[0]], before)
            if "all" in made:
                every[step[cell.states[0]]] = made["all"]
            named = zip("hc", cell.states, strict=False)
            last |= {step[i]: made[name] for name, i in named if name in made}
        elif node in found.spread:
            every[node] = spread(graph, node, every, found.dim, before)
    return every, last


def _all_slices(graph: Graph, found: CellLoop, before: fx.Node) -> dict[fx.Node, fx.Node]:
    every: dict[fx.Node, fx.Node] = {}
    for walk in found.loop.walks:
        if walk.slices[1]:
            stacked = stack_walk(graph, walk, found.dim, before)
            every |= dict.fromkeys(walk.slices[1], stacked)
    return every


def _check_order(graph: Graph, found: CellLoop, before: fx.Node) -> None:
    order = {node: i for i, node in enumerate(graph.fx.nodes)}
    inside = {node for step in found.loop.steps for node in step}
    slices = {node for walk in found.loop.walks for node in walk.slices[1]}
    read = [walk.base for walk in found.loop.walks]
    read += [item for cell in found.cells for item in cell.initial]
    read += [item for node in found.loop.steps[1] for item in node.all_input_nodes]
    if any(
        order[node] >= order[before] for node in read if node not in inside and node not in slices
    ):
        raise RewriteError(
            "a state is read before the loop's inputs exist", "keep the loop as it is"
        )


# --- the layer ---------------------------------------------------------------------------


def _layer(
    graph: Graph, found: CellLoop, cell: RecurrentCell, given: fx.Node, before: fx.Node
) -> dict[str, fx.Node]:
    """What is read of the states of all steps (``all``) and of those after the last one (``h``,
    ``c``)."""
    graph.require(
        guard.NO_TRANSFORMS, "the library's layer has no rule for vmap, where cells have one"
    )
    require_kind(graph, cell.node)
    wanted = _wanted_results(found, cell)
    state = graph.val(found.loop.steps[1][cell.states[0]])
    shape = list(state.shape)
    shape.insert(found.dim, found.loop.length)
    with state.fake_mode:
        likes = [state.new_empty(shape if name == "all" else state.shape) for name in wanted]
    like, several = (tuple(likes), True) if len(likes) > 1 else (likes[0], False)
    kernel = _source(graph, found, cell, wanted)
    name = "results" if several else graph.variable(found.loop.steps[-1][cell.states[0]])
    inputs = [given, *cell.initial, *cell.weights]
    call = graph.call_generated(kernel, inputs, like=like, before=before, name=name)
    if not several:
        return {wanted[0]: call}
    return {
        name: graph.call(operator.getitem, (call, number), before=before)
        for number, name in enumerate(wanted)
    }


def _wanted_results(found: CellLoop, cell: RecurrentCell) -> list[str]:
    """Results of the layer that anything reads."""
    loop, step = found.loop, found.loop.steps[1]
    state = step[cell.states[0]]
    inputs = [other.node.args[0] for other in found.cells]
    read = state in inputs or any(state in node.all_input_nodes for node in found.spread)
    names = ["all"] if read or cell.states[0] in loop.listed else []
    names += [name for name, index in zip("hc", cell.states, strict=False) if index in loop.final]
    return names or ["h"]


def _source(
    graph: Graph, found: CellLoop, cell: RecurrentCell, wanted: list[str]
) -> GeneratedSource:
    states = ["h", "c"][: len(cell.states)]
    weights = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"][: len(cell.weights)]
    start = ", ".join(f"{state}[None].contiguous()" for state in states)
    arguments = ["x", f"({start})" if len(states) > 1 else start, f"({', '.join(weights)})"]
    arguments += [f"has_biases={len(weights) == 4}", "num_layers=1", "dropout=0.0"]
    arguments += [
        "train=torch.is_grad_enabled()",
        "bidirectional=False",
        f"batch_first={found.dim == 1}",
    ]
    ends = {"all": "states.contiguous()", "h": "h[0]", "c": "c[0]"}
    left = ", ".join("states" if name == "all" else name for name in ["all", *states])
    cells = f"{cell.layer.split('_')[0].upper()}Cell"
    name = unique_name(graph, f"{cell.layer}_steps")
    lines = [
        f"def {name}(x, {', '.join([*states, *weights])}):",
        f'    """{found.loop.length} steps of {cells} as one layer of the library: weights lie '
        f'alike."""',
        source.wrap_items(f"{left} = torch.{cell.layer}(", arguments, ")", indent="    "),
        f"    return {', '.join(ends[item] for item in wanted)}",
    ]
    return GeneratedSource(
        name=name,
        imports=("import torch",),
        definitions="\n".join(lines),
        summary=f"the library's {cell.layer.split('_')[0].upper()} over all steps",
        is_triton=False,
        supports_autograd=True,
        launches=max(
            found.loop.length // 3, 1
        ),  # cuDNN: 11 us a step for the host, a third of a launch
    )
