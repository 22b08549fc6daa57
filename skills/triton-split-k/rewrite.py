"""The inner loop of a product, cut over several programs, whose shares the launcher adds up."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass

from kernel_lsp.rewrite.cost.operations import REFERENCE
from kernel_lsp.rewrite.kernels import effects, launchers, places
from kernel_lsp.rewrite.kernels.source import (
    find_calls,
    is_set,
    names_in,
    only_value,
    operand,
    stored_names,
)
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

PROCESSORS = REFERENCE.processors
"""Of the device that launches were measured on. Any number is right."""
WAVES = 2
"""Programs for each of them, at most."""
MIN_BLOCKS = 4
"""Turns of the loop that each program should have."""
BENEFIT = 0.12
"""Less than that of other block sizes: how many shares are needed follows from them."""
SPLITS = (2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class SplittableProduct:
    loop: ast.For
    extent: str
    block: str
    total: str
    """The sum's name."""
    adding: ast.stmt
    store: ast.Call
    casts: tuple[ast.stmt, ...]
    """Assignments of the sum in the result's dtype."""
    pointer: str
    """Parameter that the store's address begins with."""
    grid: tuple[str, ...]


def match(kernel: Kernel) -> list[KernelMatch]:
    if len(kernel.source.launches()) != 1 or not kernel.launched or places.language(kernel) is None:
        return []
    found = _find_product(kernel)
    if found is None or not _choices(kernel, found):
        return []
    summary = f"cut the sum over {found.extent} into shares of several programs (split-K)"
    return [KernelMatch(found.total, summary, BENEFIT, data=found)]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    found: SplittableProduct = match.data
    rank, asked = len(found.grid), effects.asked_axes(kernel.function)
    carried = _carried_names(kernel, found)
    return [
        places.only_launch(kernel),
        proof(
            "the loop hands on the sum alone",
            not carried,
            f"{', '.join(sorted(carried))} too"
            if carried
            else f"each turn adds to {found.total} what is its own",
        ),
        proof(
            "the sum begins at 0, in float32", _begins_at_zero(kernel, found), "as tl.zeros says"
        ),
        proof(
            "the result is the sum and nothing else",
            _only_sum(kernel, found),
            f"{found.total} is stored as it is, or in the result's dtype",
        ),
        proof(
            "the kernel writes nothing else, and runs to its end",
            _does_nothing_else(kernel),
            "one tl.store, no atomic operation, no return",
        ),
        proof(
            "the result is a new tensor of the launcher, row after row",
            _fresh(kernel, found),
            "made by torch.empty of its sizes, and untouched before the launch",
        ),
        proof(
            "the grid has room for another axis",
            asked <= set(range(rank)) and _has_free_axis(kernel, rank),
            f"it has {rank}, and the kernel asks for {', '.join(sorted(map(str, asked)))}",
        ),
    ]


def _does_nothing_else(kernel: Kernel) -> bool:
    function = kernel.function
    return (
        len(find_calls(function, "store")) == 1
        and effects.is_straight(function)
        and not effects.waits(function)
        and not effects.helpers(kernel, function)
    )


def _has_free_axis(kernel: Kernel, rank: int) -> bool:
    """No launch uses the axis behind the first ``rank``, and what a launch returns is not used."""
    grids = [one.grid for one in kernel.launched]
    is_free = all(grid is not None and tuple(grid[rank:]) in ((), (1,)) for grid in grids)
    return is_free and places.launch_statement(kernel) is not None


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    return {"splits": list(reversed(_choices(kernel, match.data)))}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    found: SplittableProduct = match.data
    language, function = places.language(kernel), kernel.function
    split, share, count, size = (
        places.fresh(function, n) for n in ("split", "share", "n_splits", "n_elements")
    )
    bounds = (
        f"{split} * {share}, {language}.minimum({split} * {share} + {share}, {found.extent}), "
        f"{found.block}"
    )
    lines = [
        f"{split} = {language}.program_id({len(found.grid)})",
        f"{share} = {language}.cdiv({found.extent}, {found.block} * {count}) * {found.block}",
        "",
    ]
    text = places.indent_lines(lines, found.loop) + " " * found.loop.col_offset
    kernel.replace(places.ahead(found.loop), text)
    assert isinstance(found.loop.iter, ast.Call)
    numbers = found.loop.iter.args
    kernel.replace(places.across(numbers[0], numbers[-1]), bounds)
    value = operand(found.store, 1, "value")
    assert value is not None
    base = _base(found.store)
    assert base is not None
    kernel.replace(base, f"{found.pointer} + {split}.to({language}.int64) * {size}")
    kernel.replace(value, found.total)
    for statement in found.casts:
        kernel.replace(statement, "")
    _launch(kernel, found, count, size, parameters["splits"])


