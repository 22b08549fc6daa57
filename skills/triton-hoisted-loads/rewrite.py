"""Loads that stand earlier: ahead of a reduction that does not need them, and in front of a loop
that stores.

Triton moves loads out of loops by itself where these store nothing, and moves none over a
reduction."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernel_lsp.rewrite.kernels.effects import REDUCTIONS, is_quiet
from kernel_lsp.rewrite.kernels.harness import WRITES
from kernel_lsp.rewrite.kernels.places import ahead, argument, only_launch, with_comments
from kernel_lsp.rewrite.kernels.source import find_calls, names_in, operand, stored_names
from kernel_lsp.rewrite.kernels.terms import TermReader, bounds, is_pure
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

WAITS = (
    *REDUCTIONS,
    "dot",
    "dot_scaled",
    "cumsum",
    "cumprod",
    "associative_scan",
    "sort",
    "histogram",
    "gather",
)
"""Threads of a program wait for one another here, so that no later load begins before."""
FRESH = ("empty", "empty_like", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like")
FRESH_METHODS = ("new_empty", "new_zeros", "new_ones", "new_full")
VIEWS = (
    "contiguous",
    "view",
    "reshape",
    "flatten",
    "detach",
    "unsqueeze",
    "squeeze",
    "t",
    "transpose",
    "to",
)


@dataclass(frozen=True, slots=True)
class HoistedLoads:
    """Statements that are one load each, in order, and the statement that they go in front of."""

    loads: tuple[ast.Assign, ...]
    to: ast.stmt
    proofs: tuple[Proof, ...]
    guard: str | None = None
    """Loads are made only where this holds: the loop has a first round."""


def match(kernel: Kernel) -> list[KernelMatch]:
    found = []
    if kernel.launched:
        products = [
            n for n in ast.walk(kernel.function) if isinstance(n, ast.For) and find_calls(n, "dot")
        ]
        for block in _blocks(kernel.function):
            if any(block is loop.body for loop in products):
                continue  # Triton loads ahead by itself in such a loop
            found += [_match(kernel, move, "ahead of a reduction") for move in _early(block)]
        for loop in (n for n in ast.walk(kernel.function) if isinstance(n, ast.For)):
            found += [_match(kernel, move, "out of a loop") for move in _invariant(kernel, loop)]
    return found


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    return list(match.data.proofs)


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    move: HoistedLoads = match.data
    indent = " " * move.to.col_offset
    kernel.replace(
        ahead(move.to),
        "".join(f"{_moved_text(kernel, load, move)}\n{indent}" for load in move.loads),
    )
    for load in move.loads:
        kernel.replace(_with_comments(kernel, load), "")


def _match(kernel: Kernel, move: HoistedLoads, where: str) -> KernelMatch:
    names = ", ".join(kernel.text(load.targets[0]) for load in move.loads)
    return KernelMatch(f"{names} {where}", f"loads of {names} {where}", 0.05, data=move)


# --- ahead of a reduction ----------------------------------------------------------------------


def _early(block: Sequence[ast.stmt]) -> Iterator[HoistedLoads]:
    """Loads of one block that can stand in front of its first statement that waits."""
    waiting = next((s for s in block if _waits(s)), None)
    if waiting is None:
        return
    loads: list[ast.Assign] = []
    crossed: list[ast.stmt] = []
    for statement in block[block.index(waiting) :]:
        if _is_load(statement) and crossed and not _meet(statement, crossed):
            assert isinstance(statement, ast.Assign)
            loads.append(statement)
        elif is_quiet(statement):
            crossed.append(statement)
        else:
            break
    if loads:
        claims = (
            proof(
                "nothing in between sets what they read",
                True,
                "no name of theirs is assigned on the way",
            ),
            proof(
                "nothing in between writes to memory",
                True,
                "only arithmetic, reductions and loads lie there",
            ),
        )
        yield HoistedLoads(tuple(loads), waiting, claims)


def _waits(statement: ast.stmt) -> bool:
    made = any(find_calls(statement, name) for name in WAITS)
    return made or (isinstance(statement, ast.For) and bool(find_calls(statement, "load")))


def _meet(load: ast.stmt, crossed: Sequence[ast.stmt]) -> bool:
    """A statement sets what the load reads, or reads or sets what the load sets."""
    own, read = {*stored_names(load)}, names_in(load)
    return any(own & names_in(s) or read & {*stored_names(s)} for s in crossed)


# --- out of a loop -----------------------------------------------------------------------------


def _invariant(kernel: Kernel, loop: ast.For) -> Iterator[HoistedLoads]:
    ends, stores = bounds(loop), [n for name in WRITES for n in find_calls(loop, name)]
    if ends is None or not stores or not all(is_quiet(s, stores=True) for s in loop.body):
        return
    loads = _steady_loads(kernel, loop)
    is_pure_range = all(e is None or is_pure(e) for e in ends)
    if not loads or not is_pure_range or not _goes_up(kernel, ends[2]):
        return
    first, end = ends[0], kernel.text(ends[1])
    claims = [
        proof("each round loads the same", True, "no name of the address is set in the loop"),
        proof(
            "without a round nothing is loaded", True, "the load is masked by the loop's own bounds"
        ),
        only_launch(kernel),
        *(_apart(kernel, load, stores) for load in loads),
    ]
    guard = f"{end} > {kernel.text(first) if first is not None else 0}"
    yield HoistedLoads(tuple(loads), loop, tuple(claims), guard)


def _steady_loads(kernel: Kernel, loop: ast.For) -> list[ast.Assign]:
    """Loads of which nothing changes in the loop."""
    changing = names_in(loop.target).union(*(stored_names(s) for s in loop.body))
    assignments = (s for s in loop.body if isinstance(s, ast.Assign))
    return [s for s in assignments if _is_load(s) and _fits(kernel, loop, s, changing)]


def _fits(kernel: Kernel, loop: ast.For, load: ast.Assign, changing: set[str]) -> bool:
    """It is the only one that sets its name, which nothing outside of the loop reads."""
    (name,) = {*stored_names(load)}
    inside = {id(n) for n in ast.walk(loop)}
    elsewhere = [
        n for n in ast.walk(kernel.function) if isinstance(n, ast.Name) and id(n) not in inside
    ]
    others = [s for s in loop.body if s is not load and name in stored_names(s)]
    before = loop.body[: loop.body.index(load)]
    read = any(name in names_in(s) for s in before)
    return not (
        others or read or any(n.id == name for n in elsewhere) or names_in(load.value) & changing
    )


def _goes_up(kernel: Kernel, step: ast.expr | None) -> bool:
    if step is None or (
        isinstance(step, ast.Constant) and isinstance(step.value, int) and step.value > 0
    ):
        return True
    values = [one.constants.get(step.id) for one in kernel.launched if isinstance(step, ast.Name)]
    return bool(values) and all(type(value) is int and value > 0 for value in values)


def _apart(kernel: Kernel, load: ast.Assign, stores: Sequence[ast.Call]) -> Proof:
    """What the loop writes into is memory that the launcher makes, and what is loaded lies
    elsewhere."""
    reader, launcher = TermReader(kernel.function), TermReader(kernel.launcher)
    source = _bases(kernel, reader, find_calls(load, "load")[0])
    written = set[str]().union(*(_bases(kernel, reader, store) for store in stores))
    made = bool(written) and all(_is_made(kernel, name) for name in written)
    other = (
        len(source) == 1
        and not source & written
        and all(_is_other(launcher, argument(kernel, name)) for name in source)
    )
    known = bool(written) and all(len(_bases(kernel, reader, store)) == 1 for store in stores)
    return proof(
        f"the loop does not write what {kernel.text(load.targets[0])} is loaded from",
        made and other and known,
        f"the launcher makes {', '.join(sorted(written)) or 'nothing'} anew, apart from "
        f"{', '.join(source)}",
    )


def _bases(kernel: Kernel, reader: TermReader, access: ast.Call) -> set[str]:
    """Parameters that an address starts from; none where it is not understood."""
    atoms = (
        {one for product in reader.terms(access.args[0]) for one in product}
        if access.args
        else set()
    )
    return {one.key for one in atoms if one.key in kernel.pointers()}


def _is_made(kernel: Kernel, name: str) -> bool:
    """The launch passes a name that one statement of the launcher sets, to memory that nobody else
    has."""
    given, reader = argument(kernel, name), TermReader(kernel.launcher)
    found = reader.definition(given.id, given) if isinstance(given, ast.Name) else None
    fresh = isinstance(found, ast.Assign) and _makes(found.value)
    return fresh and kernel.pointers()[name].argument is None


def _makes(value: ast.expr) -> bool:
    """A call of torch, or of a tensor's own method, that returns memory nobody had before."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    of_torch = isinstance(value.func.value, ast.Name) and value.func.value.id == "torch"
    return value.func.attr in (FRESH if of_torch else FRESH_METHODS)


