"""In a loop over time, what a layer does with the input is one product for all steps, before the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernel_lsp.rewrite.cells import complete
from kernel_lsp.rewrite.codegen import source
from kernel_lsp.rewrite.codegen.launching import unique_name
from kernel_lsp.rewrite.loops import Loop, loops_of
from kernel_lsp.rewrite.opened_cells import can_open, is_fused_cell, open_cells, require_kind
from kernel_lsp.rewrite.printing import Printer
from kernel_lsp.rewrite.results import Result, first_reader, launch, results_of
from kernel_lsp.rewrite.skill import (
    EXACT_DTYPES,
    Generated,
    Graph,
    Match,
    Node,
    Proof,
    aten,
    cost,
    is_op,
    proof,
)
from kernel_lsp.rewrite.walks import Walk

SHORTEST_KERNEL_S = 2.5e-6
handles_loops = True
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    found = [made for loop in loops_of(graph) if (made := _match(graph, loop, loop.nodes)) is not None]
    if any(can_open(graph, node) for node in graph.nodes):
        found += _matches_of_cells(graph)
    return found


def _match(graph: Graph, loop: Loop, nodes: Sequence[Node]) -> Match | None:
    if not (places := _places(graph, loop)) or not set(loop.final) <= {i for _, i in loop.carried}:
        return None
    each = cost.RATES.get(graph.device, cost.RATES["cpu"]).overhead_s + SHORTEST_KERNEL_S
    return Match(
        nodes=tuple(nodes),
        label=graph.label(loop.steps[0][0], loop.steps[-1][-1]),
        summary=f"one product for the inputs of all {loop.length} steps, before the loop",
        benefit=cost.share(graph, len(places) * loop.length * each),
        data={"loop": loop, "opened": None},
    )


def _matches_of_cells(graph: Graph) -> list[Match]:
    """Loops in which a product appears only once their cells are opened, in a copy of the graph."""
    own = {node.name: node for node in graph.nodes}
    found = []
    for label in _labels(twin := graph.copy()):
        loop, cells = _opened(twin, label)
        if loop is None or (made := _match(twin, loop, ())) is None:
            continue
        nodes = [own[name] for name in (*cells, *(node.name for node in loop.nodes)) if name in own]
        found.append(replace(made, nodes=tuple(nodes), label=label, data={"loop": loop, "opened": label}))
    return found


def _labels(graph: Graph) -> list[str]:
    """Loops with cells in them; the graph may get more nodes by it."""
    complete(graph)
    loops = [loop for loop in loops_of(graph) if any(can_open(graph, node) for node in loop.steps[1])]
    return [graph.label(loop.steps[0][0], loop.steps[-1][-1]) for loop in loops]


def _opened(graph: Graph, label: str) -> tuple[Loop | None, list[str]]:
    """The loop of this label with its cells opened, in place, and what these were called."""
    for loop in loops_of(graph):
        if graph.label(loop.steps[0][0], loop.steps[-1][-1]) == label:
            cells = [node for node in loop.nodes if can_open(graph, node)]
            for node in cells:
                require_kind(graph, node)
            made = open_cells(graph, loop)
            names = [node.name for node in cells]
            return next((one for one in loops_of(graph) if made[0] in one.nodes), None), names
    return None, []


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    loop: Loop = match.data["loop"]
    dtypes = {graph.val(loop.steps[1][i]).dtype for i in _places(graph, loop)}
    dims = sorted({walk.dim for walk in loop.walks})
    return [
        proof("all steps are the same", True, f"{loop.length} steps, compared one by one with their weights"),
        proof(
            "rows of a product do not mix", True, f"steps lie along dimension {dims}, features along another"
        ),
        proof("no digits are lost", dtypes <= set(EXACT_DTYPES), f"{sorted(map(str, dtypes))}"),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    loop: Loop | None = match.data["loop"]
    if (label := match.data["opened"]) is not None:
        complete(graph)
        loop, _ = _opened(graph, label)
    if loop is None:
        graph.named(label)  # raises: it was there when the match was made
    writer = _Writer(graph, loop)
    results = results_of(graph, loop)
    before = first_reader(graph, loop)
    kernel, inputs = writer.write(results, before)
    launch(graph, loop, kernel, inputs, results, before, "states")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """A product of a step that contains one of a slice (``walk``) with a weight that no step changes."""

    walk: Walk
    joined: Node | None = None
    """The concatenation of which the slice is one end; None where it is the slice alone."""
    columns: tuple[int, int] = (0, 0)
    """The weight's columns for the slice."""
    rest: tuple[int, int] = (0, 0)
    """The columns for what is beside it."""


