"""Which values of a kernel are equal, and what they are in lanes behind the end of a masked axis.

`KernelValues` numbers what a straight line of statements computes: two expressions with one number
are equal. Of each number it knows whether it is the same in all lanes, and which constant lies in
lanes whose index is not below the axis' extent, for finite values of what is one number for a
whole row. Not covered: branches, loops (a skill runs a loop's body once), blocks of more than one
axis. Standard library only."""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kernel_lsp.rewrite.kernels.source import names_in

LANEWISE = frozenset(
    (
        "exp",
        "exp2",
        "log",
        "log2",
        "sqrt",
        "rsqrt",
        "sqrt_rn",
        "div_rn",
        "abs",
        "sigmoid",
        "sin",
        "cos",
        "erf",
        "fma",
        "maximum",
        "minimum",
        "clamp",
        "program_id",
        "num_programs",
        "cdiv",
        "multiple_of",
        "max_contiguous",
        "float",
        "int",
        "min",
        "max",
    )
)
"""Calls that give each lane what follows from the same lane of their arguments."""
REDUCTIONS = {"sum": 0.0, "max": -math.inf, "min": math.inf}
"""What a lane must hold to contribute nothing."""
SILENT = frozenset(("debug_barrier", "static_assert", "assume", "device_assert"))
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.BitAnd: lambda a, b: float(bool(a) and bool(b)),
    ast.BitOr: lambda a, b: float(bool(a) or bool(b)),
}
_FUNCTIONS: dict[str, Callable[..., float | None]] = {
    "exp": lambda x: math.exp(x) if x <= 0 else None,
    "exp2": lambda x: 2.0**x if x <= 0 else None,
    "abs": abs,
    "maximum": max,
    "minimum": min,
}


LoadPlace = tuple[int, int | None, int]
"""Pointer, mask, and how often something was stored there before: two loads of one place are
equal."""


@dataclass(frozen=True, slots=True)
class PointerArguments:
    """One tl.load or tl.store, by the numbers of its arguments; None: it has no such argument."""

    kind: str
    pointer: int
    mask: int | None
    value: int | None
    """What is stored, or what a load gives where its mask is false."""
    base: str
    """The parameter that the address starts from; empty: not exactly one."""
    moment: int

    @property
    def place(self) -> LoadPlace:
        """What a load's value depends on: address, mask, and the moment of memory."""
        return self.pointer, self.mask, self.moment