def _is_other(reader: TermReader, node: ast.expr | None) -> bool:
    """An argument of the launcher or a view or copy of one, so no view of what that makes."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in VIEWS
    ):
        return _is_other(reader, node.func.value)
    if not isinstance(node, ast.Name):
        return False
    found = reader.definition(node.id, node)
    return isinstance(found, ast.arg) or (
        isinstance(found, ast.Assign) and _is_other(reader, found.value)
    )


# --- statements --------------------------------------------------------------------------------


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for one in ast.walk(node):
        for _, block in ast.iter_fields(one):
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _is_load(statement: ast.stmt) -> bool:
    """``name = tl.load(…)``, perhaps with a cast."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    value = statement.value
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "to"
    ):
        value = value.func.value
    loads = find_calls(statement, "load")
    plain = isinstance(statement.targets[0], ast.Name) and loads == [value]
    return plain and is_quiet(statement) and not any(k.arg == "volatile" for k in loads[0].keywords)


# --- text --------------------------------------------------------------------------------------


def _with_comments(kernel: Kernel, statement: ast.stmt) -> ast.stmt:
    """The statement with the comments above and behind it."""
    lines = kernel.source.text.split("\n")
    last = statement.end_lineno or statement.lineno
    return ast.Pass(
        lineno=statement.lineno
        - len(with_comments(kernel, statement))
        + last
        - statement.lineno
        + 1,
        col_offset=statement.col_offset,
        end_lineno=last,
        end_col_offset=len(lines[last - 1].encode()),
    )


def _moved_text(kernel: Kernel, load: ast.Assign, move: HoistedLoads) -> str:
    """Its text with its comments, and with one more condition in its mask where the move has a
    guard."""
    whole = _with_comments(kernel, load)
    text = kernel.text(whole)
    if move.guard is not None:
        call = find_calls(load, "load")[0]
        mask = operand(call, 1, "mask")
        old = mask or [*call.args, *(k.value for k in call.keywords)][-1]
        said = kernel.text(old)
        new = f"({said}) & ({move.guard})" if mask else f"{said}, mask={move.guard}"
        first, (start, end) = kernel.source.span(whole)[0], kernel.source.span(old)
        text = text[: start - first] + new + text[end - first :]
    return text.replace("\n" + " " * load.col_offset, "\n" + " " * move.to.col_offset)
