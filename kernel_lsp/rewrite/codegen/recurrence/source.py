"""The kernel of a recurrence: each program carries a block of the state's elements through all
steps.

Slices are read once, results are written once, where the program collects them, and nothing else
touches memory. Loads do not depend on the state, so they run several steps ahead."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.codegen.core.body import Body, UniqueNames
from kernel_lsp.rewrite.codegen.core.index import sizes_in
from kernel_lsp.rewrite.codegen.core.ir import Operand, Value, topological
from kernel_lsp.rewrite.codegen.pointwise.flat import flat_load, index_lines, narrow
from kernel_lsp.rewrite.codegen.recurrence.addresses import TensorAddresses
from kernel_lsp.rewrite.codegen.recurrence.facts import wanted_operations


class RecurrenceKernel:
    def __init__(self, paths: TensorAddresses) -> None:
        self.paths, self.graph, self.found = paths, paths.graph, paths.found
        self.loop, self.region = self.found.loop, self.found.lowered.region

    def write(self) -> tuple[str, list[str]]:
        """(the kernel's text, the names of the sizes that it reads)."""
        lines = [
            "    start = tl.program_id(0).to(tl.int64) * BLOCK_SIZE  # int64: offsets can "
            "pass 2**31",
            "    offs = start + tl.arange(0, BLOCK_SIZE)",
            "    mask = offs < n_elements  # the last block reaches past the end",
        ]
        if narrow(self.region):
            lines += [f"    {line}" for line in index_lines(self.region)]
        lines += self._body()
        sizes = sizes_in("\n".join(lines), self.region.dims)
        header = [
            *(f"{name}_ptr" for name in [*self.paths.arguments.values(), *self.paths.results]),
            "n_steps",
            "n_elements",
            *self.paths.more_sizes(),
            *(f"{name}: tl.constexpr" for name in sizes),
            "BLOCK_SIZE: tl.constexpr",
            "STEPS_AHEAD: tl.constexpr",
        ]
        doc = "Each program carries BLOCK_SIZE elements of the state through all steps."
        return source.kernel_text(f"_{self.region.name}_kernel", header, doc, lines), sizes

    def _body(self) -> list[str]:
        region, found, paths = self.region, self.found, self.paths.all()
        taken = ["n_steps", "n_elements", *paths.values(), *self.paths.more_sizes()]
        outer = Body(UniqueNames([*taken, *(dim.name for dim in region.dims)]), self._load)
        values = {
            v.operand: v
            for v in topological(o.value for o in region.outputs)
            if v.operand is not None
        }
        held: dict[Operand, str] = {}
        for operand, index in found.states.items():
            held[operand] = outer.names.fresh(self.loop.variable(self.graph, index))
            outer.add(f"{held[operand]} = {self._load(operand)}{_widen_operand(operand)}")
            outer.known[values[operand]] = held[operand]
        for operand, value in values.items():
            if operand not in found.states and operand not in found.walks:
                name = outer.names.fresh(self.paths.arguments[operand])
                outer.add(f"{name} = {self._load(operand)}{_widen_operand(operand)}")
                outer.known[value] = name
        for path, name in paths.items():
            outer.add(
                f"{name} = {self.paths.at_first_step(path)}  # in the slice of the current step, "
                f"in int64"
            )
        outer.add(
            "# What a step reads does not depend on the state, so it is fetched several "
            "steps ahead."
        )
        outer.add("for _ in tl.range(0, n_steps, num_stages=STEPS_AHEAD):")
        inner = self._step(outer.inner(), values, held)
        for path, name in paths.items():
            inner.add(f"{name} {path.sign}= {self.paths.inner[path.dim]}")
        carried = {index: held[operand] for operand, index in found.states.items()}
        for result, name in zip(found.results, self.paths.results, strict=True):
            if not result.every:
                outer.add(f"tl.store({name}_ptr + offs, {carried[result.index]}, mask=mask)")
        after = sum(not result.every for result in found.results)
        split = len(outer.lines) - after
        return [*outer.lines[:split], *inner.lines, *outer.lines[split:]]

    def _step(self, inner: Body, values: dict[Operand, Value], held: dict[Operand, str]) -> Body:
        """The statements of one step."""
        found, paths = self.found, self.paths.all()
        for operand in found.walks:
            name = inner.known[values[operand]] = inner.names.fresh(
                f"{self.paths.arguments[operand]}_t"
            )
            inner.add(f"{name} = {self._load(operand)}{_widen_operand(operand)}")
        texts = {}
        for index in wanted_operations(self.loop):
            value = found.values[index]
            named = replace(
                value, hint=f"{self.loop.variable(self.graph, index)}_next", inline=False
            )
            texts[index] = inner.known[value] = str(inner.text(named))
        for result, name in zip(found.results, self.paths.results, strict=True):
            if result.every:
                place = paths[self.paths.of(result)]
                inner.add(f"tl.store({name}_ptr + {place}, {texts[result.index]}, mask=mask)")
        old, new = [held[o] for o in found.states], [texts[i] for i in found.states.values()]
        inner.add(f"{', '.join(old)} = {', '.join(new)}")
        return inner

    def _load(self, operand: Operand) -> str:
        name = self.paths.arguments[operand]
        if operand in self.found.walks:
            return f"tl.load({name}_ptr + {self.paths.all()[self.paths.of(operand)]}, mask=mask)"
        return flat_load(operand, self.region, "offs").replace(
            f"({operand.name}_ptr", f"({name}_ptr"
        )


def _widen_operand(operand: Operand) -> str:
    return ".to(tl.float32)" if operand.dtype in ("float16", "bfloat16") else ""
