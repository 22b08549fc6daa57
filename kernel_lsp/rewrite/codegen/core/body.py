"""Statements of a kernel: names for values, loads with their masks, one line for each operation."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.codegen.core.ir import REDUCTIONS, Operand, Scalar, Value
from kernel_lsp.rewrite.codegen.core.ops import RENDER, atom, bare

LOW_PRECISION = ("float16", "bfloat16")
RESERVED = {
    "tl",
    "triton",
    "torch",
    "mask",
    "offs",
    "cols",
    "rows",
    "row",
    "start",
    "out",
    "pid",
    "range",
    "index",
    "lead",
    "quads",
    "seed",
    "turn",
    "threads",
    "drawn",
}


class UniqueNames:
    """Names for one function: a hint, made unique by counting."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = RESERVED | set(taken)

    def fresh(self, hint: str) -> str:
        """A name like the hint that is not taken, and is taken from now on."""
        stem = identifier(hint)
        name, count = stem, 1
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name


def identifier(text: str) -> str:
    """A lower-case Python name close to the text."""
    name = "".join(char if char.isalnum() else "_" for char in text.lower()).strip("_") or "value"
    return f"v_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


MAX_INLINE = 72
"""Longest expression that still reads at a glance."""
Reducer: TypeAlias = "Callable[[Body, Value], tuple[str, ...]]"


def _refuse(_: Body, value: Value) -> tuple[str, ...]:
    raise RewriteError(f"a reduction ({value.op}) cannot stand in a pointwise kernel")


class Body:
    """Collects the lines of one block; ``load`` renders the address and mask of an operand."""

    def __init__(
        self,
        names: UniqueNames,
        load: Callable[[Operand], str],
        reduce: Reducer = _refuse,
        indent: str = "    ",
    ) -> None:
        self.names, self.load, self.reduce, self.indent = names, load, reduce, indent
        self.lines: list[str] = []
        self.known: dict[Value, str] = {}
        self.pairs: dict[Value, tuple[str, ...]] = {}
        """Reduction -> the variables that hold its results."""
        self._holders: dict[str, str] = {}

    def add(self, line: str) -> None:
        """Adds a line at the current indentation."""
        self.lines.append(self.indent + line)

    def need(self, *values: Value) -> None:
        """Emit whatever the values require and is not known yet."""
        for value in values:
            if value not in self.known:
                self.need(*value.values)
                self.known[value] = self._emit(value)

    def text(self, arg: Value | Scalar | None) -> str | None:
        """The value as an expression, after the lines that it needs; None for None."""
        if isinstance(arg, Value):
            self.need(arg)
            return self.known[arg]
        return None if arg is None else number(arg)

    def define(self, hint: str, expression: str) -> str:
        """A new variable, or the one that already holds the same expression."""
        if expression not in self._holders:
            self._holders[expression] = self.names.fresh(hint)
            self.add(f"{self._holders[expression]} = {expression}")
        return self._holders[expression]

    def assign(self, hint: str, expression: str) -> str:
        """A variable that later lines may change."""
        name = self.names.fresh(hint)
        self.add(f"{name} = {expression}")
        return name

    def inner(self) -> Body:
        """The body of a loop: it sees what is known here and keeps its own values to itself."""
        block = Body(self.names, self.load, self.reduce, self.indent + "    ")
        block.known, block.pairs = dict(self.known), dict(self.pairs)
        block._holders = dict(self._holders)
        return block

    def _emit(self, value: Value) -> str:
        if value.operand is not None:
            widen = ".to(tl.float32)" if value.operand.dtype in LOW_PRECISION else ""
            return self.define(value.hint or value.operand.name, self.load(value.operand) + widen)
        if value.op == "detach":
            return self.known[value.values[0]]
        if value.op == "count":
            return value.hint or "n_cols"
        if value.op == "part":
            pair, index = value.args
            assert isinstance(pair, Value) and isinstance(index, int)
            return self.pairs[pair][index]
        if value.op in REDUCTIONS:
            self.pairs[value] = self.reduce(self, value)
            return self.pairs[value][0]
        expression = self._render(value)
        if value.inline:
            return atom(expression)
        return self.define(value.hint or value.op, expression)

    def _render(self, value: Value) -> str:
        """The operation on its arguments; inlined ones get a name where they would be repeated or
        long."""
        for arg in value.values:
            if arg.inline and not self._stays_readable(value, arg):
                self.known[arg] = self.define(arg.hint or arg.op, bare(self.known[arg]))
        return str(RENDER[value.op](*[self.text(arg) for arg in value.args]))

    def _stays_readable(self, value: Value, arg: Value) -> bool:
        marked = RENDER[value.op](
            *["\0" if item is arg else self.text(item) for item in value.args]
        )
        return str(marked).count("\0") == 1 and len(marked) + len(self.known[arg]) <= MAX_INLINE


def number(value: Scalar) -> str:
    """The number as Triton reads it: booleans as 0 and 1, floats in full."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(float(value))
