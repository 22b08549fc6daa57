"""A loop over time whose steps act element by element, as one kernel that keeps the state in registers.

Each program carries a block of the state's elements through all steps: slices are read once, results are
written once, where the program collects them, and nothing else touches memory. Loads do not depend on the
state, so they run several steps ahead. Covered: what loops.py finds, when slices have the state's full shape.
Not covered: matrix products inside of a step, slices that are broadcast against the state, results of
different shapes. A tensor that is not contiguous is copied once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen import source
from kernel_lsp.rewrite.codegen.body import Body, Names
from kernel_lsp.rewrite.codegen.flat import flat_load, index_lines, narrow
from kernel_lsp.rewrite.codegen.index import sizes_in
from kernel_lsp.rewrite.codegen.ir import Operand, Value, topological
from kernel_lsp.rewrite.codegen.lower import Lowered, lower
from kernel_lsp.rewrite.codegen.pointwise import FLOATS, TABLE, Unsupported, op_name
from kernel_lsp.rewrite.codegen.space import Shape, shape_of
from kernel_lsp.rewrite.codegen.wording import worded
from kernel_lsp.rewrite.generated import Generated
from kernel_lsp.rewrite.graph import Graph
from kernel_lsp.rewrite.loops import Loop
from kernel_lsp.rewrite.results import Result, first_reader, launch, results_of
from kernel_lsp.rewrite.walks import Walk

PARAMETERS: dict[str, list[Any]] = {"BLOCK_SIZE": [128, 64, 256], "num_stages": [8, 4], "num_warps": [4]}
"""Few elements a program: a state of 16384 elements must fill 132 multiprocessors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recurrence:
    """One step as a region, and what its operands are in the loop."""

    lowered: Lowered
    given: dict[Operand, fx.Node]
    """Operand -> what the launcher takes for it: a tensor that is walked through, a state before the loop, or
    what every step reads as it is."""
    walks: dict[Operand, Walk]
    states: dict[Operand, int]
    """Operand -> number of the operation whose result takes its place in the next step."""
    values: dict[int, Value]
    """What the operations of a step are in the region."""
    results: tuple[Result, ...]
    loop: Loop

    @property
    def inputs(self) -> list[fx.Node]:
        """What the launcher takes, in order."""
        return [self.given[operand] for operand in self.lowered.region.operands]


def recurrence_of(graph: Graph, loop: Loop, name: str) -> Recurrence | None:
    """None when the steps cannot be generated."""
    step = loop.steps[1]
    if any(op_name(node) not in TABLE for node in step):
        return None
    sizes = {shape_of(node) for node in step}
    dtypes = {graph.val(item).dtype for node in step for item in (node, *node.all_input_nodes)}
    if len(sizes) != 1 or not dtypes <= set(FLOATS):
        return None
    alone = _step_alone(graph, loop)
    try:
        lowered = worded(graph, lower(graph, [alone[node] for node in step], Shape(sizes=sizes.pop()), name))
    except Unsupported:
        return None
    by_node = dict(zip(lowered.inputs, lowered.region.operands, strict=True))
    before = {loop.steps[0][index]: (initial, index) for initial, index in loop.carried}
    walked = {node: walk for walk in loop.walks for node in walk.slices[1]}
    outside = {node: by_node[made] for node, made in alone.items() if made in by_node}
    found = Recurrence(
        lowered=lowered,
        given={
            operand: before[node][0] if node in before else walked[node].base if node in walked else node
            for node, operand in outside.items()
        },
        walks={operand: walked[node] for node, operand in outside.items() if node in walked},
        states={operand: before[node][1] for node, operand in outside.items() if node in before},
        values={index: lowered.values[alone[node]] for index, node in enumerate(step)},
        results=tuple(results_of(graph, loop)),
        loop=loop,
    )
    return found if _is_covered(graph, found) else None


def _step_alone(graph: Graph, loop: Loop) -> dict[fx.Node, fx.Node]:
    """One step in a graph of its own, where each slice is one contiguous tensor however it lies in memory:
    a call or its input in the loop -> the same there."""
    step, made = fx.Graph(), dict[fx.Node, fx.Node]()
    calls, same = loop.steps[1], {node: walk.slices[1][0] for walk in loop.walks for node in walk.slices[1]}
    for node in dict.fromkeys(read for call in calls for read in call.all_input_nodes):
        if node not in calls:
            stand_in = same.get(node, node)
            if stand_in not in made:
                made[stand_in] = step.placeholder(stand_in.name)
            made[node] = made[stand_in]
    for call in calls:
        made[call] = step.node_copy(call, lambda node: made[node])
    step.output([made[calls[index]] for index in _wanted(loop)])
    for node, twin in made.items():
        value = graph.val(node)
        with value.fake_mode:
            twin.meta = {**node.meta, "val": value.new_empty(value.shape)}
    return made


