"""A loop over time whose steps act element by element, as one kernel that keeps the state in registers.

Each program carries a block of the state's elements through all steps: slices are read once, results are
written once, and nothing else touches memory. Loads do not depend on the state, so they run several steps
ahead. Covered: what loops.py finds, when the slices are contiguous and of the state's full shape.
Not covered: matrix products inside of a step, slices that are broadcast against the state, results of
different shapes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen import source
from kernel_lsp.rewrite.codegen.body import Body, Names
from kernel_lsp.rewrite.codegen.flat import flat_load, index_lines, narrow
from kernel_lsp.rewrite.codegen.index import sizes_in
from kernel_lsp.rewrite.codegen.ir import Operand, topological
from kernel_lsp.rewrite.codegen.lower import Lowered, lower
from kernel_lsp.rewrite.codegen.pointwise import FLOATS, TABLE, Unsupported, op_name
from kernel_lsp.rewrite.codegen.space import Shape, shape_of
from kernel_lsp.rewrite.codegen.wording import worded
from kernel_lsp.rewrite.generated import Generated
from kernel_lsp.rewrite.graph import Graph
from kernel_lsp.rewrite.loops import Loop

PARAMETERS: dict[str, list[Any]] = {"BLOCK_SIZE": [128, 64, 256], "num_stages": [8, 4], "num_warps": [4]}
"""Few elements a program: a state of 16384 elements must fill 132 multiprocessors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recurrence:
    """One step as a region, and what its operands are in the loop."""

    lowered: Lowered
    sequences: dict[Operand, fx.Node]
    """Operand -> the tensor that it is a slice of."""
    states: dict[Operand, tuple[fx.Node, int]]
    """Operand -> (value before the loop, operation whose result takes its place)."""
    loop: Loop

    @property
    def inputs(self) -> list[fx.Node]:
        """What the launcher takes, in order."""
        region, nodes = self.lowered.region, self.lowered.inputs
        return [
            self.sequences.get(operand) or self.states.get(operand, (node, 0))[0]
            for operand, node in zip(region.operands, nodes, strict=True)
        ]


def recurrence_of(graph: Graph, loop: Loop, name: str) -> Recurrence | None:
    """None when the steps cannot be generated."""
    step = loop.steps[1]
    sizes = {shape_of(node) for node in step}
    dtypes = {graph.val(item).dtype for node in step for item in (node, *node.all_input_nodes)}
    if len(sizes) != 1 or not dtypes <= set(FLOATS) or any(op_name(node) not in TABLE for node in step):
        return None
    try:
        lowered = worded(graph, lower(graph, step, Shape(sizes=sizes.pop()), name))
    except Unsupported:
        return None
    by_node = dict(zip(lowered.inputs, lowered.region.operands, strict=True))
    before = {loop.steps[0][index]: (initial, index) for initial, index in loop.carried}
    found = Recurrence(
        lowered=lowered,
        sequences={by_node[nodes[1]]: base for base, nodes in loop.slices if nodes[1] in by_node},
        states={by_node[node]: pair for node, pair in before.items() if node in by_node},
        loop=loop,
    )
    full = tuple(range(len(lowered.region.dims)))
    tensors = [*found.sequences, *found.states]
    fits = all(operand.axes == full for operand in tensors) and len(found.states) == len(loop.carried)
    dense = all(graph.val(base).is_contiguous() for base in found.sequences.values())
    handed_on = {index for _, index in loop.carried}
    kept = set(loop.final) <= handed_on and all(_starts_alike(graph, loop, *pair) for pair in loop.carried)
    return found if fits and dense and kept and found.sequences else None


def _starts_alike(graph: Graph, loop: Loop, initial: fx.Node, index: int) -> bool:
    """The state before the loop has the shape and dtype that every step gives it."""
    first, later = graph.val(initial), graph.val(loop.steps[0][index])
    return bool(first.shape == later.shape and first.dtype == later.dtype)


