"""A program for each row or tile becomes a loop over them, in as many programs as a device runs at
a time."""

from __future__ import annotations

import ast
import math
import textwrap
from dataclasses import dataclass

from kernel_lsp.rewrite.cost.operations import REFERENCE
from kernel_lsp.rewrite.kernels import effects, launchers, places
from kernel_lsp.rewrite.kernels.source import axis_of, find_calls, names_in, sources
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

PROCESSORS = REFERENCE.processors
"""Of the device that launches were measured on. Any number is right."""
MIN_TURNS = 2
"""Tiles for each program of the smallest grid; with fewer nothing is saved."""
PRODUCTS, ROWS = (1, 2, 3, 4), (8, 4, 16, 2)
"""Programs for each multiprocessor, a guess first."""
NONE = 0
"""Instead: a program for each tile, as it was. A choice, since little is gained where anything
is."""
FEW_TURNS = 32
"""Of a product's inner loop: with more, what comes before and after it is a small part."""
BENEFIT = 0.05
ASKING = ("program", "atomic_", "inline_", "while ")
"""In the text of what a function does beside computing: it knows its program, or waits for another
one."""


@dataclass(frozen=True, slots=True)
class PersistentGrid:
    grid: tuple[str, ...]
    """The extents of the launch's grid, as expressions of the launcher; axis 0 runs fastest."""
    hoisted: tuple[ast.stmt, ...]
    """Statements of the kernel that are the same for all tiles."""
    rest: tuple[ast.stmt, ...]


@dataclass(frozen=True, slots=True)
class LoopNames:
    """Names that the kernel gets."""

    tile: str
    """The tile of a turn of the loop."""
    count: str
    """How many tiles there are."""
    across: str | None
    """How many along axis 0; None: the grid has one axis."""

    @property
    def places(self) -> dict[int, str]:
        """Axis -> where on it the tile is."""
        if self.across is None:
            return {0: self.tile}
        return {0: f"({self.tile} % {self.across})", 1: f"({self.tile} // {self.across})"}

    @property
    def extents(self) -> dict[int, str]:
        """Axis -> how many tiles it has."""
        if self.across is None:
            return {0: self.count}
        return {0: self.across, 1: f"({self.count} // {self.across})"}


def match(kernel: Kernel) -> list[KernelMatch]:
    grid = _grid_to_loop_over(kernel)
    if grid is None:
        return []
    body = [s for s in kernel.function.body if not _is_text(s)]
    hoisted = _same_for_all(kernel, body)
    rest = tuple(s for s in body if s not in hoisted)
    loads = sum(len(find_calls(s, "load")) for s in hoisted)
    if not loads and not _short_sums(kernel):
        return []  # a program more costs less than a turn of a loop
    what = f"rows, and load {loads} tensors once" if loads else "tiles"
    summary = f"as many programs as run at a time, which loop over {what}"
    return [KernelMatch("grid", summary, BENEFIT, data=PersistentGrid(grid, tuple(hoisted), rest))]


def _grid_to_loop_over(kernel: Kernel) -> tuple[str, ...] | None:
    """The extents of the only launch's grid, where the kernel asks for its place in it."""
    launches = kernel.source.launches()
    if len(launches) != 1 or not kernel.launched or kernel.source.configs() is not None:
        return None
    if not find_calls(kernel.function, "program_id") or places.language(kernel) is None:
        return None
    if _persistent(kernel):
        return None
    return launchers.grid(kernel.launcher, kernel.function, launches[0].call)


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    waits, axes = effects.waits(kernel.function), effects.asked_axes(kernel.function)
    grids = [one.grid for one in kernel.launched]
    rank, askers = len(match.data.grid), effects.calls_that_may(kernel, ASKING)
    fits = [grid is not None and tuple(grid[rank:]) in ((), (1,), (1, 1)) for grid in grids]
    tiles = [math.prod(grid) for grid in grids if grid is not None]
    return [
        places.only_launch(kernel),
        proof(
            "no program waits for another or adds to what another has",
            not waits,
            "the kernel has no atomic operation and no assembly" if not waits else ", ".join(waits),
        ),
        proof(
            "its place in the grid is asked in its own text alone",
            not askers,
            f"it calls {', '.join(askers)}" if askers else "no function that it calls knows it, "
                                                           "or waits",
        ),
        proof(
            "a program runs from its first statement to its last",
            effects.is_straight(kernel.function) and not _leaves_a_loop(kernel),
            "no return, no while, no function in it",
        ),
        proof(
            "the grid's axes are those that the kernel asks for",
            axes <= set(range(rank)) and all(fits),
            f"the launch has {rank}, the kernel asks for {', '.join(map(str, axes))}",
        ),
        proof(
            "the launch is a statement of its own",
            places.launch_statement(kernel) is not None,
            "what it returns is not used",
        ),
        proof(
            "there are more tiles than a device runs at a time",
            bool(tiles) and min(tiles) >= MIN_TURNS * PROCESSORS * min(_residents(kernel)),
            f"{', '.join(map(str, tiles))} of them",
        ),
    ]  # fmt: skip


