"""A value of the expression IR at a position of the iteration space, as lines of a kernel.

Moves only change the position at which their source is evaluated, and under which conditions; what
remains are loads at computed addresses. The same value at the same position is computed once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kernel_lsp.rewrite.codegen.core import affine
from kernel_lsp.rewrite.codegen.core.affine import IndexSum, IndexTerm, Within
from kernel_lsp.rewrite.codegen.core.body import LOW_PRECISION, UniqueNames, number
from kernel_lsp.rewrite.codegen.core.ir import Operand, Scalar, Value
from kernel_lsp.rewrite.codegen.core.moves import DimSizes, Expand, Gather, Join, Position
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported
from kernel_lsp.rewrite.codegen.core.ops import RENDER, atom

MAX_LOADS = 40
"""Of one kernel; more begin to spill registers, and nobody reads them."""


MAX_COPIES = 16
"""Copies of one element whose gradients are added one after the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedTensor:
    """A tensor that the kernel reads, with the sizes that its launcher counts on."""

    operand: Operand
    shape: DimSizes
    steps: DimSizes
    """Strides in the workload."""
    is_strided: bool = False
    """Not contiguous: the launcher hands its strides over."""

    @property
    def stride_names(self) -> list[str]:
        """Parameters of the kernel."""
        every = range(len(self.shape)) if self.is_strided else ()
        return [f"{self.operand.name}_stride_{dim}" for dim in every]

    @property
    def stride_arguments(self) -> list[str]:
        every = range(len(self.shape)) if self.is_strided else ()
        return [f"{self.operand.name}.stride({dim})" for dim in every]

    @property
    def furthest(self) -> str:
        """Source of a number that no offset reaches."""
        name = self.operand.name
        return f"{name}.untyped_storage().nbytes()" if self.is_strided else f"{name}.numel()"


@dataclass(frozen=True, slots=True)
class MovedRead:
    """One read: a mask that the tensor's value stands for, and whether it is 0 elsewhere."""

    tensor: MovedTensor
    at: Position
    under: tuple[Within, ...]


