"""What the kernel of a recurrence calls its tensors, and where in them the slice of each step
lies.

The kernel gets the address of the first step's slice; from one step to the next it goes on by as
many elements as lie together in a slice, upwards or downwards."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from kernel_lsp.rewrite.codegen.core.body import UniqueNames
from kernel_lsp.rewrite.codegen.core.ir import Operand
from kernel_lsp.rewrite.codegen.recurrence.facts import Recurrence
from kernel_lsp.rewrite.graph import Graph
from kernel_lsp.rewrite.loops.results import Result


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOrder:
    """How the steps follow each other in a tensor: the same for all tensors of one path."""

    dim: int
    size: str
    """How many slices the tensor has; nothing is between two of dimension 0."""
    sign: str
    """``+`` or ``-``: where the next slice lies."""


class TensorAddresses:
    """Names and addresses, for kernel and launcher alike."""

    def __init__(self, graph: Graph, found: Recurrence) -> None:
        self.graph, self.found, self.loop = graph, found, found.loop
        self.region = region = found.lowered.region
        taken = [
            "out",
            "n_steps",
            "n_elements",
            "n_inner",
            "step",
            *(dim.name for dim in region.dims),
        ]
        self.names = names = UniqueNames(taken)
        self.old = {operand: operand.name for operand in region.operands}
        self.arguments = {
            operand: names.fresh(_wish(graph, node))
            for operand, node in zip(region.operands, found.inputs, strict=True)
        }
        several = len(found.results) > 1
        self.results = [
            names.fresh(
                f"{self.loop.variable(graph, result.index)}_{'all' if result.every else 'last'}"
            )
            if several
            else "out"
            for result in found.results
        ]
        self.first = next(iter(found.walks))
        self.inner = self._inner_sizes()

    def _inner_sizes(self) -> dict[int, str]:
        """Dimension of the steps -> the number of elements that lie together in a slice of it."""
        dims = [walk.dim for walk in self.found.walks.values()]
        dims += [result.dim for result in self.found.results if result.every]
        inner = sorted({dim for dim in dims if dim})
        named = ["n_inner"] if len(inner) == 1 else [f"n_inner_{dim}" for dim in inner]
        return {0: "n_elements", **dict(zip(inner, named, strict=True))}

    def of(self, item: Operand | Result) -> StepOrder:
        """How the operand or result is walked, step by step."""
        if isinstance(item, Result):
            return StepOrder(
                dim=item.dim, size="n_steps" * bool(item.dim), sign="-" if item.is_backward else "+"
            )
        walk, name = self.found.walks[item], self.arguments[item]
        size = "n_steps" if walk.is_whole else f"{name}_size"
        return StepOrder(
            dim=walk.dim, size=size * bool(walk.dim), sign="-" if walk.is_backward else "+"
        )

    def all(self) -> dict[StepOrder, str]:
        """Every path -> its variable in the kernel."""
        results = [result for result in self.found.results if result.every]
        items: list[Operand | Result] = [*self.found.walks, *results]
        paths = list(dict.fromkeys(self.of(item) for item in items))
        return {path: f"here_{number}" if number else "here" for number, path in enumerate(paths)}

    def at_first_step(self, path: StepOrder) -> str:
        """The text of the offsets at which the first step's slice begins."""
        if not path.dim:
            return "offs"
        inner = self.inner[path.dim]
        return f"offs // {inner} * {path.size} * {inner} + offs % {inner}"

    def from_first_step(self, item: Operand | Result, name: str) -> str:
        """The part of a tensor that begins with the slice of the first step: the kernel gets its
        address."""
        if isinstance(item, Result):
            start = -1 if item.is_backward else 0
        else:
            walk = self.found.walks[item]
            start = -1 if walk.is_whole and walk.is_backward else walk.indices[0]
        dim = item.dim if isinstance(item, Result) else self.found.walks[item].dim
        return f"{name}[{':, ' * dim}{start}:]" if start else name

    def more_sizes(self) -> list[str]:
        """What else the kernel is given: elements that lie together, and slices of tensors read in
        part."""
        parts = [path.size for path in self.all() if path.size not in ("", "n_steps")]
        return [*(name for dim, name in self.inner.items() if dim), *parts]


def _wish(graph: Graph, node: fx.Node) -> str:
    path = graph.state.get(node)
    return (
        path.split(".")[-1]
        if path
        else graph.variable(node)
        if node.op == "call_function"
        else node.name
    )