def _leaves_a_loop(kernel: Kernel) -> bool:
    return any(isinstance(n, ast.Break | ast.Continue) for n in ast.walk(kernel.function))


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {"programs_per_processor": [*_residents(kernel), NONE]}
    if find_calls(kernel.function, "dot"):
        loops = [n for n in ast.walk(kernel.function) if isinstance(n, ast.For)]
        return {**found, "flatten": [False, True]} if len(loops) == 1 else found
    return {**found, "num_stages": [1, 2, 3]}


def _residents(kernel: Kernel) -> tuple[int, ...]:
    return PRODUCTS if find_calls(kernel.function, "dot") else ROWS


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    found: PersistentGrid = match.data
    if parameters["programs_per_processor"] == NONE:
        return
    names = _loop_names(kernel, found)
    renamed = _renamed_parameters(kernel, found)
    lines = [line for s in found.hoisted for line in places.with_comments(kernel, s)]
    lines.append(_loop_head(kernel, names, parameters))
    lines += [f"    {here} = {name}" for name, here in renamed.items()]
    for statement in found.rest:
        text = "\n".join(_of_tile(kernel, statement, names, renamed))
        lines += textwrap.indent(text, "    ").split("\n")
    body = [s for s in kernel.function.body if not _is_text(s)]
    first = _with_comments_above(kernel, body[0])
    kernel.replace(places.across(first, body[-1]), places.indent_lines(lines, body[0]))
    _launch(kernel, found, names, parameters["programs_per_processor"])


def _loop_names(kernel: Kernel, found: PersistentGrid) -> LoopNames:
    tile, count = (places.fresh(kernel.function, n) for n in ("tile", "n_tiles"))
    across = places.fresh(kernel.function, "n_across") if len(found.grid) == 2 else None
    return LoopNames(tile, count, across)


def _loop_head(kernel: Kernel, names: LoopNames, parameters: dict[str, object]) -> str:
    language = places.language(kernel)
    options = "".join(
        f", {name}={value}"
        for name, value in parameters.items()
        if name in ("flatten", "num_stages") and value not in (False, 1)
    )
    bounds = f"{language}.program_id(0), {names.count}, {language}.num_programs(0){options}"
    return f"for {names.tile} in {language}.range({bounds}):"


def _renamed_parameters(kernel: Kernel, found: PersistentGrid) -> dict[str, str]:
    """Parameter that a tile sets -> its name within the loop."""
    nodes = (n for s in found.rest for n in ast.walk(s))
    set_by_tile = {n.id for n in nodes if isinstance(n, ast.Name) and not _read(n)}
    return {
        name: places.fresh(kernel.function, f"{name}_here")
        for name in _parameters(kernel)
        if name in set_by_tile
    }


def _launch(kernel: Kernel, found: PersistentGrid, names: LoopNames, resident: object) -> None:
    statement = places.launch_statement(kernel)
    assert statement is not None and isinstance(resident, int)
    tiles = places.fresh(kernel.launcher, "tiles")
    product = " * ".join(
        g if g.endswith(")") or len(found.grid) == 1 else f"({g})" for g in found.grid
    )
    programs = PROCESSORS * resident
    each = "one" if resident == 1 else str(resident)
    lines = [
        f"{tiles} = {product}  # {each} for each of {PROCESSORS} multiprocessors at a time",
        "",
    ]
    kernel.replace(
        places.ahead(statement), places.indent_lines(lines, statement) + " " * statement.col_offset
    )
    call = kernel.source.launches()[0].call
    assert isinstance(call.func, ast.Subscript)
    added = [f"{names.count}={tiles}"]
    if names.across is not None:
        added.append(f"{names.across}={found.grid[0]}")
    places.relaunch(kernel, {call.func.slice: f"(min({tiles}, {programs}),)"}, added)
    default = "=1" if kernel.function.args.defaults else ""
    places.add_parameters(
        kernel, [f"{name}{default}" for name in (names.count, names.across) if name]
    )


# --- the kernel's body ----------------------------------------------------------------------------


def _same_for_all(kernel: Kernel, body: list[ast.stmt]) -> list[ast.stmt]:
    """Top-level assignments that no tile changes. Loads only of memory that the kernel does not
    write."""
    stored: dict[str, int] = {}
    for node in ast.walk(kernel.function):
        if isinstance(node, ast.Name) and not _read(node):
            stored[node.id] = stored.get(node.id, 0) + 1
    known: set[str] = set()
    found: list[ast.stmt] = []
    for statement in body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        single = (
            isinstance(target, ast.Name)
            and stored[target.id] == 1
            and target.id not in _parameters(kernel)
        )
        changing = (names_in(statement.value) & stored.keys()) - known
        if not single or changing or _of_program(statement) or not _is_unwritten(kernel, statement):
            continue
        assert isinstance(target, ast.Name)
        known.add(target.id)
        found.append(statement)
    return found


