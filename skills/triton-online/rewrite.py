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
class LoopPair:
    """Two neighboring loops over one row."""

    found: Looped
    loops: tuple[ast.For, ast.For]
    first: Accumulation
    second: Accumulation
    inits: tuple[ast.Assign, ast.Assign]
    """Where the two accumulations begin."""
    between: tuple[ast.stmt, ...]
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


def _pair(kernel: Kernel, found: Looped, one: ast.For, two: ast.For) -> LoopPair | None:
    sums = [accumulations(found, loop) for loop in (one, two)]
    if any(s is None or len(s) != 1 for s in sums):
        return None
    first, second = (s[0] for s in sums if s)
    inits = [_init(found, a.name) for a in (first, second)]
    at = [found.body.index(loop) for loop in (one, two)]
    between = found.body[at[0] + 1 : at[1]]
    if second.kind != "sum" or (first.scalar and not second.scalar) or None in inits:
        return None
    if not all(isinstance(s, PLAIN) and len(stored_names(s)) == 1 for s in between):
        return None
    middle, known = _find_known(found, between, first)
    if known is None:
        return None
    values, forms = _compare_loops(kernel, found, (one, two), (first, second), between, known)
    if values is None or (first.kind == "sum" and not _is_unused(found, first, middle)):
        return None
    starts = (inits[0], inits[1])
    assert starts[0] is not None and starts[1] is not None
    return LoopPair(
        found,
        (one, two),
        first,
        second,
        (starts[0], starts[1]),
        between,
        middle,
        known,
        forms,
        values,
    )


def _init(found: Looped, name: str) -> ast.Assign | None:
    """The one assignment outside of the loops."""
    said = [s for s in found.body if not isinstance(s, ast.For) and name in stored_names(s)]
    return said[0] if len(said) == 1 and isinstance(said[0], ast.Assign) else None


def _find_known(
    found: Looped, between: Sequence[ast.stmt], first: Accumulation
) -> tuple[ast.stmt | None, str | None]:
    """(what makes one number of the first loop's, its name)."""
    if first.kind == "max" and first.scalar:
        return None, first.name
    for statement in between:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        value = statement.value
        if first.kind == "sum":
            if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Div):
                continue
            if not isinstance(value.right, ast.Name) or value.right.id != found.extent:
                continue
            value = value.left
        if first.scalar:
            taken = value
        elif isinstance(value, ast.Call) and value in find_calls(value, first.kind) and value.args:
            taken = value.args[0]
        else:
            continue
        if isinstance(taken, ast.Name) and taken.id == first.name:
            return statement, statement.targets[0].id
    return None, None


def _is_unused(found: Looped, first: Accumulation, middle: ast.stmt | None) -> bool:
    """Apart from the mean nothing reads the sum, so that it need not be known."""
    own = {id(n) for s in (first.statement, middle) if s is not None for n in ast.walk(s)}
    return all(
        id(n) in own or isinstance(n.ctx, ast.Store)
        for s in found.body
        for n in ast.walk(s)
        if isinstance(n, ast.Name) and n.id == first.name
    )


def _compare_loops(
    kernel: Kernel,
    found: Looped,
    loops: tuple[ast.For, ast.For],
    sums: tuple[Accumulation, Accumulation],
    between: Sequence[ast.stmt],
    known: str,
) -> tuple[KernelValues | None, str | None]:
    """(values, the exponential's function): None where the second loop adds up something else."""
    values = values_of(kernel, found)
    for statement in found.body[: found.body.index(loops[0])]:
        values.run(statement)
    numbers = []
    for loop, one in zip(loops, sums, strict=True):
        assert isinstance(loop.target, ast.Name)
        values.advance(loop.target.id)
        for statement in loop.body:
            if statement is one.statement:
                numbers.append(values.of(one.term))
            else:
                values.run(statement)
        for statement in between if loop is loops[0] else ():
            values.run(statement)
        values.names[known] = values.of(ast.Name(KNOWN, ast.Load()))
    values.names[NUMBERS] = numbers[0]
    away = ast.BinOp(ast.Name(NUMBERS, ast.Load()), ast.Sub(), ast.Name(known, ast.Load()))
    if sums[0].kind == "max":
        for call in (c for name in ("exp", "exp2") for c in _calls(loops[1], name)):
            if values.of(ast.Call(call.func, [away], [])) == numbers[1]:
                return values, ast.unparse(call.func)
        return None, None
    squared = ast.BinOp(away, ast.Mult(), away)
    if sums[0].kind == "sum" and values.behind(numbers[0]) == 0.0:
        for call in _calls(loops[1], "where"):
            condition, _, nothing = call.args if len(call.args) == 3 else (None, None, None)
            if condition is None or nothing is None or values.of(condition) not in values.ends:
                continue
            kept = ast.Call(call.func, [condition, away, nothing], [])
            forms = (
                ast.Call(call.func, [condition, squared, nothing], []),
                ast.BinOp(kept, ast.Mult(), kept),
            )
            if values.behind(values.of(nothing)) == 0.0 and numbers[1] in map(values.of, forms):
                return values, None
    return None, None


def _calls(loop: ast.For, name: str) -> list[ast.Call]:
    return [
        c
        for c in ast.walk(loop)
        if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute) and c.func.attr == name
    ]
