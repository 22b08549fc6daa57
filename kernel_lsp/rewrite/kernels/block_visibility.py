"""Whether a kernel's results show how an axis was cut: then its blocks cannot have another size.

`shown(kernel, block, of_grid)` names the place where they do: an address or a stored value that
comes from the number of a block (a group's scale, a partial sum, a seed of its own), a stored
value that was reduced or scanned over the lanes of one block alone, or a function that reads or
writes lanes unseen. What later blocks go on with, and what atomic operations put together, is the
same for any size. Standard library only. Not covered: conditions on the number of a block, other
than that it is a certain one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.rewrite.kernels import effects, launchers, places, totals
from kernel_lsp.rewrite.kernels.harness import WRITES
from kernel_lsp.rewrite.kernels.lane_axes import Reach
from kernel_lsp.rewrite.kernels.source import (
    assignments,
    find_calls,
    is_set,
    names_in,
    operand,
    sources,
    stored_names,
)
from kernel_lsp.rewrite.kernels.view import Kernel

TOTALS = ("sum", "amax", "amin", "max", "min", "any", "all")
"""Of torch: what they make of one number for each block is the same however many blocks there
are."""
RANDOM = tuple(f"{name}{more}" for name in ("rand", "randn", "randint") for more in ("", "4x"))
TYPES = ("dtype", "element_ty", "type", "shape")
"""Attributes that tell nothing of a value."""


def find_visible_size(kernel: Kernel, block: str, *, of_grid: bool) -> str | None:
    """The text of the place; None: nothing of what the kernel writes shows the size of the
    block."""
    return next(map(_describe_node, _visible_places(kernel, block, of_grid=of_grid)), None)


def _visible_places(kernel: Kernel, block: str, *, of_grid: bool) -> Iterator[ast.AST]:
    yield from _handed_on(kernel, block)
    cut = _Cut(kernel.function, block)
    yield from (branch.test for branch in _of_one_block(cut))
    writes = _own_writes(kernel, cut, of_grid=of_grid)
    yield from _revealing_accesses(cut, writes)
    if of_grid:
        yield from _counting(cut, kernel.function)
    for some in _of_some_blocks(kernel.function, block, of_grid=of_grid):
        yield some.test
    yield from _reduced_writes(kernel.function, block, writes, of_grid=of_grid)


def _own_writes(kernel: Kernel, cut: _Cut, *, of_grid: bool) -> list[ast.Call]:
    """All writes but those of partial results that the launcher puts together."""
    stores = find_calls(kernel.function, "store")
    partial = [store for store in stores if of_grid and _is_put_together(kernel, cut, store)]
    return [c for name in WRITES for c in find_calls(kernel.function, name) if c not in partial]


def _revealing_accesses(cut: _Cut, writes: list[ast.Call]) -> Iterator[ast.Call]:
    """Those whose address tells a block's number; then writes of what tells it."""
    for access in (*find_calls(cut.function, "load"), *writes):
        if access.args and cut.tells(access.args[0]):
            yield access
    for write in writes:
        value = operand(write, 1, "value")
        if value is not None and cut.tells(value, lanes=True):
            yield write


class _Cut:
    """Where the number of a block shows: what is multiplied by its length."""

    def __init__(self, function: FunctionNode, block: str) -> None:
        self.function, self.block = function, block
        self.numbers: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                for one, other in ((node.left, node.right), (node.right, node.left)):
                    if isinstance(one, ast.Name) and one.id == block:
                        self._is_number(other)

    def picks(self, test: ast.expr) -> bool:
        """It is true of one certain block."""
        compared = (n for n in ast.walk(test) if isinstance(n, ast.Compare))
        exact = [n for n in compared if isinstance(n.ops[0], ast.Eq | ast.NotEq)]
        return any(
            self._depends(s) or self.tells(s) for n in exact for s in (n.left, *n.comparators)
        )

    def _is_number(self, node: ast.expr) -> None:
        node = _plain(node)
        if isinstance(node, ast.Constant) or ast.unparse(node) in self.numbers:
            return
        if isinstance(node, ast.Name):
            values = assignments(self.function).get(node.id, ())
            if not values:
                return  # a parameter: a stride, a count
            if len(values) == 1 and not _is_range(values[0]):
                self._is_number(values[0])
        self.numbers.add(ast.unparse(node))

    def tells(
        self, node: ast.expr, seen: frozenset[str] = frozenset(), *, lanes: bool = False
    ) -> bool:
        """The value comes from a block's number, other than as the place where the block begins.

        ``lanes``: or from the numbers of lanes inside of their block.
        """
        node = _plain(node)
        if ast.unparse(node) in self.numbers:
            return True
        match node:
            case ast.Name(id=name):
                return name not in seen and self._is_set_from_number(name, seen, lanes=lanes)
            case ast.Compare(left=left, comparators=[*others]):
                return any(self._draws(side, seen) for side in (left, *others))
            case ast.BinOp(op=ast.FloorDiv(), left=left, right=right) if self._depends(right):
                return _is_name(right, self.block) and self._depends(left)
            case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
                # What both sides depend on is a lane's place in the axis.
                lanes = lanes and not (self._depends(left) and self._depends(right))
            case ast.Call() if find_calls(node, "arange") == [node]:
                return lanes and self._depends(node)
        if self._is_silent(node):
            return False
        return any(self.tells(child, seen, lanes=lanes) for child in _operands(node))

    def _is_set_from_number(self, name: str, seen: frozenset[str], *, lanes: bool) -> bool:
        values = assignments(self.function).get(name, ())
        return any(self.tells(v, seen | {name}, lanes=lanes) for v in values if not _is_range(v))

    def _is_silent(self, node: ast.expr) -> bool:
        """It tells nothing, or is asked for itself: the address of a load."""
        match node:
            case ast.Constant() | ast.Call(func=ast.Attribute(attr="load")):
                return True
            case ast.Attribute(attr=name):
                return name in TYPES
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                return self._cut((left, right))
        return False

    def _draws(self, node: ast.expr, seen: frozenset[str]) -> bool:
        """Random numbers are compared, of a seed that tells the block or a lane's place inside of
        it."""
        names = sources(self.function, node)
        values = [v for name in names for v in assignments(self.function).get(name, ())]
        draws = (c for value in (node, *values) for name in RANDOM for c in find_calls(value, name))
        return any(self.tells(a, seen, lanes=True) for call in draws for a in _operands(call))

    def _cut(self, sides: tuple[ast.expr, ...]) -> bool:
        return any(self.block in names_in(side) for side in sides)

    def _depends(self, node: ast.expr) -> bool:
        return self.block in sources(self.function, node)


