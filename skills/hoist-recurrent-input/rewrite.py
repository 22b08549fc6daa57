"""In a loop over time, what a layer does with the input is one product for all steps, before the loop."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.rewrite.codegen import recurrence
from kernel_lsp.rewrite.codegen.launching import unique_name
from kernel_lsp.rewrite.loops import Loop, loops_of
from kernel_lsp.rewrite.printing import Printer
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

SHORTEST_KERNEL_S = 2.5e-6
handles_loops = True
parameters: dict[str, list[object]] = {}


def match(graph: Graph) -> list[Match]:
    found = []
    for loop in loops_of(graph):
        if not (places := _places(graph, loop)) or not set(loop.final) <= {i for _, i in loop.carried}:
            continue
        each = cost.RATES.get(graph.device, cost.RATES["cpu"]).overhead_s + SHORTEST_KERNEL_S
        found.append(
            Match(
                nodes=loop.nodes,
                label=graph.label(loop.steps[0][0], loop.steps[-1][-1]),
                summary=f"one product for the inputs of all {loop.length} steps, before the loop",
                benefit=cost.share(graph, len(places) * loop.length * each),
                data={"loop": loop},
            )
        )
    return found


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    loop: Loop = match.data["loop"]
    dtypes = {graph.fact(loop.steps[1][i]).dtype for i in _places(graph, loop)}
    return [
        proof("all steps are the same", True, f"{loop.length} steps, compared one by one with their weights"),
        proof(
            "rows of a product do not mix", True, "the loop walks along dimension 0, linear along the last"
        ),
        proof("no digits are lost", dtypes <= set(EXACT_DTYPES), f"{sorted(map(str, dtypes))}"),
    ]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    loop: Loop = match.data["loop"]
    writer = _Writer(graph, loop)
    results = [(i, True) for i in loop.listed] + [(i, False) for i in loop.final]
    before = _first_reader(graph, loop)
    kernel, inputs = writer.write(results, before)
    recurrence.launch(graph, loop, kernel, inputs, results, before, "states")


def _places(graph: Graph, loop: Loop) -> dict[int, str]:
    """Operations of a step that are a linear layer of a slice (``whole``), or of a slice with a state behind
    it (``joined``)."""
    step, slices = loop.steps[1], [nodes[1] for _, nodes in loop.slices]
    found = {}
    for index, node in enumerate(step):
        if not is_op(node, aten.linear) or any(arg in step for arg in node.args[1:]):
            continue
        given = node.args[0]
        if given in slices:
            found[index] = "whole"
        elif (
            is_op(given, aten.cat)
            and given in step
            and len(given.users) == 1
            and _joins(graph, given, slices)
        ):
            found[index] = "joined"
    return found


def _joins(graph: Graph, node: Node, slices: Sequence[Node]) -> bool:
    parts, dim = node.args[0], (*node.args, 0)[1]
    last = dim % graph.val(node).dim() == graph.val(node).dim() - 1
    return last and len(parts) == 2 and parts[0] in slices and parts[1] not in slices


def _first_reader(graph: Graph, loop: Loop) -> Node:
    order, inside = {node: i for i, node in enumerate(graph.fx.nodes)}, set(loop.nodes)
    readers = [user for node in loop.nodes for user in node.users if user not in inside]
    return min(readers, key=lambda node: order[node])


class _Writer:
    """The loop as a function of the products, the states before it, and the weights inside of it."""

    def __init__(self, graph: Graph, loop: Loop) -> None:
        self.graph, self.loop, self.step = graph, loop, loop.steps[1]
        self.names: dict[Node, str] = {}
        self.inputs: dict[Node, str] = {}
        """What the function takes -> the name of its argument."""

    def write(self, results: list[tuple[int, bool]], before: Node) -> tuple[Generated, list[Node]]:
        walked = self._walked(before)
        for initial, index in self.loop.carried:
            self.names[self.loop.steps[0][index]] = self._argument(
                initial, self.loop.variable(self.graph, index)
            )
        lines = self._in_place(self._step_lines())
        lists = {index: f"every_{self.loop.variable(self.graph, index)}" for index, every in results if every}
        lines += [f"{lists[index]}.append({self.names[self.step[index]]})" for index in lists]
        states = [(self.names[self.loop.steps[0][i]], self.names[self.step[i]]) for _, i in self.loop.carried]
        if moved := [pair for pair in states if pair[0] != pair[1]]:
            lines.append(f"{', '.join(old for old, _ in moved)} = {', '.join(new for _, new in moved)}")
        held = {index: self.names[self.loop.steps[0][index]] for _, index in self.loop.carried}
        ends = [f"torch.stack({lists[i]})" if every else held[i] for i, every in results]
        items, tensors = ", ".join(walked.values()), ", ".join(self.inputs[base] for base in walked)
        many = len(walked) > 1
        function = unique_name(self.graph, "recurrent_steps")
        text = [
            f"def {function}({', '.join(self.inputs.values())}):",
            f'    """{self.loop.length} steps; what each input adds to its product is computed already."""',
            *(f"    {name} = []" for name in lists.values()),
            f"    for {items} in {f'zip({tensors}, strict=True)' if many else tensors}:",
            *(f"        {line}" for line in lines),
            f"    return {', '.join(ends)}",
        ]
        kernel = Generated(
            name=function,
            imports=("import torch", "import torch.nn.functional as F"),
            definitions="\n".join(text),
            summary="the steps of a recurrence behind one product for all inputs",
            is_triton=False,
            supports_autograd=True,
            launches=self.loop.length * max(len(lines), 1),
        )
        return kernel, list(self.inputs)

    def _in_place(self, lines: list[str]) -> list[str]:
        """A single state that the last line computes takes its old name at once."""
        (_, index), *others = self.loop.carried
        old, new = self.loop.steps[0][index], self.step[index]
        if others or not lines[-1].startswith(f"{self.names[new]} = "):
            return lines
        last = lines[-1].removeprefix(f"{self.names[new]} = ")
        self.names[new] = self.names[old]
        return [*lines[:-1], f"{self.names[old]} = {last}"]

    def _walked(self, before: Node) -> dict[Node, str]:
        """Tensor that the loop still walks through -> the name of its slice; products are made here."""
        found: dict[Node, str] = {}
        bases = {nodes[1]: base for base, nodes in self.loop.slices}
        self.products: dict[int, str] = {}
        self.rest: dict[int, Node] = {}
        for index, kind in _places(self.graph, self.loop).items():
            node = self.step[index]
            given, weight, *bias = node.args
            if kind == "joined":
                size = self.graph.fact(given.args[0][0]).shape[-1]
                parts = ((0, size), (size, 2**63 - 1))
                weight, self.rest[index] = (
                    self.graph.call(aten.slice.Tensor, (weight, 1, *ends), before=before) for ends in parts
                )
                self._argument(self.rest[index], "state_weight")
                given = given.args[0][0]
            product = self.graph.call(
                aten.linear.default, (bases[given], weight, *bias), before=before, name="projected"
            )
            name = self._argument(product, "projected")
            found[product] = self.products[index] = f"{name}_t"
        gone = {self.step[i].args[0] for i in self.products}
        for slice_, base in bases.items():
            if any(
                u in self.step and u not in gone and self.step.index(u) not in self.products
                for u in slice_.users
            ):
                found[base] = self.names[slice_] = f"{self._argument(base, self.graph.variable(base))}_t"
        return found

    def _step_lines(self) -> list[str]:
        printer, lines = Printer("F", None), []
        joined = {self.step[i].args[0] for i in self.rest}
        for index, node in enumerate(self.step):
            if node in joined:
                continue
            if index in self.rest:
                state = node.args[0].args[0][1]
                product = f"F.linear({self._operand(state)}, {self._operand(self.rest[index])})"
                text = f"{self.products[index]} + {product}"
            elif index in self.products:
                self.names[node] = self.products[index]
                continue
            else:
                text, _ = printer.call(node, lambda arg, level: self._operand(arg))
            self.names[node] = self._fresh(self.loop.variable(self.graph, index))
            lines.append(f"{self.names[node]} = {text}")
        return lines

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


def _last_part(graph: Graph, node: Node) -> str:
    path = graph.state.get(node)
    return (
        "_".join(path.split(".")[-2:])
        if path
        else graph.variable(node)
        if node.op == "call_function"
        else node.name
    )