def _places(graph: Graph, loop: Loop) -> dict[int, _Place]:
    """Numbers of operations -> what of them is one product for all steps."""
    walked = {node: walk for walk in loop.walks for node in walk.slices[1]}
    changing = {*loop.steps[0], *loop.steps[1], *walked}
    found = {}
    for index, node in enumerate(loop.steps[1]):
        if not _is_product(graph, node) or any(arg in changing for arg in node.args[1:]):
            continue
        if node.args[0] in walked:
            found[index] = _Place(walk=walked[node.args[0]])
        elif (place := _joined(graph, loop, node, walked)) is not None:
            found[index] = place
    joined = {place.joined for place in found.values()}
    inside = {loop.steps[1][index] for index in found}
    opened = {node for node in joined if node is not None and set(node.users) <= inside}
    return {index: place for index, place in found.items() if place.joined is None or place.joined in opened}


def _is_product(graph: Graph, node: Node) -> bool:
    """A linear layer, or a product with a matrix from the right: each row of the input on its own."""
    if is_op(node, aten.linear):
        return True
    return is_op(node, aten.matmul, aten.mm) and graph.val(node.args[1]).dim() == 2


def _joined(graph: Graph, loop: Loop, node: Node, walked: dict[Node, Walk]) -> _Place | None:
    """A linear layer of a slice and what stands beside it, concatenated along the features."""
    given = node.args[0]
    if not is_op(node, aten.linear) or not is_op(given, aten.cat) or given not in loop.steps[1]:
        return None
    parts, dim, rank = given.args[0], (*given.args, 0)[1], graph.val(given).dim()
    if dim % rank != rank - 1 or [part in walked for part in parts].count(True) != 1:
        return None
    whole, own = (graph.val(item).shape[-1] for item in (given, next(p for p in parts if p in walked)))
    if parts[0] in walked:
        return _Place(walk=walked[parts[0]], joined=given, columns=(0, own), rest=(own, whole))
    if parts[-1] in walked:
        columns, rest = (whole - own, whole), (0, whole - own)
        return _Place(walk=walked[parts[-1]], joined=given, columns=columns, rest=rest)
    return None