def _of_one_block(cut: _Cut) -> Iterator[ast.If]:
    """Branches for one block that do something to each of its lanes."""
    reach = Reach(cut.function, cut.block)
    for branch in (n for n in ast.walk(cut.function) if isinstance(n, ast.If)):
        if cut.picks(branch.test):
            made: list[ast.expr] = [ast.Name(name, ast.Load()) for name in stored_names(branch)]
            made += [c.args[0] for name in WRITES for c in find_calls(branch, name) if c.args]
            if any(reach.of(one).axes for one in made):
                yield branch


def _of_some_blocks(
    function: FunctionNode, block: str, *, of_grid: bool
) -> Iterator[ast.If | ast.While]:
    """Branches by what was reduced over one block, that write, or in a program of one block end it
    or set anything; what a loop goes on with may be set by what each of its blocks has."""
    reductions = {id(call) for call in Reach(function, block).reductions()}
    for part in (function,) if of_grid else _loops_over(function, block):
        made = _made_of(part, reductions)
        for branch in (n for n in ast.walk(part) if isinstance(n, ast.If | ast.While)):
            acts = _writes_or_ends(branch) or (of_grid and stored_names(branch))
            if acts and _comes(branch.test, reductions, made):
                yield branch


def _loops_over(function: FunctionNode, block: str) -> list[ast.For]:
    loops = (n for n in ast.walk(function) if isinstance(n, ast.For))
    return [loop for loop in loops if block in names_in(loop.iter)]


def _writes_or_ends(branch: ast.AST) -> bool:
    """It writes to memory, or ends a program or a loop."""
    ending = ast.Return | ast.Break | ast.Continue
    return any(isinstance(n, ending) for n in ast.walk(branch)) or any(
        find_calls(branch, name) for name in WRITES
    )


def _counting(cut: _Cut, function: FunctionNode) -> Iterator[ast.Call]:
    """Additions of one number for each block, whatever lanes it has: they count the blocks."""
    reach = Reach(function, cut.block)
    picked = [n for n in ast.walk(function) if isinstance(n, ast.If) and cut.picks(n.test)]
    once = {id(n) for branch in picked for n in ast.walk(branch)}
    reduced = {id(call) for call in reach.reductions()}
    for call in find_calls(function, "atomic_add"):
        given = [*call.args[:3], *(k.value for k in call.keywords)]
        lanes = any(reach.of(one).axes for one in given)
        if (
            not lanes
            and id(call) not in once
            and not _comes(call, reduced, _made_of(function, reduced))
        ):
            yield call