def _short_sums(kernel: Kernel) -> bool:
    """A product whose inner loop has few turns."""
    turns = []
    for node in ast.walk(kernel.function):
        match node:
            case ast.For(iter=ast.Call(args=[_, ast.Name(id=extent), ast.Name(id=block)])) if (
                find_calls(node, "dot")
            ):
                for one in kernel.launched:
                    inner, size = one.arguments.get(extent), one.constants.get(block)
                    if not isinstance(inner, int) or not isinstance(size, int):
                        return False
                    turns.append(inner // size)
    return bool(turns) and max(turns) <= FEW_TURNS


def _of_program(statement: ast.stmt) -> bool:
    return any(
        find_calls(statement, name) for name in ("program_id", "num_programs", "rand", "atomic_add")
    )


def _is_unwritten(kernel: Kernel, statement: ast.stmt) -> bool:
    """What it loads is memory that no program stores into."""
    loads = find_calls(statement, "load")
    if not loads:
        return True
    pointers = kernel.pointers().keys()
    writes = [n for n in ast.walk(kernel.function) if isinstance(n, ast.Call) and _is_store(n)]
    addresses = [one.args[0] if one.args else one for one in writes]
    written = {n for one in addresses for n in sources(kernel.function, one) & pointers}
    read = {n for one in loads for n in sources(kernel.function, one) & pointers}
    known = bool(read) and not effects.helpers(kernel, kernel.function)
    return known and all(
        launchers.separate(kernel, one, other) for one in written for other in read
    )


def _is_store(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "store"


def _of_tile(
    kernel: Kernel, statement: ast.stmt, names: LoopNames, renamed: dict[str, str]
) -> list[str]:
    """A statement's lines with the program's number as the tile's."""
    edits: list[tuple[ast.AST, str]] = []
    inside: set[int] = set()
    language = places.language(kernel)
    place, number = names.places, names.extents
    for node in ast.walk(statement):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="to", value=ast.Call() as inner), args=[dtype]
            ) if inner in find_calls(inner, "program_id"):
                edits.append(
                    (
                        node,
                        f"{language}.cast({place[axis_of(inner)].strip('()')}, "
                        f"{ast.unparse(dtype)})",
                    )
                )
                inside.add(id(inner))
            case ast.Call() if id(node) not in inside and node in find_calls(node, "program_id"):
                edits.append((node, _as_asked(kernel, statement, node, place[axis_of(node)])))
            case ast.Call() if node in find_calls(node, "num_programs"):
                edits.append((node, number[axis_of(node)]))
            case ast.Name(id=name) if name in renamed:
                edits.append((node, renamed[name]))
    lines = places.with_comments(kernel, statement)
    return lines if not edits else _edit_statement(kernel, statement, edits)


def _as_asked(kernel: Kernel, statement: ast.stmt, asked: ast.Call, place: str) -> str:
    """A tensor where its methods are used: the interpreter's loops count in plain numbers."""
    if not isinstance(statement, ast.Assign) or statement.value is not asked:
        return place
    target = statement.targets[0]
    methods = (n.value for n in ast.walk(kernel.function) if isinstance(n, ast.Attribute))
    if any(
        isinstance(n, ast.Name) and isinstance(target, ast.Name) and n.id == target.id
        for n in methods
    ):
        return (
            f"{places.language(kernel)}.cast({place.strip('()')}, {places.language(kernel)}.int32)"
        )
    return place.strip("()")


def _edit_statement(
    kernel: Kernel, statement: ast.stmt, edits: list[tuple[ast.AST, str]]
) -> list[str]:
    """The statement's lines with some of its nodes replaced."""
    source = kernel.source
    first = _with_comments_above(kernel, statement)
    start, end = source.span(first)[0], source.span(statement)[1]
    text = source.text[:end]
    for (a, b), new in sorted(((source.span(node), new) for node, new in edits), reverse=True):
        text = text[:a] + new + text[b:]
    rest = kernel.source.text[end:].split("\n", 1)[0]
    return textwrap.dedent(" " * statement.col_offset + text[start:] + rest).split("\n")


def _with_comments_above(kernel: Kernel, statement: ast.stmt) -> ast.stmt:
    lines = kernel.source.text.split("\n")
    first = statement.lineno
    while lines[first - 2].lstrip().startswith("#"):
        first -= 1
    made = places.across(statement, statement)
    made.lineno = first
    return made


def _parameters(kernel: Kernel) -> list[str]:
    arguments = kernel.function.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _read(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _persistent(kernel: Kernel) -> bool:
    """Its programs loop over the grid already."""
    return any(
        find_calls(n.iter, "num_programs")
        for n in ast.walk(kernel.function)
        if isinstance(n, ast.For)
    )
