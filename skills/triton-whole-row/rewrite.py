"""A row that several loops read again and again is read once, where it fits into one block of
registers.

The loops stay for longer rows: the launcher decides by the row's length.
"""

from __future__ import annotations

import ast
import copy

from kernel_lsp.rewrite.kernels import launchers, places
from kernel_lsp.rewrite.kernels.blocks import adjustable
from kernel_lsp.rewrite.kernels.grids import OF_LOOP
from kernel_lsp.rewrite.kernels.row_loops import Looped, accumulations, find_loop, once, values_of
from kernel_lsp.rewrite.kernels.source import find_calls, names_in
from kernel_lsp.rewrite.kernels.values import REDUCTIONS, KernelValues, LoadPlace, PointerArguments
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

LONGEST = 16384
"""Numbers of a row that one program holds: 32 a thread with 16 warps."""
NUMBERS_A_THREAD = 16
DEFAULT_WARPS = 4
"""Triton's own, where a launch says nothing."""


def match(kernel: Kernel) -> list[KernelMatch]:
    found = find_loop(kernel)
    if found is None or not kernel.launched or len(kernel.source.launches()) != 1:
        return []
    if places.package(kernel) is None or kernel.source.configs() is not None:
        return []
    values = values_of(kernel, found)
    inside = once(values, found)
    repeated = _repeated_loads(values)
    if not repeated:
        return []
    accesses = len(values.accesses)
    names = ", ".join(sorted({one.base for one in repeated}))
    summary = f"read a row of {names} once and keep it in registers"
    return [KernelMatch("row", summary, len(repeated) / accesses / 2, data=(found, values, inside))]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    found, values, inside = match.data
    return [
        places.only_launch(kernel),
        *_loop_proofs(kernel, found, values),
        proof(
            "no access of the loops goes beyond the row, and none stores one number for a "
            "piece of it",
            all(_of_columns(values, one) for one in inside),
            "each has a mask that is false behind the row's end, or loads one number",
        ),
        proof(
            "no load meets what was stored elsewhere",
            _in_order(kernel, found, values),
            "the launcher makes what is stored, or both are at one place of the row",
        ),
        *_launch_proofs(kernel, found),
    ]


def _loop_proofs(kernel: Kernel, found: Looped, values: KernelValues) -> list[Proof]:
    blocks = {b.name for b in adjustable(kernel) if b.places and b.why == OF_LOOP and b.masked}
    handed = [accumulations(found, loop) for loop in found.loops]
    return [
        proof(
            f"{found.block} may be as long as the row",
            found.block in blocks,
            "a loop advances by it, and every load and store that depends on it is masked",
        ),
        proof(
            "each statement is understood",
            not values.strange,
            "; ".join(values.strange[:2]) or "each gives a lane what follows from the same lane",
        ),
        proof(
            "loops hand on sums and extremes alone",
            all(one is not None for one in handed),
            ", ".join(a.name for one in handed for a in one or ()) or "they hand on nothing",
        ),
        proof(
            "lanes behind the end of the row contribute nothing",
            all(values.behind(number) == REDUCTIONS[name] for name, number in values.reduced),
            "what is reduced holds 0, or an infinity, where the mask is false",
        ),
    ]


def _launch_proofs(kernel: Kernel, found: Looped) -> list[Proof]:
    extents = [one.arguments.get(found.extent) for one in kernel.launched]
    now = [one.constants.get(found.block) for one in kernel.launched]
    given = [places.argument(kernel, name) for name in (found.extent, found.block)]
    is_statement = places.launch_statement(kernel) is not None
    return [
        proof(
            "observed rows fit",
            all(isinstance(n, int) and 0 < n <= LONGEST for n in extents),
            f"{found.extent} is {_list_numbers(extents)}, at most {LONGEST}",
        ),
        proof(
            "a row is more than one block now",
            all(
                isinstance(b, int) and isinstance(n, int) and b < n
                for b, n in zip(now, extents, strict=True)
            ),
            f"{found.block} is {_list_numbers(now)}",
        ),
        proof(
            "the launcher can ask for the row's length",
            is_statement and all(launchers.repeatable(g) for g in given),
            f"it passes {' and '.join(ast.unparse(g) for g in given if g is not None)}",
        ),
    ]