def _wanted(loop: Loop) -> list[int]:
    """Operations whose values a step has to have: what is stored or handed on."""
    return list(dict.fromkeys([*(i for i, _ in loop.results), *(i for _, i in loop.carried)]))


def _is_covered(graph: Graph, found: Recurrence) -> bool:
    """Slices and states have the full shape, states start in it, and what is read afterwards is laid out like
    the result of a call."""
    loop, full = found.loop, tuple(range(len(found.lowered.region.dims)))
    fits = all(operand.axes == full for operand in (*found.walks, *found.states))
    handed_on = {index for _, index in loop.carried}
    kept = set(loop.final) <= handed_on and all(_starts_alike(graph, loop, *pair) for pair in loop.carried)
    dense = all(graph.val(loop.steps[1][index]).is_contiguous() for index, _ in loop.results)
    return fits and kept and dense and bool(found.walks) and len(found.states) == len(loop.carried)


def _starts_alike(graph: Graph, loop: Loop, initial: fx.Node, index: int) -> bool:
    """The state before the loop has the shape and dtype that every step gives it."""
    first, later = graph.val(initial), graph.val(loop.steps[0][index])
    return bool(first.shape == later.shape and first.dtype == later.dtype)


def emit(graph: Graph, found: Recurrence, choice: Mapping[str, Any]) -> Generated:
    """Kernel and launcher; the launcher returns the results in their order."""
    return _Writer(graph, found).write(choice)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Path:
    """How the steps follow each other in a tensor: the same for all tensors of one path."""

    dim: int
    size: str
    """How many slices the tensor has; nothing is between two of dimension 0."""
    sign: str
    """``+`` or ``-``: where the next slice lies."""