def _launch(
    kernel: Kernel, found: SplittableProduct, count: str, size: str, splits: object
) -> None:
    statement, result = places.launch_statement(kernel), places.argument(kernel, found.pointer)
    assert statement is not None and isinstance(result, ast.Name)
    shares, partial = (places.fresh(kernel.launcher, n) for n in ("shares", "partial"))
    tiles = " * ".join(g if g.endswith(")") or g.isidentifier() else f"({g})" for g in found.grid)
    c = result.id
    before = [
        "# With few tiles each is computed in shares, which are added up in a fixed order.",
        f"{shares} = max(1, min({splits}, {WAVES * PROCESSORS} // max(1, {tiles})))",
        f"{partial} = torch.empty(({shares}, *{c}.shape), dtype=torch.float32, device={c}.device)",
        "",
    ]
    kernel.replace(
        places.ahead(statement), places.indent_lines(before, statement) + " " * statement.col_offset
    )
    kernel.replace(
        places.after(statement), f"\n{' ' * statement.col_offset}{c}.copy_({partial}.sum(0))"
    )
    call = kernel.source.launches()[0].call
    assert isinstance(call.func, ast.Subscript)
    changed = {call.func.slice: f"({', '.join(found.grid)}, {shares})", result: partial}
    places.relaunch(kernel, changed, [f"{count}={shares}", f"{size}={c}.numel()"])
    default = "=1" if kernel.function.args.defaults else ""
    places.add_parameters(kernel, [f"{count}{default}", f"{size}{default}"])


# --- what is recognized --------------------------------------------------------------------------


def _find_product(kernel: Kernel) -> SplittableProduct | None:
    body = kernel.function.body
    loops, stores = [s for s in body if isinstance(s, ast.For)], _store_statements(kernel)
    grid = launchers.grid(kernel.launcher, kernel.function, kernel.source.launches()[0].call)
    if len(loops) != 1 or len(stores) != 1 or grid is None or kernel.source.configs() is not None:
        return None
    (loop,), (store,) = loops, stores
    bounds, adding, base = _bounds(loop), _only_sum_of(loop), _base(store)
    if bounds is None or adding is None or base is None:
        return None
    extent, block = bounds
    if block not in kernel.source.constexprs() or base.id not in kernel.pointers():
        return None
    total, dtype = adding[1], kernel.pointers()[base.id].dtype
    after = body[body.index(loop) + 1 :]
    casts = tuple(s for s in after if isinstance(s, ast.Assign) and _is_sum(s.value, total, dtype))
    return SplittableProduct(loop, extent, block, total, adding[0], store, casts, base.id, grid)


def _store_statements(kernel: Kernel) -> list[ast.Call]:
    """Calls of ``tl.store`` at the top of the kernel."""
    statements = [s for s in kernel.function.body if isinstance(s, ast.Expr)]
    return [call for s in statements for call in find_calls(s, "store") if s.value is call]


def _bounds(loop: ast.For) -> tuple[str, str] | None:
    """(extent, block) of ``for k in range(0, extent, block)``."""
    match loop:
        case ast.For(
            target=ast.Name(),
            iter=ast.Call(
                func=func, args=[ast.Constant(value=0), ast.Name(id=extent), ast.Name(id=block)]
            ),
            orelse=[],
        ) if ast.unparse(func).split(".")[-1] == "range":
            return extent, block
    return None


def _only_sum_of(loop: ast.For) -> tuple[ast.stmt, str] | None:
    sums = [(s, name) for s in loop.body if (name := _sum_of(s)) is not None]
    return sums[0] if len(sums) == 1 else None


def _base(store: ast.Call) -> ast.Name | None:
    """What the address begins with, as a sum."""
    node = operand(store, 0, "pointer")
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        node = node.left
    return node if isinstance(node, ast.Name) else None


def _sum_of(statement: ast.stmt) -> str | None:
    """``total += tl.dot(a, b)`` or ``total = tl.dot(a, b, total)``: total."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=ast.Call() as dot) if (
            dot in find_calls(dot, "dot") and len(dot.args) == 2
        ):
            return (
                None if name in names_in(dot) or any(k.arg == "acc" for k in dot.keywords) else name
            )
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as dot) if dot in find_calls(
            dot, "dot"
        ):
            into = operand(dot, 2, "acc")
            alone = all(name not in names_in(a) for a in dot.args[:2])
            return name if isinstance(into, ast.Name) and into.id == name and alone else None
    return None


def _is_sum(node: ast.expr | None, total: str, dtype: str) -> bool:
    """The sum, also in the result's dtype."""
    match node:
        case ast.Name(id=name):
            return name == total
        case ast.Call(
            func=ast.Attribute(attr="to", value=ast.Name(id=name)), args=[kind], keywords=[]
        ):
            return name == total and ast.unparse(kind).split(".")[-1] in (dtype, "element_ty")
    return False