@dataclass(slots=True)
class KernelValues:
    """Of one kernel whose axis ends at the parameter ``extent``."""

    extent: str
    pointers: frozenset[str]
    apart: frozenset[tuple[str, str]]
    """Pairs of pointers that never meet in memory."""
    names: dict[str, int] = field(default_factory=dict)
    """What each name stands for now; parameters stand for themselves."""
    accesses: list[PointerArguments] = field(default_factory=list)
    """In the order of the statements."""
    loads: dict[int, PointerArguments] = field(default_factory=dict)
    """By the number of what was loaded."""
    reduced: list[tuple[str, int]] = field(default_factory=list)
    """(operation, number of what it goes over)."""
    strange: list[str] = field(default_factory=list)
    """What was not understood; nothing may be concluded where this is not empty."""
    ends: set[int] = field(default_factory=set)
    """Masks that are true up to the end of the axis, and nothing else."""
    _numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    _known: list[tuple[float | None, bool, frozenset[str]]] = field(default_factory=list)
    _axis: set[int] = field(default_factory=set)
    _stored: dict[str, int] = field(default_factory=dict)
    _fresh: itertools.count[int] = field(default_factory=itertools.count)

    def behind(self, number: int) -> float | None:
        """The value in lanes behind the end; None: unknown. A mask is 0.0 where it is false
        there."""
        return self._known[number][0]

    def uniform(self, number: int) -> bool:
        """Whether the value is the same in all lanes."""
        return self._known[number][1]

    def roots(self, number: int) -> frozenset[str]:
        """Pointers among the parameters that an address was made of."""
        return self._known[number][2]

    def advance(self, variable: str) -> None:
        """``variable`` is now where a block of the axis begins, somewhere."""
        self.names[variable] = self._number(("begin",), None, uniform=True)

    def run(self, statement: ast.stmt) -> None:
        """Takes in what one statement does to names and memory."""
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                self.names[name] = self.of(value)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                self.names[name] = self.of(ast.BinOp(ast.Name(name, ast.Load()), op, value))
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="store")) as call):
                self._store(call)
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name in SILENT:
                pass
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case _:
                self.strange.append(ast.unparse(statement))

    def of(self, node: ast.expr) -> int:
        """The number of an expression's value."""
        match node:
            case ast.Constant(value=value):
                behind = float(value) if isinstance(value, int | float) else None
                return self._number(("constant", type(value), value), behind, uniform=True)
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Name(id=name):
                roots = frozenset((name,)) & self.pointers
                return self._number(("name", name), None, uniform=True, roots=roots)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self.of(left), self.of(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.of(operand)
                value = self.behind(inner)
                negated = None if value is None else -value
                return self._number(("minus", inner), negated, uniform=self.uniform(inner))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(op, self.of(left), self.of(right))
            case ast.Attribute() if not names_in(node) & self.names.keys():
                return self._number(("text", ast.unparse(node)), None, uniform=True)
            case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]):
                return self.of(ast.Constant(float(text)))
            case ast.Call(
                func=ast.Attribute(attr="to", value=inner), args=[ast.Attribute() as dtype]
            ):
                return self._like(("to", ast.unparse(dtype)), self.of(inner))
            case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
                return self._called(name, node)
        return self._unknown(node)

    # --- rules ---------------------------------------------------------------------------------

    def _number(
        self,
        key: tuple[object, ...],
        behind: float | None,
        *,
        uniform: bool,
        roots: frozenset[str] = frozenset(),
    ) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._known)
            self._known.append(
                (None if behind is not None and math.isnan(behind) else behind, uniform, roots)
            )
        return self._numbers[key]

    def _unknown(self, node: ast.AST) -> int:
        self.strange.append(ast.unparse(node))
        return self._number(("unknown", next(self._fresh)), None, uniform=False)

    def _like(self, key: tuple[object, ...], inner: int) -> int:
        """Another form of the same value: another dtype."""
        return self._number((*key, inner), self.behind(inner), uniform=self.uniform(inner))

    def _zero(self, number: int) -> bool:
        return self.behind(number) == 0 and self.uniform(number)

    def _binary(self, op: ast.operator, left: int, right: int) -> int:
        if isinstance(op, ast.Add) and (self._zero(left) or self._zero(right)):
            return right if self._zero(left) else left
        made = self._number(
            ("binary", type(op), left, right),
            self._combined(op, left, right),
            uniform=self.uniform(left) and self.uniform(right),
            roots=self.roots(left) | self.roots(right),
        )
        begin = self._numbers.get(("begin",))
        if isinstance(op, ast.Add) and begin in (left, right) and {left, right} & self._axis:
            self._axis.add(made)
        return made

    def _combined(self, op: ast.operator, left: int, right: int) -> float | None:
        a, b = self.behind(left), self.behind(right)
        if a is not None and b is not None:
            return _ARITHMETIC[type(op)](a, b) if type(op) in _ARITHMETIC else None
        if isinstance(op, ast.BitAnd):
            return 0.0 if 0 in (a, b) else None
        if isinstance(op, ast.Sub):
            return a if a == -math.inf and self.uniform(right) else None
        return self._absorbed(op, [x for x, y in ((a, right), (b, left)) if self.uniform(y)])

    @staticmethod
    def _absorbed(op: ast.operator, behind: list[float | None]) -> float | None:
        """What stays as it is behind the end, whichever number the whole row is combined with."""
        if isinstance(op, ast.Mult) and 0 in behind:
            return 0.0
        return -math.inf if isinstance(op, ast.Add) and -math.inf in behind else None

    def _compared(self, op: ast.cmpop, left: int, right: int) -> int:
        """``index < extent`` is false behind the end."""
        end = self.of(ast.Name(self.extent, ast.Load()))
        ends = (isinstance(op, ast.Lt) and left in self._axis and right == end) or (
            isinstance(op, ast.Gt) and right in self._axis and left == end
        )
        uniform = self.uniform(left) and self.uniform(right)
        made = self._number(
            ("compare", type(op), left, right), 0.0 if ends else None, uniform=uniform
        )
        self.ends |= {made} if ends else set()
        return made

    def _called(self, name: str, call: ast.Call) -> int:
        keywords = {k.arg: k.value for k in call.keywords if k.arg is not None}
        unpacks = any(isinstance(a, ast.Starred) for a in call.args)
        if unpacks or len(keywords) != len(call.keywords):
            return self._unknown(call)
        if not self._is_of_language(call) and name not in ("float", "int", "min", "max"):
            return self._unknown(call)
        match name:
            case "load":
                return self._load(call, keywords)
            case "zeros" | "full":
                return self._filled(name, call, keywords)
            case "arange":
                return self._arange(call)
        return self._computed(name, call, keywords)

    def _is_of_language(self, call: ast.Call) -> bool:
        """A function of a module, not a method of a value."""
        return isinstance(call.func, ast.Attribute) and not (
            names_in(call.func) & self.names.keys()
        )

    def _filled(self, name: str, call: ast.Call, keywords: Mapping[str, ast.expr]) -> int:
        fill: ast.expr = ast.Constant(0.0)
        if name == "full" and len(call.args) > 1:
            fill = call.args[1]
        elif name == "full":
            fill = keywords.get("value", fill)
        behind = self.behind(self.of(fill))
        return self._number(("full", ast.unparse(call)), behind, uniform=False)

    def _arange(self, call: ast.Call) -> int:
        made = self._number(("arange", ast.unparse(call)), None, uniform=False)
        if isinstance(call.args[0], ast.Constant) and call.args[0].value == 0:
            self._axis.add(made)
        return made

    def _computed(self, name: str, call: ast.Call, keywords: Mapping[str, ast.expr]) -> int:
        numbers = [self.of(a) for a in call.args]
        if name == "where" and len(numbers) == 3 and not keywords:
            return self._where(*numbers)
        if name == "cast" and len(numbers) == 2 and not keywords:
            return self._like(("to", ast.unparse(call.args[1])), numbers[0])
        if name in REDUCTIONS and isinstance(call.func, ast.Attribute):
            return self._reduced(name, call, numbers, keywords)
        return self._lanewise(name, call, numbers, keywords)

    def _lanewise(
        self, name: str, call: ast.Call, numbers: list[int], keywords: Mapping[str, ast.expr]
    ) -> int:
        if name not in LANEWISE:
            return self._unknown(call)
        named = [(k, self.of(v)) for k, v in keywords.items()]
        every = [*numbers, *(n for _, n in named)]
        values = [self.behind(n) for n in numbers]
        known = [v for v in values if v is not None]
        apply = _FUNCTIONS.get(name)
        behind = apply(*known) if apply and known and len(known) == len(values) else None
        uniform = all(self.uniform(n) for n in every)
        roots = frozenset[str]().union(*(self.roots(n) for n in every))
        key = ("call", ast.unparse(call.func), *numbers, *named)
        return self._number(key, behind, uniform=uniform, roots=roots)

    def _where(self, condition: int, yes: int, no: int) -> int:
        a, b = self.behind(yes), self.behind(no)
        behind = b if self.behind(condition) == 0 or a == b else None
        uniform = all(self.uniform(n) for n in (condition, yes, no))
        return self._number(("where", condition, yes, no), behind, uniform=uniform)

    def _reduced(
        self, name: str, call: ast.Call, numbers: list[int], keywords: Mapping[str, ast.expr]
    ) -> int:
        """Over the one axis there is."""
        axes = [*call.args[1:], *(v for k, v in keywords.items() if k == "axis")]
        if not all(isinstance(a, ast.Constant) and a.value == 0 for a in axes) or set(keywords) - {
            "axis"
        }:
            return self._unknown(call)
        self.reduced.append((name, numbers[0]))
        return self._number(("reduced", name, numbers[0]), None, uniform=True)

    # --- memory --------------------------------------------------------------------------------

    def _load(self, call: ast.Call, keywords: Mapping[str, ast.expr]) -> int:
        made = self._access("load", call, keywords)
        key = ("load", made.place, made.value)
        masked = made.mask is not None and self.behind(made.mask) == 0 and made.value is not None
        behind = self.behind(made.value) if masked and made.value is not None else None
        number = self._number(key, behind, uniform=self.uniform(made.pointer))
        self.loads[number] = made
        return number

    def _store(self, call: ast.Call) -> None:
        made = self._access("store", call, {k.arg: k.value for k in call.keywords if k.arg})
        for name in self.pointers:
            if (name, made.base) not in self.apart:
                self._stored[name] = self._stored.get(name, 0) + 1

    def _access(
        self, kind: str, call: ast.Call, keywords: Mapping[str, ast.expr]
    ) -> PointerArguments:
        names = ("pointer", "mask", "other") if kind == "load" else ("pointer", "value", "mask")
        given = {
            **dict(zip(names, call.args, strict=False)),
            **{k: keywords[k] for k in names if k in keywords},
        }
        if len(call.args) > len(names) or "boundary_check" in keywords or "pointer" not in given:
            self._unknown(call)
        pointer = self.of(given.get("pointer", ast.Constant(None)))
        mask = self.of(given["mask"]) if "mask" in given else None
        said = given.get("other" if kind == "load" else "value")
        value = None if said is None else self.of(said)
        roots = self.roots(pointer)
        base = next(iter(roots)) if len(roots) == 1 else ""
        made = PointerArguments(kind, pointer, mask, value, base, self._stored.get(base, 0))
        if not base and self.pointers:
            self._unknown(call)
        self.accesses.append(made)
        return made
