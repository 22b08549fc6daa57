"""A value of the expression IR at a position of the iteration space: loads and what is computed.

Moves only change the position at which their source is evaluated, and under which conditions; what
remains are loads at computed addresses. The same value at the same position is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernel_lsp.rewrite.codegen.core import affine
from kernel_lsp.rewrite.codegen.core.affine import Within
from kernel_lsp.rewrite.codegen.core.ir import Operand, Scalar, Value
from kernel_lsp.rewrite.codegen.core.moves import DimSizes, Gather, Join, Position
from kernel_lsp.rewrite.codegen.core.nodes import Unsupported

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
        """Parameters of the kernel by which it gets the strides; none of a contiguous tensor."""
        every = range(len(self.shape)) if self.is_strided else ()
        return [f"{self.operand.name}_stride_{dim}" for dim in every]

    @property
    def stride_arguments(self) -> list[str]:
        """What the launcher passes for `stride_names`, as source."""
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
        """What a value is at a position, for those positions where the conditions ``under`` hold; a
        number is itself. The loads that it takes are noted. Raises Unsupported."""
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
        args = tuple(self.at(arg, at, under) for arg in value.args)
        return (value.op == "add" and _the_other(args)) or Expression(value, args=args)

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
            before = Within(index, 0, start + size - 1).simple
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
        """Whether it is 0 where the conditions do not hold: it is loaded under all of them, and 0
        is loaded elsewhere."""
        if self.value.op in KEEP_ZERO and isinstance(inner := self.args[0], Expression):
            return inner.is_zero_outside(found)
        return self.load is not None and set(found) <= set(self.load.under)


KEEP_ZERO = ("round_to_bfloat16", "round_to_float16", "square", "relu", "abs")
_ADD = Value(op="add", hint="total")


def _open(found: Sequence[Within]) -> tuple[Within, ...]:
    """Conditions that do not always hold."""
    return tuple(condition.simple for condition in found if not condition.always)


def _union(left: tuple[Within, ...], right: Sequence[Within]) -> tuple[Within, ...]:
    return tuple(dict.fromkeys((*left, *right)))


def _the_other(args: Sequence[Expression | Scalar | None]) -> Expression | None:
    """What is added to zeros."""
    left = [arg for arg in args if not _is_zero(arg)]
    return left[0] if len(left) == 1 and isinstance(left[0], Expression) else None


def _is_zero(arg: Expression | Scalar | None) -> bool:
    """What is filled with zeros, and nothing else: its place has no element."""
    return isinstance(arg, Expression) and arg.value.op == "moved" and arg.args == (0.0,)


def _number(fill: object) -> Scalar:
    assert isinstance(fill, (int, float))
    return fill