def emit(graph: Graph, found: Recurrence, choice: Mapping[str, Any]) -> Generated:
    """Kernel and launcher; the launcher returns a list of results: all steps', then the last step's."""
    return _Writer(graph, found).write(choice)


class _Writer:
    def __init__(self, graph: Graph, found: Recurrence) -> None:
        self.graph, self.found, self.loop = graph, found, found.loop
        region = found.lowered.region
        names = Names(["out", "n_steps", "n_elements", "step", *(dim.name for dim in region.dims)])
        self.old = {operand: operand.name for operand in region.operands}
        self.arguments = {
            operand: names.fresh(_wish(graph, node))
            for operand, node in zip(region.operands, found.inputs, strict=True)
        }
        self.names = names
        self.region = region
        self.outputs = [(index, True) for index in self.loop.listed] + [(i, False) for i in self.loop.final]
        several = len(self.outputs) > 1
        self.results = [
            names.fresh(f"{self.loop.variable(self.graph, i)}_{'all' if every else 'last'}")
            if several
            else "out"
            for i, every in self.outputs
        ]

    def write(self, choice: Mapping[str, Any]) -> Generated:
        kernel, sizes = self._kernel()
        summary = f"{self.loop.length} steps of a recurrence in one kernel"
        return source.generated(self.region, [kernel], self._launcher(choice, sizes), summary)

    # --- kernel --------------------------------------------------------------------------

    def _kernel(self) -> tuple[str, list[str]]:
        lines = [
            "    start = tl.program_id(0).to(tl.int64) * BLOCK_SIZE  # int64: offsets can pass 2**31",
            "    offs = start + tl.arange(0, BLOCK_SIZE)",
            "    mask = offs < n_elements  # the last block reaches past the end",
        ]
        if narrow(self.region):
            lines += [f"    {line}" for line in index_lines(self.region)]
        lines += self._body()
        sizes = sizes_in("\n".join(lines), self.region.dims)
        header = [
            *(f"{name}_ptr" for name in [*self.arguments.values(), *self.results]),
            "n_steps",
            "n_elements",
            *(f"{name}: tl.constexpr" for name in sizes),
            "BLOCK_SIZE: tl.constexpr",
            "STEPS_AHEAD: tl.constexpr",
        ]
        doc = "Each program carries BLOCK_SIZE elements of the state through all steps."
        return source.kernel_text(f"_{self.region.name}_kernel", header, doc, lines), sizes

    def _body(self) -> list[str]:
        region, found = self.region, self.found
        names = Names(["here", "n_steps", "n_elements", *(dim.name for dim in region.dims)])
        outer = Body(names, self._load)
        values = {v.operand: v for v in topological(o.value for o in region.outputs) if v.operand is not None}
        held: dict[Operand, str] = {}
        for operand, (_, index) in found.states.items():
            held[operand] = names.fresh(self.loop.variable(self.graph, index))
            outer.add(f"{held[operand]} = {self._load(operand)}{_widened(operand)}")
            outer.known[values[operand]] = held[operand]
        for operand, value in values.items():
            if operand not in found.states and operand not in found.sequences:
                name = names.fresh(self.arguments[operand])
                outer.add(f"{name} = {self._load(operand)}{_widened(operand)}")
                outer.known[value] = name
        outer.add("here = offs  # in the slices of the current step; grows in int64")
        outer.add("# What a step reads does not depend on the state, so it is fetched several steps ahead.")
        outer.add("for _ in tl.range(0, n_steps, num_stages=STEPS_AHEAD):")
        inner = outer.inner()
        made = {index: found.lowered.values[self.loop.steps[1][index]] for index in self._wanted()}
        for operand in found.sequences:
            inner.known[values[operand]] = names.fresh(f"{self.arguments[operand]}_t")
            inner.add(f"{inner.known[values[operand]]} = {self._load(operand)}{_widened(operand)}")
        texts = {}
        for index, value in made.items():
            named = replace(value, hint=f"{self.loop.variable(self.graph, index)}_next", inline=False)
            texts[index] = inner.known[value] = str(inner.text(named))
        for (index, every), name in zip(self.outputs, self.results, strict=True):
            if every:
                inner.add(f"tl.store({name}_ptr + here, {texts[index]}, mask=mask)")
        self._carry(inner, held, texts)
        inner.add("here += n_elements")
        carried = {index: held[operand] for operand, (_, index) in found.states.items()}
        for (index, every), name in zip(self.outputs, self.results, strict=True):
            if not every:
                inner.lines.append(f"    tl.store({name}_ptr + offs, {carried[index]}, mask=mask)")
        return [*outer.lines, *inner.lines]

    def _wanted(self) -> list[int]:
        """Operations whose values a step has to have: what is stored or handed on."""
        return list(dict.fromkeys([*(i for i, _ in self.outputs), *(i for _, i in self.loop.carried)]))

    def _carry(self, inner: Body, held: dict[Operand, str], texts: dict[int, str]) -> None:
        left, right = [], []
        for operand, (_, index) in self.found.states.items():
            left.append(held[operand])
            right.append(texts[index])
        inner.add(f"{', '.join(left)} = {', '.join(right)}")

    def _load(self, operand: Operand) -> str:
        name = self.arguments[operand]
        if operand in self.found.sequences:
            return f"tl.load({name}_ptr + here, mask=mask)"
        return flat_load(operand, self.region, "offs").replace(f"({operand.name}_ptr", f"({name}_ptr")

    # --- launcher ------------------------------------------------------------------------

    def _launcher(self, choice: Mapping[str, Any], sizes: list[str]) -> str:
        found, region = self.found, self.region
        first = next(self.arguments[operand] for operand in found.sequences)
        dtypes = [self.graph.val(self.loop.steps[1][index]).dtype for index, _ in self.outputs]
        allocated = [
            f"    {name} = torch.empty_like({first if every else f'{first}[0]'}, dtype={dtype})"
            for name, (_, every), dtype in zip(self.results, self.outputs, dtypes, strict=True)
        ]
        arguments = [
            *self.arguments.values(),
            *self.results,
            "n_steps",
            "n_elements",
            *sizes,
            f"BLOCK_SIZE={choice['BLOCK_SIZE']}",
            f"STEPS_AHEAD={choice['num_stages']}",
            f"num_warps={choice['num_warps']}",
        ]
        lines = [
            f"def {region.name}({', '.join(self.arguments.values())}):",
            *self._described(),
            *(f"    {name} = {name}.contiguous()" for name in self._tensors()),
            *allocated,
            f"    n_steps, n_elements = {first}.shape[0], {first}[0].numel()",
            *self._size_lines(sizes),
            "    if n_elements > 0:  # a grid of zero programs cannot be launched",
            f"        grid = ({source.blocks('n_elements', choice['BLOCK_SIZE'])},)",
            source.wrapped(f"_{region.name}_kernel[grid](", arguments, ")", indent="        "),
            f"    return {', '.join(self.results)}",
            "",
        ]
        return "\n".join(lines)

    def _described(self) -> list[str]:
        states = [self.arguments[operand] for operand in self.found.states]
        shapes = [
            f"    {name}: {tuple(self.graph.val(node).shape)}{', before the first step' * (name in states)}"
            for name, node in zip(self.arguments.values(), self.found.inputs, strict=True)
        ]
        shapes += [
            f"    returns {name}: the state after {'every' if every else 'the last'} step"
            for name, (_, every) in zip(self.results, self.outputs, strict=True)
        ]
        return ['    """A recurrence over dimension 0, element by element.', "", *shapes, '    """']

    def _tensors(self) -> list[str]:
        return [self.arguments[operand] for operand in self.region.operands if operand.axes]

    def _size_lines(self, sizes: list[str]) -> list[str]:
        """Sizes are told in terms of one step's operands: a slice is ``x[0]`` here."""
        spelled = {
            self.old[operand]: f"{name}[0]" if operand in self.found.sequences else name
            for operand, name in self.arguments.items()
        }
        pattern = re.compile(r"\b(" + "|".join(map(re.escape, spelled)) + r")\b")
        return [
            f"    {dim.name} = {pattern.sub(lambda found: spelled[found.group()], dim.source)}"
            for dim in self.region.dims
            if dim.name in sizes
        ]