def _list_numbers(numbers: list[object]) -> str:
    return ", ".join(map(str, dict.fromkeys(numbers)))


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    found = match.data[0]
    longest = max(int(one.arguments[found.extent]) for one in kernel.launched)
    padded = 1 << (longest - 1).bit_length()
    guess = max(1, min(16, padded // (32 * NUMBERS_A_THREAD)))
    # Numbers a thread, else it spills.
    few = [w for w in (1, 2, 4, 8, 16, 32) if 1 <= padded // (32 * w) <= 128]
    return {"num_warps": list(dict.fromkeys([guess, *few]))}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    found, values, _ = match.data
    first, last = found.loops[0], found.loops[-1]
    flag = places.fresh(kernel.function, "WHOLE_ROW")
    looping = places.with_comments(kernel, places.across(first, last))
    repeated = {one.place for one in _repeated_loads(values)}
    lines = [
        f"if {flag}:  # one block holds the row, so it is read once",
        *(f"    {line}" for line in _flat(kernel, found, values_of(kernel, found), repeated)),
        "else:",
        *(f"    {line}" if line else line for line in looping),
    ]
    region = places.across(first, last)
    kernel.replace(region, places.indent_lines(lines, region))
    _launch(kernel, found, flag, parameters["num_warps"])


def _launch(kernel: Kernel, found: Looped, flag: str, warps: object) -> None:
    language, package = places.language(kernel), places.package(kernel)
    extent, block = (places.argument(kernel, name) for name in (found.extent, found.block))
    statement = places.launch_statement(kernel)
    assert extent is not None and block is not None and statement is not None
    length, fits = ast.unparse(extent), places.fresh(kernel.launcher, "whole_row")
    line = f"{fits} = 0 < {length} <= {LONGEST}  # what one block holds"
    kernel.replace(
        places.ahead(statement),
        places.indent_lines([line, ""], statement) + " " * statement.col_offset,
    )
    changed = {block: f"{package}.next_power_of_2({length}) if {fits} else {kernel.text(block)}"}
    added = [f"{flag}={fits}"]
    said = kernel.source.launches()[0].keyword("num_warps")
    if said is not None:
        changed[said] = f"{warps} if {fits} else {kernel.text(said)}"
    elif warps != DEFAULT_WARPS:
        added.append(f"num_warps={warps} if {fits} else {DEFAULT_WARPS}")
    places.relaunch(kernel, changed, added)
    places.add_parameters(kernel, [f"{flag}: {language}.constexpr = False"])


# --- what is read twice ------------------------------------------------------------------------


def _repeated_loads(values: KernelValues) -> list[PointerArguments]:
    """Loads beyond the first of one place, nothing having been stored there in between."""
    seen: set[LoadPlace] = set()
    found = []
    for access in values.accesses:
        if access.kind == "load" and not values.uniform(access.pointer):
            found += [access] if access.place in seen else []
            seen.add(access.place)
    return found


def _of_columns(values: KernelValues, access: PointerArguments) -> bool:
    if values.uniform(access.pointer):
        return access.kind == "load"
    return access.mask is not None and values.behind(access.mask) == 0


def _in_order(kernel: Kernel, found: Looped, values: KernelValues) -> bool:
    """A load and a store that may meet in memory are at one and the same place of each row, so
    that it does not matter how many columns are loaded before the first is stored."""
    alike = KernelValues(found.extent, frozenset(), frozenset())
    alike.names = dict.fromkeys(kernel.pointers(), alike.of(ast.Name("memory", ast.Load())))
    once(alike, found)
    accesses = [*zip(values.accesses, alike.accesses, strict=True)]
    return all(
        (load.base, store.base) in values.apart or where.pointer == there.pointer
        for load, where in accesses
        for store, there in accesses
        if (load.kind, store.kind) == ("load", "store")
    )


# --- the loops as a straight line ----------------------------------------------------------------


def _flat(
    kernel: Kernel, found: Looped, values: KernelValues, repeated: set[LoadPlace]
) -> list[str]:
    """The statements from the first loop to the last, each loop's body once, from column 0 on."""
    first, last = (found.body.index(found.loops[i]) for i in (0, -1))
    for statement in found.body[:first]:
        values.run(statement)
    lines: list[str] = []
    for statement in found.body[first : last + 1]:
        for one in statement.body if isinstance(statement, ast.For) else [statement]:
            lines += _once(kernel, one, _Reused(kernel, values, found.starts(), repeated))
    return lines


def _once(kernel: Kernel, statement: ast.stmt, reused: _Reused) -> list[str]:
    """The lines of a statement that is not repeated, with loads that came before by their names."""
    values = reused.values
    said = reused.visit(copy.deepcopy(statement))
    target = said.targets[0] if isinstance(said, ast.Assign) else None
    before = values.names.get(target.id) if isinstance(target, ast.Name) else None
    values.run(said)
    if isinstance(target, ast.Name) and before == values.names[target.id]:
        return reused.lines
    same = ast.unparse(said) == ast.unparse(statement)
    return [
        *reused.lines,
        *(places.with_comments(kernel, statement) if same else [ast.unparse(said)]),
    ]


class _Reused(ast.NodeTransformer):
    """``start`` is 0, and what a name holds already is not loaded again."""

    def __init__(
        self, kernel: Kernel, values: KernelValues, starts: set[str], repeated: set[LoadPlace]
    ) -> None:
        self.kernel, self.values, self.starts, self.repeated = kernel, values, starts, repeated
        self.lines: list[str] = []
        """What has to be loaded before the statement."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        value = node.value
        if isinstance(value, ast.Call) and value in find_calls(value, "load"):
            self.generic_visit(value)
            node.value = self._held(value) or value
            return node
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(side, ast.Name) and side.id in self.starts:
                return other
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if node not in find_calls(node, "load"):
            return node
        if (held := self._held(node)) is not None:
            return held
        access = self.values.loads[self.values.of(node)]
        if access.place not in self.repeated:
            return node
        taken = [*self.values.names, *names_in(self.kernel.function)]
        wanted = access.base.removesuffix("_ptr") + "_row"
        name = next(n for n in (wanted, *(f"{wanted}_{i}" for i in range(2, 99))) if n not in taken)
        assign = ast.Assign([ast.Name(name, ast.Store())], node, lineno=0)
        self.lines.append(ast.unparse(assign))
        self.values.run(assign)
        return ast.Name(name, ast.Load())

    def _held(self, load: ast.Call) -> ast.expr | None:
        """The name of what was loaded from there before, with this load's own number where it is
        masked."""
        number = self.values.of(load)
        place = self.values.loads[number].place
        for name, known in self.values.names.items():
            if known == number:
                return ast.Name(name, ast.Load())
            if (before := self.values.loads.get(known)) is not None and before.place == place:
                given = {k.arg: k.value for k in load.keywords}
                mask, other = given.get("mask"), given.get("other")
                if mask is None or other is None:
                    return (
                        ast.Name(name, ast.Load())
                        if len(load.args) == 1 and other is None
                        else None
                    )
                assert isinstance(load.func, ast.Attribute)
                where = ast.Attribute(load.func.value, "where", ast.Load())
                return ast.Call(where, [mask, ast.Name(name, ast.Load()), other], [])
        return None
