"""Two loops over a row, of which the second needs what the first found, become one.

Maximum and sum of exponentials: the sum is kept relative to the largest number so far. Mean and
sum of squares around it: each lane keeps its own (Welford 1962), put together as Chan, Golub and
LeVeque do (1979)."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.rewrite.kernels import places
from kernel_lsp.rewrite.kernels.row_loops import (
    PLAIN,
    Accumulation,
    Looped,
    accumulations,
    find_loop,
    values_of,
)
from kernel_lsp.rewrite.kernels.source import find_calls, names_in, stored_names
from kernel_lsp.rewrite.kernels.values import KernelValues
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

BENEFIT = 0.1
KNOWN, NUMBERS = "the number of the first loop", "the numbers of both loops"
"""Names that no kernel has, for values."""


@dataclass(frozen=True, slots=True)
class _NeighborLoops:
    """Two neighboring loops over one row that reduce one number each."""

    found: Looped
    loops: tuple[ast.For, ast.For]
    first: Accumulation
    second: Accumulation
    inits: tuple[ast.Assign, ast.Assign]
    """Where the two accumulations begin."""
    between: tuple[ast.stmt, ...]


@dataclass(frozen=True, slots=True)
class LoopPair(_NeighborLoops):
    """Such loops that one loop can compute."""

    middle: ast.stmt | None
    """What makes one number of what the first loop found; None: it is one already."""
    known: str
    """That number."""
    function: str | None
    """``tl.exp`` as it is written; None: a variance."""
    values: KernelValues

    @property
    def whole(self) -> ast.stmt:
        return places.across(*self.loops)


def match(kernel: Kernel) -> list[KernelMatch]:
    found = find_loop(kernel)
    if found is None or places.language(kernel) is None:
        return []
    pairs = [
        _pair(kernel, found, *loops) for loops in zip(found.loops, found.loops[1:], strict=False)
    ]
    return [
        KernelMatch(f"{p.first.name}+{p.second.name}", _summary(p), BENEFIT, data=p)
        for p in pairs
        if p is not None
    ]


def _summary(pair: LoopPair) -> str:
    what = "mean and variance" if pair.function is None else "maximum and sum of exponentials"
    return f"find {what} in one pass ({pair.first.name}, {pair.second.name})"


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    pair: LoopPair = match.data
    region = [*pair.loops, *pair.between]
    stores = [call for statement in region for call in find_calls(statement, "store")]
    starts = [ast.unparse(init.value) for init in pair.inits]
    what = (
        "exp(x - maximum)"
        if pair.function
        else "the square of x - mean, 0 behind the end of the row"
    )
    return [
        proof(
            "each statement is understood",
            not pair.values.strange,
            "; ".join(pair.values.strange[:2])
            or "each gives a lane what follows from the same lane",
        ),
        proof(
            "both loops reduce the same numbers",
            True,
            f"loads and arithmetic are equal; {what} is added up",
        ),
        proof(
            "nothing is stored before the second loop ends",
            not stores,
            "neither loop has a tl.store",
        ),
        proof("the sums begin at nothing, in float32", _begins(pair), ", ".join(starts)),
        proof(
            "what lies between the loops does not need the second",
            all(
                pair.second.name not in names_in(s) for s in pair.between if s is not pair.inits[1]
            ),
            f"{pair.second.name} is only read afterwards",
        ),
    ]


def _begins(pair: LoopPair) -> bool:
    first, second = (pair.values.of(init.value) for init in pair.inits)
    wide = all(
        isinstance(one.value, ast.Constant | ast.UnaryOp)
        or ast.unparse(one.value).startswith("float(")
        or "float32" in ast.unparse(one.value)
        for one in pair.inits
    )
    empty = 0.0 if pair.function is None else -float("inf")
    local = {n for s in pair.between for n in stored_names(s)} & names_in(pair.inits[1].value)
    return (
        wide
        and not local
        and (pair.values.behind(first), pair.values.behind(second)) == (empty, 0.0)
    )


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    pair: LoopPair = match.data
    if pair.function is None:
        _variance(kernel, pair)
    else:
        _softmax(kernel, pair)


# --- what is written -----------------------------------------------------------------------------


def _softmax(kernel: Kernel, pair: LoopPair) -> None:
    language = places.language(kernel)
    largest, total, exp = pair.first.name, pair.second.name, pair.function
    larger, shift = places.fresh(kernel.function, "larger"), places.fresh(kernel.function, "origin")
    mixed = pair.second.scalar and not pair.first.scalar
    sums = places.fresh(kernel.function, "sums") if mixed else total
    now, lines = _current(kernel, pair)
    reduced = f"{language}.max({now}, axis=0)" if pair.first.scalar else now
    added = f"{exp}({now} - {shift})"
    lines += [
        f"{larger} = {language}.maximum({largest}, {reduced})",
        "# While there is nothing but -inf, -inf - -inf must not be computed.",
        f'{shift} = {language}.where({larger} == float("-inf"), 0.0, {larger})',
        f"{sums} = {sums} * {exp}({largest} - {shift}) + "
        + (f"{language}.sum({added}, axis=0)" if pair.first.scalar else added),
        f"{largest} = {larger}",
    ]
    scaled = f"{exp}({largest} - {pair.known})"
    end = ["# NaN where the row is -inf alone.", f"{total} *= {scaled}"]
    moved: list[ast.stmt] = [pair.inits[1]] if pair.inits[1] in pair.between else []
    if mixed:
        end[1] = f"{total} = {language}.sum({sums} * {scaled}, axis=0)"
        zeros = f"{language}.zeros([{pair.found.block}], dtype={language}.float32)"
        moved = [ast.parse(f"{sums} = {zeros}").body[0]]
    _replace_loops(kernel, pair, moved, lines, end)


def _variance(kernel: Kernel, pair: LoopPair) -> None:
    language, block, extent = places.language(kernel), pair.found.block, pair.found.extent
    names = [
        places.fresh(kernel.function, n)
        for n in ("lane_mean", "delta", "inside", "counts", "squares")
    ]
    mean, delta, inside, counts, squares = names
    squares = squares if pair.second.scalar else pair.second.name
    now, lines = _current(kernel, pair)
    start = ast.unparse(pair.loops[0].target)
    lines += [
        f"{inside} = {start} + {language}.arange(0, {block}) < {extent}",
        f"{delta} = {now} - {mean}",
        f"{mean} += {language}.where({inside}, {delta} * (1.0 / ({start} // {block} + 1)), 0.0)",
        f"{squares} += {language}.where({inside}, {delta} * ({now} - {mean}), 0.0)",
    ]
    lanes = f"{language}.arange(0, {block})"
    assert pair.middle is not None
    middle = [
        "# Each lane has its own mean, of so many numbers, and the squares around it.",
        f"{counts} = ({extent} + {block} - 1 - {lanes}) // {block}",
        f"{pair.known} = {language}.sum({mean} * {counts}, axis=0) / {extent}",
    ]
    spread = f"{squares} + {counts} * ({mean} - {pair.known}) * ({mean} - {pair.known})"
    end = [
        f"{pair.second.name} = "
        + (f"{language}.sum({spread}, axis=0)" if pair.second.scalar else spread)
    ]
    zeros = f"{language}.zeros([{block}], dtype={language}.float32)"
    kernel.replace(pair.inits[0], f"{mean} = {zeros}")
    moved: list[ast.stmt] = []
    if pair.inits[1] in pair.between or pair.second.scalar:
        moved.append(ast.parse(f"{squares} = {zeros}").body[0])
    _replace_loops(kernel, pair, moved, lines, end, {pair.middle: middle})


def _current(kernel: Kernel, pair: LoopPair) -> tuple[str, list[str]]:
    """(name of what a turn of the first loop reduces, the lines up to there)."""
    lines = [
        line
        for statement in pair.loops[0].body
        if statement is not pair.first.statement
        for line in places.with_comments(kernel, statement)
    ]
    if isinstance(pair.first.term, ast.Name):
        return pair.first.term.id, lines
    name = places.fresh(kernel.function, "current")
    return name, [*lines, f"{name} = {ast.unparse(pair.first.term)}"]


def _replace_loops(
    kernel: Kernel,
    pair: LoopPair,
    moved: Sequence[ast.stmt],
    lines: Sequence[str],
    end: Sequence[str],
    instead: dict[ast.stmt, list[str]] | None = None,
) -> None:
    """Both loops and what lies between: ``moved``, one loop of ``lines``, what lay between,
    ``end``."""
    kept = {
        statement: (instead or {}).get(statement) or places.with_comments(kernel, statement)
        for statement in pair.between
        if statement is not pair.inits[1]
    }
    loop = pair.loops[0]
    text = [
        *(ast.unparse(statement) for statement in moved),
        f"for {ast.unparse(loop.target)} in {kernel.text(loop.iter)}:",
        *(f"    {line}" for line in lines),
        *(line for one in kept.values() for line in one),
        *end,
    ]
    kernel.replace(pair.whole, places.indent_lines(text, pair.whole))


# --- what is recognized --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _KnownNumber:
    """One number of what the first loop found."""

    name: str
    made_by: ast.stmt | None
    """None: it is one number already."""


def _pair(kernel: Kernel, found: Looped, one: ast.For, two: ast.For) -> LoopPair | None:
    near = _neighbors(found, (one, two))
    known = _find_known(near) if near is not None else None
    if near is None or known is None:
        return None
    values, numbers = _numbers_of(kernel, near, known)
    away = ast.BinOp(ast.Name(NUMBERS, ast.Load()), ast.Sub(), ast.Name(known.name, ast.Load()))
    exponential = None
    if near.first.kind == "max":
        exponential = _find_exponential(values, two, away, numbers[1])
        if exponential is None:
            return None
    elif not (_adds_squares(values, near, away, numbers) and _is_unused(near, known)):
        return None
    return LoopPair(
        found,
        near.loops,
        near.first,
        near.second,
        near.inits,
        near.between,
        known.made_by,
        known.name,
        exponential,
        values,
    )


def _neighbors(found: Looped, loops: tuple[ast.For, ast.For]) -> _NeighborLoops | None:
    first, second = (_only_accumulation(found, loop) for loop in loops)
    if first is None or second is None:
        return None
    inits = _init(found, first.name), _init(found, second.name)
    if inits[0] is None or inits[1] is None:
        return None
    if second.kind != "sum" or (first.scalar and not second.scalar):
        return None
    start, end = (found.body.index(loop) for loop in loops)
    between = found.body[start + 1 : end]
    if not all(isinstance(s, PLAIN) and len(stored_names(s)) == 1 for s in between):
        return None
    return _NeighborLoops(found, loops, first, second, (inits[0], inits[1]), between)


def _only_accumulation(found: Looped, loop: ast.For) -> Accumulation | None:
    sums = accumulations(found, loop)
    return sums[0] if sums is not None and len(sums) == 1 else None


def _init(found: Looped, name: str) -> ast.Assign | None:
    """The one assignment outside of the loops."""
    said = [s for s in found.body if not isinstance(s, ast.For) and name in stored_names(s)]
    return said[0] if len(said) == 1 and isinstance(said[0], ast.Assign) else None


def _find_known(near: _NeighborLoops) -> _KnownNumber | None:
    first = near.first
    if first.kind == "max" and first.scalar:
        return _KnownNumber(first.name, None)
    for statement in near.between:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name), *_], value=value):
                number = value if first.kind != "sum" else _dividend(value, near.found.extent)
                taken = number if first.scalar else _reduced(number, first.kind)
                if isinstance(taken, ast.Name) and taken.id == first.name:
                    return _KnownNumber(name, statement)
    return None


def _dividend(value: ast.expr, divisor: str) -> ast.expr | None:
    """What is divided by that name; None for everything else."""
    match value:
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Name(id=name)) if name == divisor:
            return left
    return None


def _reduced(value: ast.expr | None, kind: str) -> ast.expr | None:
    """What ``tl.sum`` or ``tl.max`` is called with; None for everything else."""
    if isinstance(value, ast.Call) and value in find_calls(value, kind) and value.args:
        return value.args[0]
    return None


def _is_unused(near: _NeighborLoops, known: _KnownNumber) -> bool:
    """Apart from the mean nothing reads the sum, so that it need not be known."""
    makers = [near.first.statement, *([known.made_by] if known.made_by is not None else [])]
    own = {id(n) for s in makers for n in ast.walk(s)}
    return all(
        id(n) in own or isinstance(n.ctx, ast.Store)
        for s in near.found.body
        for n in ast.walk(s)
        if isinstance(n, ast.Name) and n.id == near.first.name
    )


def _numbers_of(
    kernel: Kernel, near: _NeighborLoops, known: _KnownNumber
) -> tuple[KernelValues, list[int]]:
    """The values after both loops, and the number that each loop reduces."""
    values = values_of(kernel, near.found)
    for statement in near.found.body[: near.found.body.index(near.loops[0])]:
        values.run(statement)
    numbers: list[int] = []
    parts = ((near.first, near.between), (near.second, ()))
    for loop, (one, after) in zip(near.loops, parts, strict=True):
        assert isinstance(loop.target, ast.Name)
        values.advance(loop.target.id)
        for statement in loop.body:
            if statement is one.statement:
                numbers.append(values.of(one.term))
            else:
                values.run(statement)
        for statement in after:
            values.run(statement)
        values.names[known.name] = values.of(ast.Name(KNOWN, ast.Load()))
    values.names[NUMBERS] = numbers[0]
    return values, numbers


def _find_exponential(
    values: KernelValues, loop: ast.For, away: ast.expr, added: int
) -> str | None:
    """The function whose value of ``away`` the loop adds up, as it is written."""
    for call in (*_calls(loop, "exp"), *_calls(loop, "exp2")):
        if values.of(ast.Call(call.func, [away], [])) == added:
            return ast.unparse(call.func)
    return None


def _adds_squares(
    values: KernelValues, near: _NeighborLoops, away: ast.expr, numbers: Sequence[int]
) -> bool:
    """The first loop adds up numbers, the second the squares of ``away``; neither adds anything
    behind the row's end."""
    if near.first.kind != "sum" or values.behind(numbers[0]) != 0.0:
        return False
    squared = ast.BinOp(away, ast.Mult(), away)
    for call in _calls(near.loops[1], "where"):
        if len(call.args) != 3:
            continue
        condition, _, nothing = call.args
        if values.of(condition) not in values.ends or values.behind(values.of(nothing)) != 0.0:
            continue
        kept = ast.Call(call.func, [condition, away, nothing], [])
        forms = (
            ast.Call(call.func, [condition, squared, nothing], []),
            ast.BinOp(kept, ast.Mult(), kept),
        )
        if numbers[1] in map(values.of, forms):
            return True
    return False


def _calls(loop: ast.For, name: str) -> list[ast.Call]:
    return [
        c
        for c in ast.walk(loop)
        if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute) and c.func.attr == name
    ]