def apply(graph: Graph, found: Recurrence, choice: Mapping[str, Any]) -> None:
    """Replace the loop by one launch. Raises RewriteError when a result is needed before its inputs exist."""
    loop, writer = found.loop, _Writer(graph, found)
    inside, order = set(loop.nodes), {node: i for i, node in enumerate(graph.fx.nodes)}
    last = loop.steps[-1]
    read = [step[i] for i, every in writer.outputs for step in loop.steps if every or step is last]
    readers = [user for node in read for user in node.users if user not in inside]
    before = min(readers, key=lambda node: order[node])
    if any(order[node] >= order[before] for node in found.inputs):
        raise RewriteError("a state is read before the loop's inputs exist", "keep the loop as it is")
    name = writer.results[0] if len(writer.outputs) == 1 else "states"
    launch(graph, loop, writer.write(choice), found.inputs, writer.outputs, before, name)


def launch(
    graph: Graph,
    loop: Loop,
    kernel: Generated,
    inputs: Sequence[fx.Node],
    outputs: Sequence[tuple[int, bool]],
    before: fx.Node,
    name: str,
) -> None:
    """Replace the loop by one call. ``outputs``: an operation, and whether all of its results are asked for
    or the last one alone."""
    likes = [_like_of(graph, loop, index, every) for index, every in outputs]
    like = likes[0] if len(likes) == 1 else tuple(likes)
    call = graph.call_generated(kernel, inputs, like=like, before=before, name=name)
    for number, (index, every) in enumerate(outputs):
        part = call if len(likes) == 1 else graph.call(operator.getitem, (call, number), before=before)
        _redirect(graph, loop, index, every, part, before)
    graph.drop_unused()