@dataclass
class ReadPlan:
    """The values at their positions, before any text: what is loaded, and what is computed."""

    sizes: DimSizes
    """Of the iteration space."""
    tensors: dict[Operand, MovedTensor]
    loads: dict[MovedRead, None] = field(default_factory=dict)
    made: dict[tuple[Value, Position, tuple[Within, ...]], Expression] = field(default_factory=dict)

    def at(
        self, value: Value | Scalar | None, place: Position, under: tuple[Within, ...] = ()
    ) -> Expression | Scalar | None:
        if not isinstance(value, Value):
            return value
        key = value, place, under
        if key not in self.made:
            self.made[key] = self._make(value, place, under)
        return self.made[key]

    def _make(self, value: Value, at: Position, under: tuple[Within, ...]) -> Expression:
        if value.operand is not None:
            tensor = self.tensors[value.operand]
            # Without conditions where there is an element in any case: neighbors share the load.
            load = MovedRead(tensor, at, () if self._is_inside(tensor, at) else under)
            self.loads[load] = None
            if len(self.loads) > MAX_LOADS:
                raise Unsupported("too many reads for one kernel")
            return Expression(value, load=load)
        if value.op == "totaled":
            raise Unsupported("a sum over all elements that others are computed with")
        if value.op == "joined":
            return self._joined(value, at, under)
        if value.op == "gathered":
            return self._gathered(value, at, under)
        if value.op == "moved":
            return self._moved(value, at, under)
        return Expression(value, args=tuple(self.at(arg, at, under) for arg in value.args))

    def _is_inside(self, tensor: MovedTensor, at: Position) -> bool:
        lead = affine.coordinate(0, self.sizes[0])
        for dim, (index, size) in enumerate(zip(at, tensor.shape, strict=True)):
            same = dim == 0 and index == lead and size == self.sizes[0]
            if not same and not Within(index, 0, size - 1).always:
                return False
        return True

    def _moved(self, value: Value, at: Position, under: tuple[Within, ...]) -> Expression:
        x, fill = value.args
        move = value.move
        assert isinstance(x, Value) and move is not None
        assert not isinstance(move, (Join, Gather))
        place, found = move.read(at)
        return self._filled(value, x, place, _open(found), under, fill)

    def _filled(
        self, value: Value, x: Value, place: Position, found: tuple[Within, ...],
        under: tuple[Within, ...], fill: Value | Scalar | None,
    ) -> Expression:  # fmt: skip
        """``x`` where the conditions hold, else ``fill``."""
        if any(condition.never for condition in found):
            return Expression(value, args=(_number(fill),))
        inner = self.at(x, place, _union(under, found))
        assert isinstance(inner, Expression)
        if not found or (inner.is_zero_outside(found) and fill == 0.0):
            return inner
        if value.dtype == "bool":
            raise Unsupported("truth values that are filled up with numbers")
        return Expression(value, args=(inner, _number(fill)), under=found)

    def _joined(self, value: Value, at: Position, under: tuple[Within, ...]) -> Expression:
        join = value.move
        assert isinstance(join, Join)
        made: Expression | None = None
        index = at[join.dim]
        for number_, part in reversed(list(enumerate(value.args))):
            start, size = join.starts[number_], join.parts[number_][join.dim]
            inside = Within(index.plus(-start), 0, size - 1)
            if inside.never or not isinstance(part, Value):
                continue
            place = (*at[: join.dim], index.plus(-start), *at[join.dim + 1 :])
            inner = self.at(part, place, _union(under, _open((inside,))))
            assert isinstance(inner, Expression)
            before = Within(index, 0, start + size - 1)
            if made is None or before.always:  # the rest is no other part's
                made = inner
            else:
                made = Expression(value, args=(inner, made), under=(before,))
        assert made is not None
        return made

    def _gathered(self, value: Value, at: Position, under: tuple[Within, ...]) -> Expression:
        gather, x = value.move, value.args[0]
        assert isinstance(gather, Gather)
        if gather.count > MAX_COPIES:
            raise Unsupported(f"a sum over {gather.count} copies of an element")
        made: Expression | None = None
        for place in gather.copies(at):
            copy = self.at(x, place, under)
            assert isinstance(copy, Expression)
            made = copy if made is None else Expression(_ADD, args=(made, copy))
        assert made is not None
        return made


@dataclass(frozen=True, eq=False)
class Expression:
    """A value at a position: a load, or an operation on other expressions. With conditions it is
    the first argument where they hold, else the second."""

    value: Value
    args: tuple[Expression | Scalar | None, ...] = ()
    load: MovedRead | None = None
    under: tuple[Within, ...] = ()

    def is_zero_outside(self, found: Sequence[Within]) -> bool:
        """Its mask is that of the conditions, and 0 is loaded elsewhere."""
        if self.value.op in KEEP_ZERO and isinstance(inner := self.args[0], Expression):
            return inner.is_zero_outside(found)
        return self.load is not None and set(found) <= set(self.load.under)


KEEP_ZERO = ("round_to_bfloat16", "round_to_float16", "square", "relu", "abs")
_ADD = Value(op="add", hint="total")


def _open(found: Sequence[Within]) -> tuple[Within, ...]:
    """Conditions that do not always hold."""
    return tuple(condition for condition in found if not condition.always)


def _union(left: tuple[Within, ...], right: Sequence[Within]) -> tuple[Within, ...]:
    return tuple(dict.fromkeys((*left, *right)))


def _number(fill: object) -> Scalar:
    assert isinstance(fill, (int, float))
    return fill


