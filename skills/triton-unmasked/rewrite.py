"""Masks that hold for every lane, where the launcher finds by the sizes of a call that they do.

A comparison stays where it is and gets `| EVEN_N`: Triton drops the mask where that constant is
true."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.rewrite.kernels import launch_constants, terms
from kernel_lsp.rewrite.kernels.blocks import passed_value
from kernel_lsp.rewrite.kernels.grids import grid_of
from kernel_lsp.rewrite.kernels.launch_constants import Constant
from kernel_lsp.rewrite.kernels.terms import Atom, TermCounts, TermReader
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Launched, Proof, proof

EVEN, WHOLE = "is a multiple of", "is at least"


@dataclass(frozen=True, slots=True)
class Fact:
    """Under which condition a comparison is true in every lane of every program."""

    compare: ast.Compare
    extent: str
    """Parameter of the kernel."""
    block: str
    """Parameter of the kernel, or a number."""
    needs: str
    why: str

    @property
    def name(self) -> str:
        return ("EVEN_" if self.needs == EVEN else "WHOLE_") + self.extent.upper()

    @property
    def said(self) -> str:
        return f"{self.extent} {self.needs} {self.block}"


def match(kernel: Kernel) -> list[KernelMatch]:
    if kernel.source.configs() is not None or not launch_constants.fits(kernel):
        return []
    found = [fact for fact in _facts(kernel) if _is_of_use(kernel, fact)]
    blocks = {(fact.name, fact.block) for fact in found}
    if not found or len(blocks) > len({name for name, _ in blocks}):
        return []
    names = ", ".join(dict.fromkeys(fact.extent for fact in found))
    return [
        KernelMatch(
            f"masks of {names}", f"no masks where {_all_said(found)}", 0.04, data=tuple(found)
        )
    ]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    return [
        *(
            proof(
                f"`{kernel.text(fact.compare)}` holds in every lane where {fact.said}",
                True,
                fact.why,
            )
            for fact in match.data
        ),
        proof(
            "other sizes keep their masks",
            True,
            "the launcher decides it by the sizes of each call, and without a word of it the "
            "masks are there",
        ),
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    for fact in match.data:
        kernel.replace(fact.compare, f"({kernel.text(fact.compare)}) | {fact.name}")
    facts = {fact.name: fact for fact in match.data}
    constants = [
        Constant(
            name,
            f"Whether {fact.said}, so that nothing is masked.",
            "False",
            str(_condition(kernel, fact)),
        )
        for name, fact in facts.items()
    ]
    launch_constants.add(kernel, constants)


def _all_said(facts: list[Fact]) -> str:
    return " and ".join(dict.fromkeys(fact.said for fact in facts))


# --- in the kernel ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LaneBound:
    """A comparison of ``start + arange(0, block)`` with an extent."""

    compare: ast.Compare
    start: TermCounts
    extent: TermCounts
    extent_name: str
    block: TermCounts
    block_name: str


def _facts(kernel: Kernel) -> Iterator[Fact]:
    reader = TermReader(kernel.function)
    for node in ast.walk(kernel.function):
        if isinstance(node, ast.Compare):
            for lanes in _lanes_of(kernel, reader, node):
                if (fact := _fact(kernel, reader, lanes)) is not None:
                    yield fact


def _lanes_of(kernel: Kernel, reader: TermReader, node: ast.Compare) -> Iterator[_LaneBound]:
    below = terms.below_zero(reader, node)
    lane = _find_lane(below) if below is not None else None
    if below is None or lane is None:
        return
    call = lane[0].node
    assert isinstance(call, ast.Call)
    block = reader.terms(call.args[1])
    if (name := _block_name(kernel, block)) is None:
        return
    for product, count in below.items():
        if count == -1 and len(product) == 1 and product[0].key in kernel.launched[0].arguments:
            start = {p: n for p, n in below.items() if p not in (product, lane)}
            yield _LaneBound(node, start, {product: 1}, product[0].key, block, name)


def _find_lane(below: TermCounts) -> tuple[Atom, ...] | None:
    """The one ``arange`` of a sum, which stands in it alone and once."""
    lanes = [product for product in below if any(a.kind == "arange" for a in product)]
    if len(lanes) == 1 and below[lanes[0]] == 1 and len(lanes[0]) == 1:
        return lanes[0]
    return None


def _fact(kernel: Kernel, reader: TermReader, lanes: _LaneBound) -> Fact | None:
    name = lanes.block_name
    if not lanes.start:
        return Fact(lanes.compare, lanes.extent_name, name, WHOLE, f"its lanes are 0 to {name} - 1")
    why = _starts_blocks(kernel, reader, lanes)
    return Fact(lanes.compare, lanes.extent_name, name, EVEN, why) if why else None


def _block_name(kernel: Kernel, block: TermCounts) -> str | None:
    one = terms.atom(block)
    if one is not None and one.kind == "name" and one.key in kernel.source.constexprs():
        return one.key
    return str(block[()]) if list(block) == [()] else None


def _starts_blocks(kernel: Kernel, reader: TermReader, lanes: _LaneBound) -> str | None:
    """Why the start is a multiple of the block and below the extent; None: it is not seen to be."""
    for one in {a for product in lanes.start for a in product}:
        if one.kind == "program" and _starts_at(lanes, one, by_block=True):
            axis = int(one.key.split()[0])
            if _grid_is(kernel, axis, lanes.extent, lanes.block_name):
                return f"the grid's axis {axis} has one program for each {lanes.block_name} of them"
        elif one.kind == "loop" and (why := _loop_starts_blocks(reader, lanes, one)) is not None:
            return why
    return None


def _starts_at(lanes: _LaneBound, one: Atom, *, by_block: bool) -> bool:
    """The start is this number, or its multiple by the block."""
    number: TermCounts = {(one,): 1}
    return lanes.start == (terms.multiply_terms(number, lanes.block) if by_block else number)


def _loop_starts_blocks(reader: TermReader, lanes: _LaneBound, one: Atom) -> str | None:
    ends = terms.bounds(one.node)
    if ends is None:
        return None
    first, end, step = (reader.terms(e) if e is not None else None for e in ends)
    if _starts_at(lanes, one, by_block=False):
        in_steps = terms.divides(lanes.block, first or {}) and _is_step(step, lanes.block)
        if end == lanes.extent and in_steps:
            return f"the loop goes to it in steps of {lanes.block_name}"
    by_block = _starts_at(lanes, one, by_block=True)
    if by_block and end is not None and _is_cdiv(reader, end, lanes.extent, lanes.block):
        return f"the loop has one round for each {lanes.block_name} of them"
    return None


def _is_step(step: TermCounts | None, block: TermCounts) -> bool:
    """A positive number of blocks."""
    if step is None or not terms.divides(block, step):
        return False
    own = {a for product in block for a in product}
    return all(
        n > 0 and all(a in own or a.kind == "programs" for a in product)
        for product, n in step.items()
    )


def _is_cdiv(reader: TermReader, end: TermCounts, extent: TermCounts, block: TermCounts) -> bool:
    one = terms.atom(end)
    return (
        one is not None
        and one.kind == "cdiv"
        and one.key == f"{terms.key(extent)} by {terms.key(block)}"
    )


# --- in the launcher -------------------------------------------------------------------------


def _grid_is(kernel: Kernel, axis: int, extent: TermCounts, block: str) -> bool:
    """The grid's axis is ``cdiv(extent, block)`` of what the launch passes for both."""
    launch, grid, plain = kernel.source.launches()[0], grid_of(kernel), TermReader(kernel.launcher)
    values = {
        name: plain.terms(e)
        for name in kernel.source.constexprs()
        if (e := passed_value(kernel, name))
    }
    reader, at = plain, None
    if isinstance(grid, ast.Lambda) and len(grid.args.args) == 1:
        reader = TermReader(kernel.launcher, values, grid.args.args[0].arg)
        grid, at = grid.body, launch.call
    (one,) = (a for product in extent for a in product)
    size = passed_value(kernel, one.key)
    given: TermCounts | None = {(): int(block)} if block.isdecimal() else values.get(block)
    if (
        not isinstance(grid, ast.Tuple | ast.List)
        or axis >= len(grid.elts)
        or size is None
        or given is None
    ):
        return False
    return _is_cdiv(reader, reader.terms(grid.elts[axis], at), plain.terms(size), given)


def _condition(kernel: Kernel, fact: Fact) -> str | None:
    """As the launcher says it; None: what it passes is more than a name, a number or a size."""
    extent = launch_constants.given_text(kernel, fact.extent)
    block = (
        fact.block if fact.block.isdecimal() else launch_constants.given_text(kernel, fact.block)
    )
    if extent is None or block is None:
        return None
    return f"{extent} % {block} == 0" if fact.needs == EVEN else f"{extent} >= {block}"


def _is_of_use(kernel: Kernel, fact: Fact) -> bool:
    """It holds in some launch of the workload, and launcher and kernel can say so."""
    said = _condition(kernel, fact) is not None and launch_constants.is_free(kernel, fact.name)
    return said and any(_holds(fact, one) for one in kernel.launched)


def _holds(fact: Fact, launched: Launched) -> bool:
    extent = launched.arguments.get(fact.extent)
    block = int(fact.block) if fact.block.isdecimal() else launched.constants.get(fact.block)
    if type(extent) is not int or type(block) is not int:
        return False
    return extent % block == 0 if fact.needs == EVEN else extent >= block