def _like_of(graph: Graph, loop: Loop, index: int, every: bool) -> torch.Tensor:
    """The fake value of one operation's results: of all steps, one after the other, or of the last."""
    value: torch.Tensor = graph.val(loop.steps[1][index])
    with value.fake_mode:
        return value.new_empty((loop.length, *value.shape) if every else value.shape)


def _redirect(graph: Graph, loop: Loop, index: int, every: bool, part: fx.Node, before: fx.Node) -> None:
    """Readers of the steps read the kernel's result: whole where they stack it, else slice by slice."""
    if not every:
        loop.steps[-1][index].replace_all_uses_with(part)
        return
    nodes = [step[index] for step in loop.steps]
    aten = torch.ops.aten
    for user in [u for u in graph.nodes if u in nodes[0].users]:
        stacked = op_name(user) == "stack" and list(user.args[0]) == nodes
        if stacked and (*user.args, 0)[1] in (0, -graph.val(user).dim()):
            user.replace_all_uses_with(part)
        elif stacked:
            rank = graph.val(user).dim()
            dim = user.args[1] % rank
            moved = graph.call(aten.movedim.int, (part, 0, dim), before=user)
            user.replace_all_uses_with(graph.call(aten.contiguous.default, (moved,), before=user))
    inside = set(loop.nodes)
    for t, node in enumerate(nodes):
        if graph.is_output(node) or any(user not in inside and user.users for user in node.users):
            piece = graph.call(aten.select.int, (part, 0, t), before=before)
            node.replace_all_uses_with(piece, delete_user_cb=lambda user: user not in inside)


def _wish(graph: Graph, node: fx.Node) -> str:
    path = graph.state.get(node)
    return path.split(".")[-1] if path else graph.variable(node) if node.op == "call_function" else node.name


def _widened(operand: Operand) -> str:
    return ".to(tl.float32)" if operand.dtype in ("float16", "bfloat16") else ""
