"""Positions inside of tensors as sums of multiples, with division and remainder by whole numbers.

``IndexSum`` is a sum of atoms times numbers, plus a number; an ``IndexTerm`` is a coordinate of the
iteration space, or the quotient or the remainder of another sum. Every quotient and remainder is
of a sum that is never negative, so that Triton, which rounds towards zero, and Python agree. The
first coordinate counts as unbounded upwards: how far it goes is the batch of one call. Sums that
fall with it hold that batch as a number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernel_lsp.rewrite.codegen.core.nodes import Unsupported


@dataclass(frozen=True, slots=True)
class IndexTerm:
    """One coordinate (``kind`` "dim", of size ``by``), or a sum over (``div``) or modulo (``mod``)
    ``by``."""

    kind: str
    of: IndexSum | int
    by: int

    @property
    def high(self) -> float:
        """The largest value; the smallest is 0."""
        if self.kind == "dim":
            return self.by - 1 if self.of else math.inf
        if self.kind == "mod":
            return self.by - 1
        assert isinstance(self.of, IndexSum)
        most = self.of.range[1]
        return most if most == math.inf else most // self.by


@dataclass(frozen=True, slots=True)
class IndexSum:
    terms: tuple[tuple[IndexTerm, int], ...] = ()
    """Ordered, none with a factor of 0."""
    constant: int = 0

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest value, by the ranges of the atoms."""
        low = high = float(self.constant)
        for atom, factor in self.terms:
            if factor > 0:
                high += factor * atom.high
            else:
                low += factor * (atom.by - 1 if atom.of == 0 else atom.high)
        return low, high

    def plus(self, other: IndexSum | int) -> IndexSum:
        """The sum of both, terms that cancel left out."""
        if isinstance(other, int):
            return IndexSum(self.terms, self.constant + other)
        factors = dict(self.terms)
        for atom, factor in other.terms:
            factors[atom] = factors.get(atom, 0) + factor
        return make(factors, self.constant + other.constant)

    def times(self, number: int) -> IndexSum:
        """The sum with every factor multiplied by the number."""
        if number == 1:
            return self
        return make({atom: f * number for atom, f in self.terms}, self.constant * number)


ZERO = IndexSum()


@dataclass(frozen=True, slots=True)
class Within:
    """A condition: the index lies between two numbers, both included."""

    index: IndexSum
    low: int
    high: int

    @property
    def always(self) -> bool:
        """Whether it holds at every position."""
        low, high = self.index.range
        return self.low <= low and high <= self.high

    @property
    def never(self) -> bool:
        """Whether it holds at no position."""
        low, high = self.index.range
        return high < self.low or low > self.high

    @property
    def simple(self) -> Within:
        """The same condition on a sum without a constant and without a common factor."""
        terms, shift = self.index.terms, self.index.constant
        by = math.gcd(*(factor for _, factor in terms)) or 1
        index = IndexSum(tuple((item, factor // by) for item, factor in terms))
        return Within(index, -((shift - self.low) // by), (self.high - shift) // by)


def make(factors: Mapping[IndexTerm, int], constant: int) -> IndexSum:
    """A sum of these terms in their one order, those with factor 0 left out."""
    kept = [(atom, factor) for atom, factor in factors.items() if factor]
    return IndexSum(tuple(sorted(kept, key=lambda term: _key(term[0]))), constant)


def _key(atom: IndexTerm) -> tuple[int, int, str]:
    first = atom.of if isinstance(atom.of, int) else -1
    return ("dim", "div", "mod").index(atom.kind), first, repr(atom)


def coordinate(dim: int, size: int) -> IndexSum:
    """The index along one dimension of the iteration space."""
    if dim and size == 1:
        return ZERO
    return IndexSum(((IndexTerm("dim", dim, size), 1),))


def divide(index: IndexSum, by: int) -> tuple[IndexSum, IndexSum]:
    """Quotient, rounded down, and remainder."""
    if by == 1:
        return index, ZERO
    whole = {atom: factor // by for atom, factor in index.terms if factor % by == 0}
    rest = IndexSum(
        tuple((atom, factor) for atom, factor in index.terms if factor % by), index.constant
    )
    low = rest.range[0]
    if low == -math.inf:
        raise Unsupported("an index that falls without end")
    shift = math.floor(low / by)  # the rest starts at 0 to by - 1
    quotient, rest = make(whole, shift), rest.plus(-shift * by)
    if rest.range[1] < by:
        return quotient, rest
    if _is_quotient(rest):
        inner = rest.terms[0][0]
        more = IndexSum(((IndexTerm("div", inner.of, inner.by * by), 1),))
        return quotient.plus(more), IndexSum(((IndexTerm("mod", rest, by), 1),))
    return (
        quotient.plus(IndexSum(((IndexTerm("div", rest, by), 1),))),
        IndexSum(((IndexTerm("mod", rest, by), 1),)),
    )


def _is_quotient(index: IndexSum) -> bool:
    one = len(index.terms) == 1 and not index.constant and index.terms[0][1] == 1
    return one and index.terms[0][0].kind == "div"


def recombine(index: IndexSum) -> IndexSum:
    """``e // n * n * k + e % n * k`` as ``e * k``."""
    factors = dict(index.terms)
    for atom, factor in index.terms:
        if atom.kind != "mod" or atom not in factors:
            continue
        assert isinstance(atom.of, IndexSum)
        other = _quotient_beside(atom)
        if other is not None and factors.get(other, 0) == factor * atom.by:
            del factors[atom], factors[other]
            joined = make(factors, index.constant).plus(atom.of.times(factor))
            return recombine(joined)
    return index


def _quotient_beside(atom: IndexTerm) -> IndexTerm | None:
    """The quotient that belongs to a remainder."""
    assert isinstance(atom.of, IndexSum)
    quotient = divide(atom.of, atom.by)[0]
    return quotient.terms[0][0] if len(quotient.terms) == 1 else None


def linear(at: Sequence[IndexSum], steps: Sequence[int]) -> IndexSum:
    """The sum of positions times steps."""
    total = ZERO
    for index, step in zip(at, steps, strict=True):
        total = total.plus(index.times(step))
    return recombine(total)


def strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor of these sizes."""
    found, step = list[int](), 1
    for size in reversed(sizes):
        found.append(step)
        step *= size
    return tuple(reversed(found))


def parts(indices: Iterable[IndexSum]) -> Iterator[IndexSum]:
    """Every sum among these and inside of their quotients and remainders."""
    todo = list(indices)
    while todo:
        index = todo.pop()
        yield index
        todo += [atom.of for atom, _ in index.terms if isinstance(atom.of, IndexSum)]


def dims_of(index: IndexSum) -> set[int]:
    """The coordinates that the index depends on."""
    return {
        atom.of for part in parts([index]) for atom, _ in part.terms if isinstance(atom.of, int)
    }
