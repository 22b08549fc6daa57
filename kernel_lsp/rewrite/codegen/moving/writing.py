"""Lines of a kernel that compute expressions: loads at computed addresses, and what is made of
them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernel_lsp.rewrite.codegen.core import affine
from kernel_lsp.rewrite.codegen.core.affine import IndexSum, IndexTerm, Within
from kernel_lsp.rewrite.codegen.core.body import LOW_PRECISION, UniqueNames, number
from kernel_lsp.rewrite.codegen.core.ir import Scalar, Value
from kernel_lsp.rewrite.codegen.core.moves import DimSizes, Expand
from kernel_lsp.rewrite.codegen.core.ops import RENDER, atom
from kernel_lsp.rewrite.codegen.moving.evaluate import Expression, MovedRead
from kernel_lsp.rewrite.codegen.moving.neighbors import LoadRun


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiling:
    """How programs walk the iteration space: rows over its first dimensions, columns over the
    rest."""

    sizes: DimSizes
    split: int
    """The first dimension that belongs to the columns."""
    width: int = 1
    """So many neighbors are columns of their own, as the last dimension, beside one position."""

    def widened(self, width: int) -> Tiling:
        """The same positions, with neighbors of each."""
        return replace(self, sizes=(*self.sizes, width), width=width) if width > 1 else self

    @property
    def suffix(self) -> str:
        """What ends the names of its columns and masks in the source."""
        return f"_{self.width}" if self.width > 1 else ""

    @property
    def columns(self) -> int:
        """How many positions a row has."""
        return math.prod(self.sizes[self.split :])

    @property
    def row_sizes(self) -> DimSizes:
        """Sizes of the dimensions whose product is the number of rows."""
        return self.sizes[: self.split] or (1,)

    def owner(self, dim: int) -> tuple[str, Sequence[int]]:
        """The variable that enumerates the dimension, and the dimensions that it enumerates."""
        if dim < self.split:
            return "rows", range(self.split)
        return f"cols{self.suffix}", range(self.split, len(self.sizes))


class Writer:
    """Collects the lines that compute expressions."""

    def __init__(
        self,
        tiling: Tiling,
        names: UniqueNames,
        shares: dict[DimSizes, str],
        runs: Sequence[LoadRun] = (),
    ) -> None:
        """``shares``: parameters of the kernel, by the shape of what is averaged. ``runs``: what is
        loaded as one."""
        self.tiling, self.names, self.shares = tiling, names, shares
        self.lines: list[str] = []
        self.widths: set[int] = set()
        """Of the wide loads and stores."""
        self._runs = {load: run for run in runs for load in run.loads}
        self._known: dict[Expression, str] = {}
        self._parts: dict[MovedRead, str] = {}
        self._holders: dict[str, str] = {}

    def define(self, hint: str, expression: str) -> str:
        """A new variable, or the one that already holds the same expression."""
        if expression not in self._holders:
            self._holders[expression] = self.names.fresh(hint)
            self.lines.append(f"    {self._holders[expression]} = {expression}")
        return self._holders[expression]

    def text(self, item: Expression | Scalar | None) -> str | None:
        """The name or number that stands for an expression; its lines are written when it is first
        asked for. None for None."""
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
        if load in self._runs:
            return self._part(load, value)
        tensor = load.tensor
        if not tensor.is_strided:
            place = affine.linear(load.at, affine.strides(tensor.shape))
            text = self._loaded(load, self.index(place), affine.dims_of(place), self.tiling)
            return self.define(value.hint or tensor.operand.name, text)
        terms = [
            f"{atom(self.index(index))} * {tensor.operand.name}_stride_{dim}"
            for dim, index in enumerate(load.at)
            if index != affine.ZERO
        ]
        dims = set().union(*map(affine.dims_of, load.at), set())
        text = self._loaded(load, " + ".join(terms), dims, self.tiling)
        return self.define(value.hint or tensor.operand.name, text)

    def _part(self, load: MovedRead, value: Value) -> str:
        """One of the neighbors of a wide load."""
        if load not in self._parts:
            run = self._runs[load]
            tiling = self.tiling.widened(len(run.loads))
            self.widths.add(tiling.width)
            place = run.index.plus(affine.coordinate(len(self.tiling.sizes), tiling.width))
            dims = affine.dims_of(place)
            text = self._loaded(load, self.index(place, tiling), dims, tiling)
            called = value.hint or load.tensor.operand.name
            whole = self.define(f"{called}_neighbors", text)
            sizes = ", ".join(["BLOCK_ROWS", "BLOCK_COLS", *["2"] * (tiling.width // 2)])
            self._split(f"tl.reshape({whole}, ({sizes}))", run.loads, called)
        return self._parts[load]

    def _split(self, whole: str, loads: Sequence[MovedRead], called: str) -> None:
        """Those at even places, and those between; both again, where these are several."""
        halves = loads[::2], loads[1::2]
        names = [self.names.fresh(called) for _ in halves]
        self.lines.append(f"    {', '.join(names)} = tl.split({whole})")
        for name, half in zip(names, halves, strict=True):
            if len(half) > 1:
                self._split(name, half, called)
            else:
                self._parts[half[0]] = name

    def joined(self, neighbors: Sequence[str]) -> str:
        """Source of the neighbors side by side, as the columns of a wide store."""
        if len(neighbors) == 1:
            return neighbors[0]
        return f"tl.interleave({self.joined(neighbors[::2])}, {self.joined(neighbors[1::2])})"

    def _loaded(self, load: MovedRead, where: str, dims: set[int], tiling: Tiling) -> str:
        """Source of a load from that place, which depends on these coordinates."""
        name, dtype = load.tensor.operand.name, load.tensor.operand.dtype
        mask = self.mask(dims, load.under, tiling)
        address = f"{name}_ptr + {where}" if where not in ("", "0") else f"{name}_ptr"
        if load.under and not mask.whole:  # the conditions say more than the address varies
            address += f" + 0 * (rows + cols{tiling.suffix})"
        other = ", other=0" + (".0" if dtype != "bool" else "") if load.under else ""
        masked = f", mask={mask.text}" if mask.text else ""
        widen = ".to(tl.float32)" if dtype in LOW_PRECISION else ""
        return f"tl.load({address}{masked}{other}){widen}"

    def mask(self, dims: set[int], under: Sequence[Within], tiling: Tiling) -> Mask:
        """Of a load whose address depends on these coordinates."""
        more = set().union(*(affine.dims_of(condition.index) for condition in under), set())
        owners = {tiling.owner(dim)[0] for dim in dims}
        whole = {tiling.owner(dim)[0] for dim in more} <= owners
        columns = f"cols{tiling.suffix}"
        used = owners if whole and tiling.width == 1 else {"rows", columns}
        base = {
            frozenset(): "",
            frozenset({"rows"}): "row_mask",
            frozenset({columns}): "col_mask",
            frozenset({"rows", columns}): f"mask{tiling.suffix}",
        }[frozenset(used)]
        parts = [*([base] if base else []), *([self.conditions(under, tiling)] if under else [])]
        return Mask(" & ".join(parts), whole)

    def conditions(self, under: Sequence[Within], tiling: Tiling | None = None) -> str:
        """All of them, as a name or a chain of names."""
        found = [self._condition(condition, tiling or self.tiling) for condition in under]
        return found[0] if len(found) == 1 else f"({' & '.join(found)})"

    def _condition(self, condition: Within, tiling: Tiling) -> str:
        """Below the first that is too large: of `<` Triton knows that it holds for a whole vector,
        of `<=` it does not."""
        low, high = condition.index.range
        text = self.index(condition.index, tiling)
        tests = []
        if condition.low == condition.high:
            tests = [f"{atom(text)} == {condition.low}"]
        else:
            if low < condition.low:
                tests.append(f"{atom(text)} >= {condition.low}")
            if high > condition.high:
                tests.append(f"{atom(text)} < {condition.high + 1}")
        tests = [f"({test})" for test in tests] if len(tests) > 1 else tests
        return self.define("inside", " & ".join(tests))

    def index(self, index: IndexSum, tiling: Tiling | None = None) -> str:
        """The sum as source; neighbors that are enumerated together are one term."""
        tiling = tiling or self.tiling
        index = affine.recombine(index)
        terms = list[tuple[str, int]]()
        dims = {item.of: factor for item, factor in index.terms if isinstance(item.of, int)}
        done = set[int]()
        for dim in sorted(dims):
            if dim in done:
                continue
            run = _run(tiling, dim, dims)
            done.update(run)
            terms.append((self._position(run, tiling), dims[run[-1]]))
        inner = [(item, f) for item, f in index.terms if not isinstance(item.of, int)]
        terms += [(self._atom(item, tiling), factor) for item, factor in inner]
        return _sum_text(terms, index.constant)

    def _position(self, run: Sequence[int], tiling: Tiling) -> str:
        """The index along neighboring dimensions."""
        variable, every = tiling.owner(run[0])
        sizes = tiling.sizes
        inner = math.prod([sizes[dim] for dim in every if dim > run[-1]])
        span = math.prod([sizes[dim] for dim in run])
        text = variable if inner == 1 else f"{variable} // {inner}"
        # The size of dimension 0 is another one in the next call, where it is 1 now too.
        if any(dim == 0 or sizes[dim] != 1 for dim in every if dim < run[0]):
            text = f"{atom(text)} % {span}"
        return text if text == variable else self.define("at", text)

    def _atom(self, item: IndexTerm, tiling: Tiling) -> str:
        assert isinstance(item.of, IndexSum)
        text = self.index(item.of, tiling)
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


def _sum_text(terms: Sequence[tuple[str, int]], constant: int) -> str:
    """Source of a sum of multiples and a number."""
    texts = []
    for text, factor in terms:
        scaled = text if abs(factor) == 1 else f"{atom(text)} * {abs(factor)}"
        texts.append((" - " if factor < 0 else " + ") + (atom(text) if factor == -1 else scaled))
    if constant or not texts:
        texts.append((" - " if constant < 0 else " + ") + str(abs(constant)))
    whole = "".join(texts)
    return whole[3:] if whole.startswith(" + ") else f"-{whole[3:]}"


def _run(tiling: Tiling, dim: int, dims: dict[int, int]) -> list[int]:
    """The dimension and those behind it that the sum walks as one. Those of one element have no
    coordinate."""
    variable, _ = tiling.owner(dim)
    run, at = [dim], dim + 1
    while at < len(tiling.sizes) and tiling.owner(at)[0] == variable:
        size = tiling.sizes[at]
        if size != 1:
            if dims.get(at) is None or dims[run[-1]] != dims[at] * size:
                break
            run.append(at)
        at += 1
    return run