def _plain(node: ast.expr) -> ast.expr:
    """Without a cast to another width."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "to"
    ):
        node = node.func.value
    return node


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
        "range",
        "static_range",
    )


def _operands(node: ast.AST) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.keyword):
            yield child.value


# --- what is reduced over one block ------------------------------------------------------------


def _reduced_writes(
    function: FunctionNode, block: str, writes: list[ast.Call], *, of_grid: bool
) -> Iterator[ast.Call]:
    """Writes of what was reduced over one block, or where that says to, and that no later block
    goes on with, nor an atomic operation."""
    reductions = {id(call) for call in Reach(function, block).reductions()}
    loops = _loops_over(function, block)
    for write in writes:
        around = [loop for loop in loops if any(n is write for n in ast.walk(loop))]
        for part in (function,) if of_grid else around:
            for given in _reduced_operands(write, part, reductions):
                if of_grid or not sources(part, given, names=_of_data) & handed_on(part.body):
                    yield write


def _reduced_operands(
    write: ast.Call, part: FunctionNode | ast.For, reductions: set[int]
) -> list[ast.expr]:
    """Value and mask of a write, where they come from a reduction that its result shows."""
    is_atomic = not find_calls(write, "store")
    value = operand(write, 1, "val" if is_atomic else "value")
    hidden = is_atomic and not totals.is_visible(write, part, reductions)
    asked = [None if hidden else value, operand(write, 2, "mask")]
    made = _made_of(part, reductions)
    return [one for one in asked if one is not None and _comes(one, reductions, made)]


def _made_of(part: FunctionNode | ast.For, calls: set[int]) -> set[str]:
    """Names that these calls are part of, in this part of the kernel: behind a loop all blocks are
    in."""
    within = {id(n) for n in ast.walk(part)} & calls
    names: set[str] = set()
    while True:
        made = (
            n
            for n, values in assignments(part).items()
            if any(_comes(v, within, names) for v in values)
        )
        more = names.union(made)
        if more == names:
            return names
        names = more


def handed_on(body: Sequence[ast.stmt]) -> set[str]:
    """Names that a round of a loop reads as the one before has left them."""
    found: set[str] = set()
    known: set[str] = set()
    for statement in body:
        inner = [getattr(statement, name, []) for name in ("body", "orelse")]
        if isinstance(statement, ast.If | ast.For | ast.While):
            for block in inner:
                found |= handed_on(block) - known
        elif isinstance(statement, ast.AugAssign):
            found |= names_in(statement) - known
        else:
            found |= {
                n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and not is_set(n)
            } - known
            known |= set(stored_names(statement))
    return found & set().union(*map(stored_names, body))


def _comes(node: ast.AST, calls: set[int], names: set[str]) -> bool:
    return id(node) in calls or any(
        id(one) in calls or (isinstance(one, ast.Name) and one.id in names)
        for one in _data(node, conditions=True)
    )


def _data(node: ast.AST, *, conditions: bool = False) -> Iterator[ast.AST]:
    """The node and what its value comes from, without addresses."""
    yield node
    if isinstance(node, ast.Compare) and not conditions:
        return
    if isinstance(node, ast.Call) and find_calls(node, "load")[:1] == [node]:
        return
    if isinstance(node, ast.Attribute) and node.attr in TYPES:
        return
    for child in ast.iter_child_nodes(node):
        yield from _data(child, conditions=conditions)


def _of_data(node: ast.AST) -> set[str]:
    return {one.id for one in _data(node) if isinstance(one, ast.Name)}


def _handed_on(kernel: Kernel, block: str) -> Iterator[ast.Call]:
    """Calls of functions that are given an address and lanes of the block."""
    function, pointers = kernel.function, kernel.pointers().keys()
    unseen = effects.helpers(kernel, function)
    for call in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
        if ast.unparse(call.func) in unseen:
            given = [*call.args, *(k.value for k in call.keywords)]
            reached = set[str]().union(*(sources(function, one, names=_of_data) for one in given))
            lanes = set[str]().union(*(sources(function, one) for one in given))
            if reached & pointers and block in lanes:
                yield call


# --- partial results ---------------------------------------------------------------------------


def _is_put_together(kernel: Kernel, cut: _Cut, store: ast.Call) -> bool:
    """It writes one number for each block into memory that the launcher makes by the same block,
    and that only totals and other kernels read. Where autotune chooses the block, the launcher
    does not know it."""
    pointers = (
        sources(kernel.function, store.args[0]) & kernel.pointers().keys() if store.args else set()
    )
    launches = kernel.source.launches()
    if len(pointers) != 1 or not cut.tells(store.args[0]) or kernel.source.configs() is not None:
        return False
    if len(launches) != 1:
        return False
    given = places.argument(kernel, pointers.pop())
    if not isinstance(given, ast.Name) or not launchers.allocates(kernel.launcher, given.id):
        return False
    return all(_is_total(kernel.launcher, n) for n in _reads(kernel.launcher, given.id))


def _reads(launcher: FunctionNode, name: str) -> Iterator[ast.Name]:
    for node in ast.walk(launcher):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield node


def _is_total(launcher: FunctionNode, name: ast.Name) -> bool:
    for node in ast.walk(launcher):
        match node:
            case ast.Call(func=ast.Subscript(), args=args, keywords=keywords):
                if any(name is one for one in (*args, *(k.value for k in keywords))):
                    return True
            case ast.Call(func=ast.Attribute(value=value, attr=attr), args=args) if attr in TOTALS:
                if value is name or (ast.unparse(value) == "torch" and args[:1] == [name]):
                    return True
    return False


def _describe_node(node: ast.AST) -> str:
    return f"`{ast.unparse(node)[:80]}`"
