"""The launcher of a recurrence's kernel: it allocates the results, and tells sizes and first
addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.ir import Operand
from kernel_lsp.rewrite.codegen.recurrence.addresses import TensorAddresses
from kernel_lsp.rewrite.loops.results import Result


class Launcher:
    def __init__(self, paths: TensorAddresses) -> None:
        self.paths, self.graph, self.found = paths, paths.graph, paths.found
        self.loop, self.region = self.found.loop, self.found.lowered.region

    def write(self, choice: Mapping[str, Any], sizes: list[str]) -> str:
        """The launcher's text; ``sizes`` are the sizes that the kernel reads."""
        found, region, walk = self.found, self.region, self.found.walks[self.paths.first]
        first, slice_ = self.paths.arguments[self.paths.first], self._slice(self.paths.first)
        n_steps = f"{first}.shape[{walk.dim}]" if walk.is_whole else str(self.loop.length)
        arguments = [
            *(
                self.paths.from_first_step(operand, name) if operand in found.walks else name
                for operand, name in self.paths.arguments.items()
            ),
            *(
                self.paths.from_first_step(result, name) if result.every else name
                for result, name in zip(found.results, self.paths.results, strict=True)
            ),
            "n_steps",
            "n_elements",
            *self.paths.more_sizes(),
            *sizes,
            f"BLOCK_SIZE={choice['BLOCK_SIZE']}",
            f"STEPS_AHEAD={choice['num_stages']}",
            f"num_warps={choice['num_warps']}",
        ]
        lines = [
            f"def {region.name}({', '.join(self.paths.arguments.values())}):",
            *self._described(),
            *(f"    {name} = {name}.contiguous()" for name in self._tensors()),
            f"    n_steps, n_elements = {n_steps}, {slice_}.numel()",
            *(
                self._allocated(*pair)
                for pair in zip(found.results, self.paths.results, strict=True)
            ),
            *self._size_lines(sizes),
            "    if n_elements > 0:  # a grid of zero programs cannot be launched",
            f"        grid = ({source.blocks('n_elements', choice['BLOCK_SIZE'])},)",
            source.wrap_items(f"_{region.name}_kernel[grid](", arguments, ")", indent="        "),
            f"    return {', '.join(self.paths.results)}",
            "",
        ]
        return "\n".join(lines)

    def _slice(self, operand: Operand) -> str:
        """One slice of a tensor that is walked through, as source of the launcher."""
        return f"{self.paths.arguments[operand]}[{':, ' * self.found.walks[operand].dim}0]"

    def _allocated(self, result: Result, name: str) -> str:
        dtype = self.graph.val(self.loop.steps[1][result.index]).dtype
        for operand, walk in self.found.walks.items():
            if result.every and walk.is_whole and walk.dim == result.dim:
                return (
                    f"    {name} = torch.empty_like({self.paths.arguments[operand]}, dtype={dtype})"
                )
        first, walk = self.paths.arguments[self.paths.first], self.found.walks[self.paths.first]
        shape = [
            f"{first}.shape[{dim}]"
            for dim in range(self.graph.val(walk.base).dim())
            if dim != walk.dim
        ]
        if result.every:
            shape.insert(result.dim, "n_steps")
        sizes = f"({', '.join(shape)}{',' if len(shape) == 1 else ''})"
        return f"    {name} = {first}.new_empty({sizes}, dtype={dtype})"

    def _described(self) -> list[str]:
        states = [self.paths.arguments[operand] for operand in self.found.states]
        shapes = [
            f"    {name}: {tuple(self.graph.val(node).shape)}{', before the first step' * (name in states)}"
            for name, node in zip(self.paths.arguments.values(), self.found.inputs, strict=True)
        ]
        shapes += [
            f"    returns {name}: the state after {'every' if result.every else 'the last'} step"
            for name, result in zip(self.paths.results, self.found.results, strict=True)
        ]
        walk = self.found.walks[self.paths.first]
        way = f"dimension {walk.dim}{', from the end' * walk.is_backward}"
        return [f'    """A recurrence over {way}, element by element.', "", *shapes, '    """']

    def _tensors(self) -> list[str]:
        return [self.paths.arguments[operand] for operand in self.region.operands if operand.axes]

    def _size_lines(self, sizes: list[str]) -> list[str]:
        """Sizes in terms of one step's operands: a slice is ``x[0]`` here."""
        spelled = {
            self.paths.old[operand]: self._slice(operand) if operand in self.found.walks else name
            for operand, name in self.paths.arguments.items()
        }
        pattern = re.compile(r"\b(" + "|".join(map(re.escape, spelled)) + r")\b")
        lines = [
            f"    {name} = {self._long_as(dim)}.stride({dim})"
            for dim, name in self.paths.inner.items()
            if dim
        ]
        for operand, walk in self.found.walks.items():
            if (size := self.paths.of(operand).size) not in ("", "n_steps"):
                lines.append(f"    {size} = {self.paths.arguments[operand]}.shape[{walk.dim}]")
        return lines + [
            f"    {dim.name} = {pattern.sub(lambda found: spelled[found.group()], dim.source)}"
            for dim in self.region.dims
            if dim.name in sizes
        ]

    def _long_as(self, dim: int) -> str:
        """A tensor whose dimension ``dim`` is that of the steps."""
        walked = [
            self.paths.arguments[operand]
            for operand, walk in self.found.walks.items()
            if walk.dim == dim
        ]
        made = [
            n
            for r, n in zip(self.found.results, self.paths.results, strict=True)
            if r.every and r.dim == dim
        ]
        return [*walked, *made][0]
