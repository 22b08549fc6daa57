"""A loop whose inputs are multiplied before it, as a function of plain PyTorch with the person's
names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.launching import unique_name
from kernel_lsp.rewrite.cost import operations as cost
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph, is_op
from kernel_lsp.rewrite.loops.hoist_places import HoistPlace, places_of
from kernel_lsp.rewrite.loops.open_cells import is_fused_cell
from kernel_lsp.rewrite.loops.results import Result
from kernel_lsp.rewrite.loops.unrolled import UnrolledLoop
from kernel_lsp.rewrite.loops.walks import SliceWalk
from kernel_lsp.rewrite.printing.calls import Printer

aten = torch.ops.aten


class HoistedLoop:
    """The loop as a function of the products, the states before it, and the weights inside of
    it."""

    def __init__(self, graph: Graph, loop: UnrolledLoop) -> None:
        self.graph, self.loop, self.step = graph, loop, loop.steps[1]
        self.names: dict[fx.Node, str] = {}
        self.inputs: dict[fx.Node, str] = {}
        """What the function takes -> the name of its argument."""

    def write(
        self, results: Sequence[Result], before: fx.Node
    ) -> tuple[GeneratedSource, list[fx.Node]]:
        """The function's source and the nodes that it is called with."""
        walked = self._walked(before)
        starts = self._starts()
        lines = self._in_place(self._step_lines())
        lists = {
            result.index: f"every_{self.loop.variable(self.graph, result.index)}"
            for result in results
            if result.every
        }
        lines += [f"{lists[index]}.append({self.names[self.step[index]]})" for index in lists]
        lines += self._hand_on()
        ends = [self._end(result, lists) for result in results]
        items, tensors = (", ".join(texts) for texts in zip(*walked, strict=True))
        walk = f"zip({tensors}, strict=True)" if len(walked) > 1 else tensors
        function = unique_name(self.graph, "recurrent_steps")
        text = [
            source.wrap_items(f"def {function}(", list(self.inputs.values()), "):"),
            f'    """{self.loop.length} steps; what each input adds to its product is computed '
            f'already."""',
            *(f"    {name} = {start}" for name, start in starts),
            *(f"    {name} = []" for name in lists.values()),
            f"    for {items} in {walk}:",
            *(f"        {line}" for line in lines),
            f"    return {', '.join(ends)}",
        ]
        kernel = GeneratedSource(
            name=function,
            imports=("import torch", "import torch.nn.functional as F"),
            definitions="\n".join(text),
            summary="the steps of a recurrence behind one product for all inputs",
            is_triton=False,
            supports_autograd=True,
            launches=self._launches(),
        )
        return kernel, list(self.inputs)

    def _hand_on(self) -> list[str]:
        """The line that gives states their values of the next step."""
        old = [self.names[self.loop.steps[0][index]] for _, index in self.loop.carried]
        new = [self.names[self.step[index]] for _, index in self.loop.carried]
        moved = [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
        if not moved:
            return []
        left, right = (", ".join(names) for names in zip(*moved, strict=True))
        return [f"{left} = {right}"]

    def _end(self, result: Result, lists: Mapping[int, str]) -> str:
        """What is returned of a result: all steps, or the state after the last."""
        if result.every:
            return _stack_text(result, lists[result.index])
        return self.names[self.loop.steps[0][result.index]]

    def _launches(self) -> int:
        launched = sum(cost.seconds(self.graph, node) > 0 for node in self.step)
        in_a_step = launched - len(self.products) + len(self.rest)
        return self.loop.length * max(in_a_step, 1)

    def _starts(self) -> list[tuple[str, str]]:
        """Names for the states. One whose first value is also something else gets it before the
        loop."""
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

    def _walked(self, before: fx.Node) -> list[tuple[str, str]]:
        """The name of each slice of a step, and what the loop still walks through for it, as the
        source of all slices in order; products are made here."""
        found = []
        places = places_of(self.graph, self.loop)
        self.products: dict[int, str] = {}
        self.rest: dict[int, fx.Node] = {}
        for index, place in places.items():
            name = self._argument(self._product(index, place, before), "projected")
            self.products[index] = f"{name}_t"
            found.append(
                (f"{name}_t", _slices(name, _dim_of_product(self.graph, place.walk), place.walk))
            )
        gone = {self.step[i] for i in places} | {
            p.joined for p in places.values() if p.joined is not None
        }
        for walk in self.loop.walks:
            readers = {user for node in walk.slices[1] for user in node.users if user in self.step}
            if readers - gone:
                name = self._argument(self._read(walk, before), self.graph.variable(walk.base))
                self.names.update(dict.fromkeys(walk.slices[1], self._fresh(f"{name}_t")))
                found.append((self.names[walk.slices[1][0]], _slices(name, walk.dim, walk)))
        return found

    def _read(self, walk: SliceWalk, before: fx.Node) -> fx.Node:
        """The part of the tensor that the loop reads."""
        if walk.is_whole:
            return walk.base
        ends = min(walk.indices), max(walk.indices) + 1
        return self.graph.call(aten.slice.Tensor, (walk.base, walk.dim, *ends), before=before)

    def _product(self, index: int, place: HoistPlace, before: fx.Node) -> fx.Node:
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
        # Its parts are multiplied where they are.
        joined = {self.step[i].args[0] for i in self.rest}
        for index, node in enumerate(self.step):
            if node in joined:
                continue
            if index in self.rest:
                product = (
                    f"F.linear({self._beside(node.args[0])}, {self._operand(self.rest[index])})"
                )
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

    def _fused(self, node: fx.Node) -> str:
        """The kernel of a cell behind its products: too many arguments for one line."""
        indent, left = " " * 8, f"{self.loop.variable(self.graph, self.step.index(node))} = "
        items = [self._operand(arg) for arg in node.args]
        text = source.wrap_items(f"{left}torch.ops.{node.target}(", items, ")", indent=indent)
        return text.removeprefix(f"{indent}{left}")

    def _beside(self, joined: fx.Node) -> str:
        """What is concatenated with the slice."""
        slices = {node for walk in self.loop.walks for node in walk.slices[1]}
        parts = [self._operand(part) for part in joined.args[0] if part not in slices]
        return parts[0] if len(parts) == 1 else f"torch.cat(({', '.join(parts)}), dim=-1)"

    def _operand(self, node: fx.Node) -> str:
        if node not in self.names:
            self.names[node] = self._argument(node, _last_part(self.graph, node))
        return self.names[node]

    def _argument(self, node: fx.Node, wish: str) -> str:
        if node not in self.inputs:
            self.inputs[node] = self._fresh(wish)
        return self.inputs[node]

    def _fresh(self, wish: str) -> str:
        taken = {*self.names.values(), *self.inputs.values()}
        return next(n for n in (wish, *(f"{wish}_{i}" for i in range(2, 99))) if n not in taken)


def _dim_of_product(graph: Graph, walk: SliceWalk) -> int:
    """Where the steps are in the product: it has its features last, so they go first if they were
    there."""
    return walk.dim if walk.dim < graph.val(walk.base).dim() - 1 else 0


def _slices(name: str, dim: int, walk: SliceWalk) -> str:
    """The slices in the order of the steps; a tensor is the sequence of those along dimension 0."""
    every = f"{name}.unbind({dim})" if dim else name
    return f"reversed({every})" if walk.is_backward else every


def _stack_text(result: Result, every: str) -> str:
    dim = f", dim={result.dim}" if result.dim else ""
    return f"torch.stack({every}{'[::-1]' * result.is_backward}{dim})"


def _last_part(graph: Graph, node: fx.Node) -> str:
    if path := graph.state.get(node):
        return "_".join(path.split(".")[-2:])
    return graph.variable(node) if node.op == "call_function" else node.name