class _Writer:
    """The loop as a function of the products, the states before it, and the weights inside of it."""

    def __init__(self, graph: Graph, loop: Loop) -> None:
        self.graph, self.loop, self.step = graph, loop, loop.steps[1]
        self.names: dict[Node, str] = {}
        self.inputs: dict[Node, str] = {}
        """What the function takes -> the name of its argument."""

    def write(self, results: Sequence[Result], before: Node) -> tuple[Generated, list[Node]]:
        walked = self._walked(before)
        starts = self._starts()
        lines = self._in_place(self._step_lines())
        lists = {
            result.index: f"every_{self.loop.variable(self.graph, result.index)}"
            for result in results
            if result.every
        }
        lines += [f"{lists[index]}.append({self.names[self.step[index]]})" for index in lists]
        states = [(self.names[self.loop.steps[0][i]], self.names[self.step[i]]) for _, i in self.loop.carried]
        if moved := [pair for pair in states if pair[0] != pair[1]]:
            lines.append(f"{', '.join(old for old, _ in moved)} = {', '.join(new for _, new in moved)}")
        held = {index: self.names[self.loop.steps[0][index]] for _, index in self.loop.carried}
        ends = [
            _stacked(result, lists[result.index]) if result.every else held[result.index]
            for result in results
        ]
        items, tensors = ", ".join(item for item, _ in walked), ", ".join(text for _, text in walked)
        many = len(walked) > 1
        function = unique_name(self.graph, "recurrent_steps")
        text = [
            source.wrapped(f"def {function}(", list(self.inputs.values()), "):"),
            f'    """{self.loop.length} steps; what each input adds to its product is computed already."""',
            *(f"    {name} = {start}" for name, start in starts),
            *(f"    {name} = []" for name in lists.values()),
            f"    for {items} in {f'zip({tensors}, strict=True)' if many else tensors}:",
            *(f"        {line}" for line in lines),
            f"    return {', '.join(ends)}",
        ]
        launched = sum(cost.seconds(self.graph, node) > 0 for node in self.step) - len(self.products)
        kernel = Generated(
            name=function,
            imports=("import torch", "import torch.nn.functional as F"),
            definitions="\n".join(text),
            summary="the steps of a recurrence behind one product for all inputs",
            is_triton=False,
            supports_autograd=True,
            launches=self.loop.length * max(launched + len(self.rest), 1),
        )
        return kernel, list(self.inputs)

    def _starts(self) -> list[tuple[str, str]]:
        """Names for the states. One whose first value is also something else gets it before the loop."""
        read = [
            *(initial for initial, _ in self.loop.carried),
            *(n for c in self.step for n in c.all_input_nodes),
        ]
        found = []
        for initial, index in self.loop.carried:
            wish = self.loop.variable(self.graph, index)
            alone = read.count(initial) == 1 and initial not in self.inputs
            name = self._argument(initial, wish if alone else f"first_{wish}")
            self.names[self.loop.steps[0][index]] = name if alone else self._fresh(wish)
            if not alone:
                found.append((self.names[self.loop.steps[0][index]], name))
        return found

    def _in_place(self, lines: list[str]) -> list[str]:
        """A single state that the last line computes takes its old name at once."""
        (_, index), *others = self.loop.carried
        old, new = self.loop.steps[0][index], self.step[index]
        if others or not lines[-1].startswith(f"{self.names[new]} = "):
            return lines
        last = lines[-1].removeprefix(f"{self.names[new]} = ")
        self.names[new] = self.names[old]
        return [*lines[:-1], f"{self.names[old]} = {last}"]

    def _walked(self, before: Node) -> list[tuple[str, str]]:
        """The name of each slice of a step, and what the loop still walks through for it, as the source of
        all slices in order; products are made here."""
        found = []
        places = _places(self.graph, self.loop)
        self.products: dict[int, str] = {}
        self.rest: dict[int, Node] = {}
        for index, place in places.items():
            name = self._argument(self._product(index, place, before), "projected")
            self.products[index] = f"{name}_t"
            found.append((f"{name}_t", _slices(name, _dim_of_product(self.graph, place.walk), place.walk)))
        gone = {self.step[i] for i in places} | {p.joined for p in places.values() if p.joined is not None}
        for walk in self.loop.walks:
            readers = {user for node in walk.slices[1] for user in node.users if user in self.step}
            if readers - gone:
                name = self._argument(self._read(walk, before), self.graph.variable(walk.base))
                self.names.update(dict.fromkeys(walk.slices[1], self._fresh(f"{name}_t")))
                found.append((self.names[walk.slices[1][0]], _slices(name, walk.dim, walk)))
        return found

    def _read(self, walk: Walk, before: Node) -> Node:
        """The part of the tensor that the loop reads."""
        if walk.is_whole:
            return walk.base
        ends = min(walk.indices), max(walk.indices) + 1
        return self.graph.call(aten.slice.Tensor, (walk.base, walk.dim, *ends), before=before)

    def _product(self, index: int, place: _Place, before: Node) -> Node:
        """The product of all steps."""
        node, walk, call = self.step[index], place.walk, self.graph.call
        _, weight, *bias = node.args
        given = self._read(walk, before)
        if _dim_of_product(self.graph, walk) != walk.dim:
            given = call(aten.movedim.int, (given, walk.dim, 0), before=before)
        if place.joined is not None:
            self.rest[index] = call(aten.slice.Tensor, (weight, 1, *place.rest), before=before)
            self._argument(self.rest[index], "state_weight")
            weight = call(aten.slice.Tensor, (weight, 1, *place.columns), before=before)
        op = aten.linear.default if is_op(node, aten.linear) else aten.matmul.default
        return call(op, (given, weight, *bias), before=before, name="projected")

    def _step_lines(self) -> list[str]:
        printer, lines = Printer("F", None), []
        joined = {self.step[i].args[0] for i in self.rest}  # its parts are multiplied where they are
        for index, node in enumerate(self.step):
            if node in joined:
                continue
            if index in self.rest:
                product = f"F.linear({self._beside(node.args[0])}, {self._operand(self.rest[index])})"
                text = f"{self.products[index]} + {product}"
            elif index in self.products:
                self.names[node] = self.products[index]
                continue
            elif is_fused_cell(node):
                text = self._fused(node)
            else:
                text, _ = printer.call(node, lambda arg, level: self._operand(arg))
            self.names[node] = self._fresh(self.loop.variable(self.graph, index))
            lines.append(f"{self.names[node]} = {text}")
        return lines

    def _fused(self, node: Node) -> str:
        """The kernel of a cell behind its products: too many arguments for one line."""
        indent, left = " " * 8, f"{self.loop.variable(self.graph, self.step.index(node))} = "
        items = [self._operand(arg) for arg in node.args]
        text = source.wrapped(f"{left}torch.ops.{node.target}(", items, ")", indent=indent)
        return text.removeprefix(f"{indent}{left}")

    def _beside(self, joined: Node) -> str:
        """What is concatenated with the slice."""
        slices = {node for walk in self.loop.walks for node in walk.slices[1]}
        parts = [self._operand(part) for part in joined.args[0] if part not in slices]
        return parts[0] if len(parts) == 1 else f"torch.cat(({', '.join(parts)}), dim=-1)"

    def _operand(self, node: Node) -> str:
        if node not in self.names:
            self.names[node] = self._argument(node, _last_part(self.graph, node))
        return self.names[node]

    def _argument(self, node: Node, wish: str) -> str:
        if node not in self.inputs:
            self.inputs[node] = self._fresh(wish)
        return self.inputs[node]

    def _fresh(self, wish: str) -> str:
        taken = {*self.names.values(), *self.inputs.values()}
        return next(n for n in (wish, *(f"{wish}_{i}" for i in range(2, 99))) if n not in taken)


def _dim_of_product(graph: Graph, walk: Walk) -> int:
    """Where the steps are in the product: it has its features last, so they go first if they were there."""
    return walk.dim if walk.dim < graph.val(walk.base).dim() - 1 else 0


def _slices(name: str, dim: int, walk: Walk) -> str:
    """The slices in the order of the steps; a tensor is the sequence of those along dimension 0."""
    every = f"{name}.unbind({dim})" if dim else name
    return f"reversed({every})" if walk.is_backward else every


def _stacked(result: Result, every: str) -> str:
    dim = f", dim={result.dim}" if result.dim else ""
    return f"torch.stack({every}{'[::-1]' * result.is_backward}{dim})"


def _last_part(graph: Graph, node: Node) -> str:
    path = graph.state.get(node)
    return (
        "_".join(path.split(".")[-2:])
        if path
        else graph.variable(node)
        if node.op == "call_function"
        else node.name
    )