# --- text --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiling:
    """How programs walk the iteration space: rows over its first dimensions, columns over the
    rest."""

    sizes: DimSizes
    split: int
    """The first dimension that belongs to the columns."""

    @property
    def columns(self) -> int:
        return math.prod(self.sizes[self.split :])

    @property
    def row_sizes(self) -> DimSizes:
        return self.sizes[: self.split] or (1,)

    def owner(self, dim: int) -> tuple[str, Sequence[int]]:
        """The variable that enumerates the dimension, and the dimensions that it enumerates."""
        if dim < self.split:
            return "rows", range(self.split)
        return "cols", range(self.split, len(self.sizes))


class Writer:
    """Collects the lines that compute expressions."""

    def __init__(self, tiling: Tiling, names: UniqueNames, shares: dict[DimSizes, str]) -> None:
        """``shares``: parameters of the kernel, by the shape of what is averaged."""
        self.tiling, self.names, self.shares = tiling, names, shares
        self.lines: list[str] = []
        self._known: dict[Expression, str] = {}
        self._holders: dict[str, str] = {}

    def define(self, hint: str, expression: str) -> str:
        """A new variable, or the one that already holds the same expression."""
        if expression not in self._holders:
            self._holders[expression] = self.names.fresh(hint)
            self.lines.append(f"    {self._holders[expression]} = {expression}")
        return self._holders[expression]

    def text(self, item: Expression | Scalar | None) -> str | None:
        if not isinstance(item, Expression):
            return None if item is None else number(item)
        if item not in self._known:
            self._known[item] = self._write(item)
        return self._known[item]

    def _write(self, item: Expression) -> str:
        if item.load is not None:
            return self._load(item.load, item.value)
        if item.value.op == "moved" and not item.under:
            return str(self.text(item.args[0]))
        if item.value.op == "share":
            return self._share(item.value)
        args = [self.text(arg) for arg in item.args]
        if item.under:
            where = f"tl.where({self.conditions(item.under)}, {args[0]}, {args[1]})"
            return self.define(item.value.hint or item.value.op, where)
        return self.define(item.value.hint or item.value.op, str(RENDER[item.value.op](*args)))

    def _share(self, value: Value) -> str:
        """One over a number of elements, which the launcher counts."""
        assert isinstance(value.move, Expand)
        return self.shares[value.move.target]

    def _load(self, load: MovedRead, value: Value) -> str:
        tensor = load.tensor
        name, dtype = tensor.operand.name, tensor.operand.dtype
        if tensor.is_strided:
            terms = [
                f"{atom(self.index(index))} * {name}_stride_{dim}"
                for dim, index in enumerate(load.at)
                if index != affine.ZERO
            ]
            where, dims = " + ".join(terms), set().union(*map(affine.dims_of, load.at), set())
        else:
            place = affine.linear(load.at, affine.strides(tensor.shape))
            where, dims = self.index(place), affine.dims_of(place)
        mask = self.mask(dims, load.under)
        address = f"{name}_ptr + {where}" if where not in ("", "0") else f"{name}_ptr"
        if load.under and not mask.whole:  # the conditions say more than the address varies
            address += " + 0 * (rows + cols)"
        other = ", other=0" + (".0" if dtype != "bool" else "") if load.under else ""
        masked = f", mask={mask.text}" if mask.text else ""
        widen = ".to(tl.float32)" if dtype in LOW_PRECISION else ""
        return self.define(value.hint or name, f"tl.load({address}{masked}{other}){widen}")

    def mask(self, dims: set[int], under: Sequence[Within]) -> Mask:
        """Of a load whose address depends on these coordinates."""
        more = set().union(*(affine.dims_of(condition.index) for condition in under), set())
        owners = {self.tiling.owner(dim)[0] for dim in dims}
        wanted = {self.tiling.owner(dim)[0] for dim in more}
        whole = wanted <= owners
        used = owners if whole else {"rows", "cols"}
        base = {
            frozenset(): "", frozenset({"rows"}): "row_mask", frozenset({"cols"}): "col_mask",
            frozenset({"rows", "cols"}): "mask",
        }[frozenset(used)]  # fmt: skip
        parts = [*([base] if base else []), *([self.conditions(under)] if under else [])]
        return Mask(" & ".join(parts), whole)

    def conditions(self, under: Sequence[Within]) -> str:
        """All of them, as a name or a chain of names."""
        found = [self._condition(condition) for condition in under]
        return found[0] if len(found) == 1 else f"({' & '.join(found)})"

    def _condition(self, condition: Within) -> str:
        low, high = condition.index.range
        text = self.index(condition.index)
        tests = []
        if condition.low == condition.high:
            tests = [f"{atom(text)} == {condition.low}"]
        else:
            # A constant belongs to the bounds: index - 3 >= 0 is index >= 3.
            shift = condition.index.constant
            text = self.index(replace(condition.index, constant=0))
            if low < condition.low:
                tests.append(f"{atom(text)} >= {condition.low - shift}")
            if high > condition.high:
                tests.append(f"{atom(text)} <= {condition.high - shift}")
        tests = [f"({test})" for test in tests] if len(tests) > 1 else tests
        return self.define("inside", " & ".join(tests))

    def index(self, index: IndexSum) -> str:
        """The sum as source; neighbors that are enumerated together are one term."""
        index = affine.recombine(index)
        terms = list[tuple[str, int]]()
        dims = {item.of: factor for item, factor in index.terms if isinstance(item.of, int)}
        done = set[int]()
        for dim in sorted(dims):
            if dim in done:
                continue
            run = self._run(dim, dims)
            done.update(run)
            terms.append((self._position(run), dims[run[-1]]))
        terms += [(self._atom(item), f) for item, f in index.terms if not isinstance(item.of, int)]
        texts = []
        for text, factor in terms:
            scaled = text if abs(factor) == 1 else f"{atom(text)} * {abs(factor)}"
            texts.append(
                (" - " if factor < 0 else " + ") + (atom(text) if factor == -1 else scaled)
            )
        if index.constant or not texts:
            texts.append((" - " if index.constant < 0 else " + ") + str(abs(index.constant)))
        whole = "".join(texts)
        return whole[3:] if whole.startswith(" + ") else f"-{whole[3:]}"

    def _run(self, dim: int, dims: dict[int, int]) -> list[int]:
        """The dimension and those behind it that the sum walks as one. Those of one element have
        no coordinate."""
        variable, _ = self.tiling.owner(dim)
        run, at = [dim], dim + 1
        while at < len(self.tiling.sizes) and self.tiling.owner(at)[0] == variable:
            size = self.tiling.sizes[at]
            if size != 1:
                if dims.get(at) is None or dims[run[-1]] != dims[at] * size:
                    break
                run.append(at)
            at += 1
        return run

    def _position(self, run: Sequence[int]) -> str:
        """The index along neighboring dimensions."""
        variable, every = self.tiling.owner(run[0])
        sizes = self.tiling.sizes
        inner = math.prod([sizes[dim] for dim in every if dim > run[-1]])
        span = math.prod([sizes[dim] for dim in run])
        text = variable if inner == 1 else f"{variable} // {inner}"
        # The size of dimension 0 is another one in the next call, where it is 1 now too.
        if any(dim == 0 or sizes[dim] != 1 for dim in every if dim < run[0]):
            text = f"{atom(text)} % {span}"
        return text if text == variable else self.define("at", text)

    def _atom(self, item: IndexTerm) -> str:
        assert isinstance(item.of, IndexSum)
        text = self.index(item.of)
        if item.kind == "mod" and item.of.range[1] < 2 * item.by:
            whole = self.define("at", text)
            return self.define("at", f"tl.where({whole} < {item.by}, {whole}, {whole} - {item.by})")
        sign = "//" if item.kind == "div" else "%"
        return self.define("at", f"{atom(text)} {sign} {item.by}")


@dataclass(frozen=True, slots=True)
class Mask:
    text: str
    whole: bool
    """The address varies along everything that the conditions vary along."""