def _carried_names(kernel: Kernel, found: SplittableProduct) -> set[str]:
    """Names besides the sum that a turn may take from the one before, or that the loop leaves
    behind."""
    changed = {name for s in found.loop.body for name in stored_names(s)}
    known: set[str] = set()
    early: set[str] = set()
    for statement in found.loop.body:
        if statement is found.adding:
            continue
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            early |= {*stored_names(statement)} or {"a branch"}
            continue
        early |= (names_in(statement.value) & changed) - known
        known.add(statement.targets[0].id)
    inside = {id(n) for n in ast.walk(found.loop)}
    outside = {
        n.id for n in ast.walk(kernel.function) if isinstance(n, ast.Name) and id(n) not in inside
    }
    assert isinstance(found.loop.target, ast.Name)
    return (
        early | (outside & (changed | {found.loop.target.id})) | (changed & {found.loop.target.id})
    ) - {found.total}


def _begins_at_zero(kernel: Kernel, found: SplittableProduct) -> bool:
    body = kernel.function.body
    said = [
        s for s in body if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == found.total
    ]
    ahead = bool(said) and body.index(said[0]) < body.index(found.loop)
    sets = [
        n
        for n in ast.walk(kernel.function)
        if isinstance(n, ast.Name) and n.id == found.total and is_set(n)
    ]
    zeros = (
        len(said) == 1
        and isinstance(said[0].value, ast.Call)
        and said[0].value in find_calls(said[0], "zeros")
    )
    return ahead and zeros and len(sets) == 2 and "float32" in ast.unparse(said[0].value)


def _only_sum(kernel: Kernel, found: SplittableProduct) -> bool:
    value = operand(found.store, 1, "value")
    names = {
        s.targets[0].id
        for s in found.casts
        if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
    }
    is_cast = isinstance(value, ast.Name) and value.id in names
    if not is_cast and not _is_sum(value, found.total, kernel.pointers()[found.pointer].dtype):
        return False
    return len(names) == len(found.casts) and not _is_read_elsewhere(kernel, found, names, value)


def _is_read_elsewhere(
    kernel: Kernel, found: SplittableProduct, names: set[str], stored: ast.expr | None
) -> bool:
    """Something but the loop, the casts and the store uses the sum, or sets it among these."""
    own = [found.loop, *found.casts, *([stored] if stored is not None else [])]
    inside = {id(n) for part in own for n in ast.walk(part)}
    body = [s for s in kernel.function.body if s not in found.casts]
    statements = {id(n) for s in body for n in ast.walk(s)}
    return any(
        id(n) not in inside and not (is_set(n) and id(n) in statements)
        for n in ast.walk(kernel.function)
        if isinstance(n, ast.Name) and n.id in names | {found.total}
    )


def _fresh(kernel: Kernel, found: SplittableProduct) -> bool:
    """``torch.empty`` of sizes, beside the launch, which only the launch sees before it is
    whole."""
    given, launch = places.argument(kernel, found.pointer), places.launch_statement(kernel)
    if not isinstance(given, ast.Name) or launch is None:
        return False
    value = only_value(kernel.launcher, given.id)
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "torch.empty":
        return False
    making = _assignment_beside(kernel, launch, value)
    if making is None or _is_named_before(kernel, launch, given.id, making):
        return False
    others = [p for p in kernel.pointers() if p != found.pointer]
    has_plain_keywords = all(k.arg in ("dtype", "device") for k in value.keywords)
    return has_plain_keywords and all(
        launchers.separate(kernel, found.pointer, other) for other in others
    )


def _assignment_beside(kernel: Kernel, launch: ast.stmt, value: ast.Call) -> ast.Assign | None:
    """The assignment of the value that stands before the launch in the same block."""
    blocks = [getattr(n, "body", None) for n in ast.walk(kernel.launcher)]
    block = next((b for b in blocks if isinstance(b, list) and launch in b), [])
    before = block[: block.index(launch)] if block else []
    return next((s for s in before if isinstance(s, ast.Assign) and s.value is value), None)


def _is_named_before(kernel: Kernel, launch: ast.stmt, name: str, making: ast.Assign) -> bool:
    """Whether anything but its making names the tensor before the launch."""
    within = {id(n) for n in ast.walk(making)}
    names = [n for n in ast.walk(kernel.launcher) if isinstance(n, ast.Name) and n.id == name]
    return any(id(n) not in within and n.lineno < launch.lineno for n in names)


def _choices(kernel: Kernel, found: SplittableProduct) -> list[int]:
    """Numbers of shares that keep the device busy and have some turns of the loop each."""
    tiles = [math.prod(one.grid) for one in kernel.launched if one.grid is not None]
    given = [(o.arguments.get(found.extent), o.constants.get(found.block)) for o in kernel.launched]
    known = [
        inner // block
        for inner, block in given
        if isinstance(inner, int) and isinstance(block, int)
    ]
    if not tiles or len(known) < len(given):
        return []
    turns = min(known)
    return [s for s in SPLITS if s * max(tiles) <= WAVES * PROCESSORS and turns >= s * MIN_BLOCKS]