class _Writer:
    def __init__(self, graph: Graph, found: Recurrence) -> None:
        self.graph, self.found, self.loop = graph, found, found.loop
        self.region = region = found.lowered.region
        taken = ["out", "n_steps", "n_elements", "n_inner", "step", *(dim.name for dim in region.dims)]
        self.names = names = Names(taken)
        self.old = {operand: operand.name for operand in region.operands}
        self.arguments = {
            operand: names.fresh(_wish(graph, node))
            for operand, node in zip(region.operands, found.inputs, strict=True)
        }
        several = len(found.results) > 1
        self.results = [
            names.fresh(f"{self.loop.variable(graph, result.index)}_{'all' if result.every else 'last'}")
            if several
            else "out"
            for result in found.results
        ]
        self.first = next(iter(found.walks))
        self.inner = self._inner_sizes()

    def write(self, choice: Mapping[str, Any]) -> Generated:
        kernel, sizes = self._kernel()
        summary = f"{self.loop.length} steps of a recurrence in one kernel"
        return source.generated(self.region, [kernel], self._launcher(choice, sizes), summary)

    # --- where slices lie ----------------------------------------------------------------

    def _inner_sizes(self) -> dict[int, str]:
        """Dimension of the steps -> the number of elements that lie together in a slice of it."""
        dims = [walk.dim for walk in self.found.walks.values()]
        dims += [result.dim for result in self.found.results if result.every]
        inner = sorted({dim for dim in dims if dim})
        named = ["n_inner"] if len(inner) == 1 else [f"n_inner_{dim}" for dim in inner]
        return {0: "n_elements", **dict(zip(inner, named, strict=True))}

    def _path_of(self, item: Operand | Result) -> _Path:
        if isinstance(item, Result):
            return _Path(dim=item.dim, size="n_steps" * bool(item.dim), sign="-" if item.is_backward else "+")
        walk, name = self.found.walks[item], self.arguments[item]
        size = "n_steps" if walk.is_whole else f"{name}_size"
        return _Path(dim=walk.dim, size=size * bool(walk.dim), sign="-" if walk.is_backward else "+")

    def _paths(self) -> dict[_Path, str]:
        """Every path -> its variable in the kernel."""
        results = [result for result in self.found.results if result.every]
        items: list[Operand | Result] = [*self.found.walks, *results]
        paths = list(dict.fromkeys(self._path_of(item) for item in items))
        return {path: f"here_{number}" if number else "here" for number, path in enumerate(paths)}

    def _at_first_step(self, path: _Path) -> str:
        if not path.dim:
            return "offs"
        inner = self.inner[path.dim]
        return f"offs // {inner} * {path.size} * {inner} + offs % {inner}"

    def _from_first_step(self, item: Operand | Result, name: str) -> str:
        """The part of a tensor that begins with the slice of the first step: the kernel gets its address."""
        if isinstance(item, Result):
            start = -1 if item.is_backward else 0
        else:
            walk = self.found.walks[item]
            start = -1 if walk.is_whole and walk.is_backward else walk.indices[0]
        dim = item.dim if isinstance(item, Result) else self.found.walks[item].dim
        return f"{name}[{':, ' * dim}{start}:]" if start else name

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
            *self._more_sizes(),
            *(f"{name}: tl.constexpr" for name in sizes),
            "BLOCK_SIZE: tl.constexpr",
            "STEPS_AHEAD: tl.constexpr",
        ]
        doc = "Each program carries BLOCK_SIZE elements of the state through all steps."
        return source.kernel_text(f"_{self.region.name}_kernel", header, doc, lines), sizes

    def _more_sizes(self) -> list[str]:
        """What else the kernel is told: elements that lie together, and slices of tensors read in part."""
        parts = [path.size for path in self._paths() if path.size not in ("", "n_steps")]
        return [*(name for dim, name in self.inner.items() if dim), *parts]

    def _body(self) -> list[str]:
        region, found, paths = self.region, self.found, self._paths()
        taken = ["n_steps", "n_elements", *paths.values(), *self._more_sizes()]
        outer = Body(Names([*taken, *(dim.name for dim in region.dims)]), self._load)
        values = {v.operand: v for v in topological(o.value for o in region.outputs) if v.operand is not None}
        held: dict[Operand, str] = {}
        for operand, index in found.states.items():
            held[operand] = outer.names.fresh(self.loop.variable(self.graph, index))
            outer.add(f"{held[operand]} = {self._load(operand)}{_widened(operand)}")
            outer.known[values[operand]] = held[operand]
        for operand, value in values.items():
            if operand not in found.states and operand not in found.walks:
                name = outer.names.fresh(self.arguments[operand])
                outer.add(f"{name} = {self._load(operand)}{_widened(operand)}")
                outer.known[value] = name
        for path, name in paths.items():
            outer.add(f"{name} = {self._at_first_step(path)}  # in the slice of the current step, in int64")
        outer.add("# What a step reads does not depend on the state, so it is fetched several steps ahead.")
        outer.add("for _ in tl.range(0, n_steps, num_stages=STEPS_AHEAD):")
        inner = self._step(outer.inner(), values, held)
        for path, name in paths.items():
            inner.add(f"{name} {path.sign}= {self.inner[path.dim]}")
        carried = {index: held[operand] for operand, index in found.states.items()}
        for result, name in zip(found.results, self.results, strict=True):
            if not result.every:
                outer.add(f"tl.store({name}_ptr + offs, {carried[result.index]}, mask=mask)")
        after = sum(not result.every for result in found.results)
        split = len(outer.lines) - after
        return [*outer.lines[:split], *inner.lines, *outer.lines[split:]]

    def _step(self, inner: Body, values: dict[Operand, Value], held: dict[Operand, str]) -> Body:
        """The statements of one step."""
        found, paths = self.found, self._paths()
        for operand in found.walks:
            name = inner.known[values[operand]] = inner.names.fresh(f"{self.arguments[operand]}_t")
            inner.add(f"{name} = {self._load(operand)}{_widened(operand)}")
        texts = {}
        for index in _wanted(self.loop):
            value = found.values[index]
            named = replace(value, hint=f"{self.loop.variable(self.graph, index)}_next", inline=False)
            texts[index] = inner.known[value] = str(inner.text(named))
        for result, name in zip(found.results, self.results, strict=True):
            if result.every:
                place = paths[self._path_of(result)]
                inner.add(f"tl.store({name}_ptr + {place}, {texts[result.index]}, mask=mask)")
        old, new = [held[o] for o in found.states], [texts[i] for i in found.states.values()]
        inner.add(f"{', '.join(old)} = {', '.join(new)}")
        return inner

    def _load(self, operand: Operand) -> str:
        name = self.arguments[operand]
        if operand in self.found.walks:
            return f"tl.load({name}_ptr + {self._paths()[self._path_of(operand)]}, mask=mask)"
        return flat_load(operand, self.region, "offs").replace(f"({operand.name}_ptr", f"({name}_ptr")

    # --- launcher ------------------------------------------------------------------------

    def _launcher(self, choice: Mapping[str, Any], sizes: list[str]) -> str:
        found, region, walk = self.found, self.region, self.found.walks[self.first]
        first, slice_ = self.arguments[self.first], self._slice(self.first)
        n_steps = f"{first}.shape[{walk.dim}]" if walk.is_whole else str(self.loop.length)
        arguments = [
            *(
                self._from_first_step(operand, name) if operand in found.walks else name
                for operand, name in self.arguments.items()
            ),
            *(
                self._from_first_step(result, name) if result.every else name
                for result, name in zip(found.results, self.results, strict=True)
            ),
            "n_steps",
            "n_elements",
            *self._more_sizes(),
            *sizes,
            f"BLOCK_SIZE={choice['BLOCK_SIZE']}",
            f"STEPS_AHEAD={choice['num_stages']}",
            f"num_warps={choice['num_warps']}",
        ]
        lines = [
            f"def {region.name}({', '.join(self.arguments.values())}):",
            *self._described(),
            *(f"    {name} = {name}.contiguous()" for name in self._tensors()),
            f"    n_steps, n_elements = {n_steps}, {slice_}.numel()",
            *(self._allocated(*pair) for pair in zip(found.results, self.results, strict=True)),
            *self._size_lines(sizes),
            "    if n_elements > 0:  # a grid of zero programs cannot be launched",
            f"        grid = ({source.blocks('n_elements', choice['BLOCK_SIZE'])},)",
            source.wrapped(f"_{region.name}_kernel[grid](", arguments, ")", indent="        "),
            f"    return {', '.join(self.results)}",
            "",
        ]
        return "\n".join(lines)

    def _slice(self, operand: Operand) -> str:
        """One slice of a tensor that is walked through, as source of the launcher."""
        return f"{self.arguments[operand]}[{':, ' * self.found.walks[operand].dim}0]"

    def _allocated(self, result: Result, name: str) -> str:
        dtype = self.graph.val(self.loop.steps[1][result.index]).dtype
        for operand, walk in self.found.walks.items():
            if result.every and walk.is_whole and walk.dim == result.dim:
                return f"    {name} = torch.empty_like({self.arguments[operand]}, dtype={dtype})"
        first, walk = self.arguments[self.first], self.found.walks[self.first]
        shape = [f"{first}.shape[{dim}]" for dim in range(self.graph.val(walk.base).dim()) if dim != walk.dim]
        if result.every:
            shape.insert(result.dim, "n_steps")
        sizes = f"({', '.join(shape)}{',' if len(shape) == 1 else ''})"
        return f"    {name} = {first}.new_empty({sizes}, dtype={dtype})"

    def _described(self) -> list[str]:
        states = [self.arguments[operand] for operand in self.found.states]
        shapes = [
            f"    {name}: {tuple(self.graph.val(node).shape)}{', before the first step' * (name in states)}"
            for name, node in zip(self.arguments.values(), self.found.inputs, strict=True)
        ]
        shapes += [
            f"    returns {name}: the state after {'every' if result.every else 'the last'} step"
            for name, result in zip(self.results, self.found.results, strict=True)
        ]
        walk = self.found.walks[self.first]
        way = f"dimension {walk.dim}{', from the end' * walk.is_backward}"
        return [f'    """A recurrence over {way}, element by element.', "", *shapes, '    """']

    def _tensors(self) -> list[str]:
        return [self.arguments[operand] for operand in self.region.operands if operand.axes]

    def _size_lines(self, sizes: list[str]) -> list[str]:
        """Sizes are told in terms of one step's operands: a slice is ``x[0]`` here."""
        spelled = {
            self.old[operand]: self._slice(operand) if operand in self.found.walks else name
            for operand, name in self.arguments.items()
        }
        pattern = re.compile(r"\b(" + "|".join(map(re.escape, spelled)) + r")\b")
        lines = [
            f"    {name} = {self._long_as(dim)}.stride({dim})" for dim, name in self.inner.items() if dim
        ]
        for operand, walk in self.found.walks.items():
            if (size := self._path_of(operand).size) not in ("", "n_steps"):
                lines.append(f"    {size} = {self.arguments[operand]}.shape[{walk.dim}]")
        return lines + [
            f"    {dim.name} = {pattern.sub(lambda found: spelled[found.group()], dim.source)}"
            for dim in self.region.dims
            if dim.name in sizes
        ]

    def _long_as(self, dim: int) -> str:
        """A tensor whose dimension ``dim`` is that of the steps."""
        walked = [self.arguments[operand] for operand, walk in self.found.walks.items() if walk.dim == dim]
        made = [n for r, n in zip(self.found.results, self.results, strict=True) if r.every and r.dim == dim]
        return [*walked, *made][0]


def apply(graph: Graph, found: Recurrence, choice: Mapping[str, Any]) -> None:
    """Replace the loop by one launch. Raises RewriteError when a result is needed before its inputs exist."""
    writer, order = _Writer(graph, found), {node: i for i, node in enumerate(graph.fx.nodes)}
    before = first_reader(graph, found.loop)
    if any(order[node] >= order[before] for node in found.inputs):
        raise RewriteError("a state is read before the loop's inputs exist", "keep the loop as it is")
    name = writer.results[0] if len(found.results) == 1 else "states"
    launch(graph, found.loop, writer.write(choice), found.inputs, found.results, before, name)


def _wish(graph: Graph, node: fx.Node) -> str:
    path = graph.state.get(node)
    return path.split(".")[-1] if path else graph.variable(node) if node.op == "call_function" else node.name


def _widened(operand: Operand) -> str:
    return ".to(tl.float32)" if operand.dtype in ("float16", "bfloat16") else ""
