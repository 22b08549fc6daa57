"""Block sizes that may be other ones: constexprs that cut an axis into pieces, each piece masked.

`adjustable(kernel)` finds every constexpr P of which the text shows how it is used: offsets ``P *
program + arange(0, P)`` under a grid of ``cdiv(extent, P)``, or a loop that advances by P, and
every access that depends on P moves with program or loop. Where all of these are masked, any power
of two means the same; where one is not, only sizes that divide today's do. Not covered: a
constexpr that also selects code or sizes a tensor of the launcher."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.rewrite.kernels import block_visibility, heuristics
from kernel_lsp.rewrite.kernels.grids import (
    OF_GRID,
    OF_LOOP,
    constants,
    divisors,
    follows,
    grid_of,
    own_extent,
    parts,
)
from kernel_lsp.rewrite.kernels.hoisting import FREE, HELD, Moving
from kernel_lsp.rewrite.kernels.launched import Blocks
from kernel_lsp.rewrite.kernels.source import (
    assignments,
    find_assignments,
    find_calls,
    names_in,
    operand,
    sources,
)
from kernel_lsp.rewrite.kernels.view import Kernel

ATOMICS = ("add", "max", "min", "and", "or", "xor", "cas", "xchg")
MIN_BLOCK, MAX_BLOCK = 16, 8192
"""Of a block's length: tl.dot needs 16, and no kernel holds more than some thousand numbers of a
row."""
BYTES = ("int8", "uint8", "float8")
MIN_OF_BYTES = 32
"""tl.dot needs so many products of numbers of 8 bits (the compiler of Triton 3.9 says so for
sm_90)."""


@dataclass(frozen=True, slots=True)
class BlockParameter:
    """One constexpr that cuts an axis."""

    name: str
    value: int
    masked: bool
    """Every load and store that depends on it has a mask that does, too."""
    places: tuple[ast.expr, ...]
    """Constants of the launcher's text that are its value; empty: autotune chooses it."""
    why: str
    """The fact that shows how it is used."""
    decided: bool = False
    """A heuristic of the kernel's decorator computes it: there it becomes a constant."""
    least: int = MIN_BLOCK

    @property
    def of_grid(self) -> bool:
        """Each program takes one block, rather than a loop that goes through them."""
        return self.why == OF_GRID

    def choices(self, guess: int | None = None) -> list[int]:
        """A guess first, where it may be; then today's, then the nearest."""
        found = [guess, self.value] if guess is not None and self._may_be(guess) else [self.value]
        for factor in (2, 4, 8, 16, 32):
            found += [
                size for size in (self.value // factor, self.value * factor) if self._may_be(size)
            ]
        return list(dict.fromkeys(found))

    def _may_be(self, size: int) -> bool:
        return self.least <= size <= MAX_BLOCK and (self.masked or size < self.value)


def adjustable(kernel: Kernel) -> list[BlockParameter]:
    """Every block size of the kernel that a rewrite may change, in the order of its parameters."""
    if not kernel.source.launches():
        return []  # whose grid nobody sees
    found = (_adjustable(kernel, name) for name in kernel.source.constexprs())
    return [one for one in found if one is not None]


def _adjustable(kernel: Kernel, name: str) -> BlockParameter | None:
    why = _use(kernel, name)
    if why is None:
        return None
    moving = Moving(kernel.function, name)
    if not _moves(kernel.function, moving):
        return None
    if block_visibility.find_visible_size(kernel, name, of_grid=why == OF_GRID) is not None:
        return None
    masked = _is_masked(kernel.function, name, moving)
    if kernel.source.configs() is not None:
        return _of_configs(kernel, name, why, masked)
    if name in heuristics.decided_names(kernel):
        return _of_heuristic(kernel, name, why, masked)
    places = _places(kernel, name, why)
    if places is None:
        return None
    value, least = int(kernel.launched[0].constants[name]), _least(kernel)
    return BlockParameter(name, value, masked, tuple(places), why, least=least)


def _of_configs(kernel: Kernel, name: str, why: str, masked: bool) -> BlockParameter | None:
    """What autotune chooses from."""
    configs = [config for one in kernel.launched for config in one.configs]
    values = {config[name] for config in configs if name in config}
    if not values or not follows(kernel, name, why, None):
        return None
    return BlockParameter(name, max(values), masked, (), why, least=_least(kernel))


def _of_heuristic(kernel: Kernel, name: str, why: str, masked: bool) -> BlockParameter | None:
    """Today's heuristic follows the size at hand; without masks a constant may fit today's
    alone."""
    if not masked or not heuristics.may_be_constant(kernel, name):
        return None
    if not follows(kernel, name, why, None):
        return None
    value, least = int(kernel.launched[0].constants[name]), _least(kernel)
    return BlockParameter(name, value, masked, (), why, decided=True, least=least)


# --- in the kernel ---------------------------------------------------------------------------


def _least(kernel: Kernel) -> int:
    """The shortest block: a product's inner one, of the narrowest numbers."""
    bytes_ = any(one.dtype.startswith(BYTES) for one in kernel.pointers().values())
    return MIN_OF_BYTES if bytes_ and find_calls(kernel.function, "dot") else MIN_BLOCK


def _is_understood(kernel: Kernel, node: ast.AST, parents: list[ast.AST]) -> bool:
    """Whether this use of a block's size is one that follows when the size changes."""
    parent = parents[-1]
    if _is_range(parent):
        return len(parent.args) == 3 and parent.args[2] is node
    if isinstance(parent, ast.Call):
        return _attribute(parent) in ("arange", "cdiv")
    if isinstance(parent, ast.Tuple | ast.List):
        return _shapes(parents)
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult | ast.Add):
        return _is_place(kernel, _other_operand(parent, node))
    if isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Add):
        return _is_place(kernel, parent.target)
    return False


def _counts_turns(parents: list[ast.AST]) -> bool:
    """Whether the size divides the extent of a loop: ``range(tl.cdiv(N, BLOCK))``."""
    parent = parents[-1]
    return isinstance(parent, ast.Call) and _attribute(parent) == "cdiv" and _in_range(parents)


def _is_range(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"
    )


def _other_operand(operation: ast.BinOp, node: ast.AST) -> ast.expr:
    return operation.left if operation.right is node else operation.right


def _steps_by_program(function: FunctionNode, node: ast.AST, parent: ast.AST) -> bool:
    """Whether the size is multiplied by the program's number."""
    if not isinstance(parent, ast.BinOp) or not isinstance(parent.op, ast.Mult):
        return False
    return _is_program(function, _other_operand(parent, node))


def _use(kernel: Kernel, name: str) -> str | None:
    """How the kernel uses it, or None when it does something that is not understood."""
    function, loop, grid = kernel.function, False, False
    for node, parents in _uses(function, name):
        parent = parents[-1]
        if not _is_understood(kernel, node, parents):
            return None
        loop = loop or _is_range(parent) or _counts_turns(parents)
        grid = grid or _steps_by_program(function, node, parent)
    if not find_calls(function, "arange") or not (loop or grid):
        return None
    return OF_GRID if grid else OF_LOOP


def _uses(function: FunctionNode, name: str) -> Iterator[tuple[ast.Name, list[ast.AST]]]:
    def walk(node: ast.AST, parents: list[ast.AST]) -> Iterator[tuple[ast.Name, list[ast.AST]]]:
        if isinstance(node, ast.Name) and node.id == name:
            yield node, parents
        for child in ast.iter_child_nodes(node):
            yield from walk(child, [*parents, node])

    for statement in function.body:
        yield from walk(statement, [function])


def _attribute(call: ast.Call) -> str | None:
    return call.func.attr if isinstance(call.func, ast.Attribute) else None


def _in_range(parents: list[ast.AST]) -> bool:
    return any(
        isinstance(p, ast.Call) and ast.unparse(p.func).split(".")[-1] == "range" for p in parents
    )


def _shapes(parents: list[ast.AST]) -> bool:
    """In the shape of a fresh block: tl.zeros((M, N), …), tl.full."""
    calls = [p for p in parents if isinstance(p, ast.Call)]
    return bool(calls) and _attribute(calls[-1]) in ("zeros", "full", "broadcast_to")


def _is_place(kernel: Kernel, node: ast.expr) -> bool:
    """Where something is, rather than what: of no load, and of no number that is not whole."""
    names = sources(kernel.function, node)
    values = [
        node,
        *(value for name in names for value in assignments(kernel.function).get(name, ())),
    ]
    given = {name: one.arguments.get(name) for one in kernel.launched for name in names}
    return not any(find_calls(value, "load") for value in values) and not any(
        isinstance(number, float) for number in given.values()
    )


def _is_program(function: FunctionNode, node: ast.expr) -> bool:
    """A number of the program in its grid: tl.program_id, or a name that stands for (a part of)
    one."""
    if find_calls(node, "program_id"):
        return True
    values = [
        value for name in sources(function, node) for value in assignments(function).get(name, ())
    ]
    return any(find_calls(value, "program_id") for value in values)


def _moves(function: FunctionNode, moving: Moving) -> bool:
    """No access goes to one block alone, as one to a row that is held whole would."""
    pointers = ((access, operand(access, 0, "pointer")) for _, access in _accesses(function))
    return all(
        pointer is not None and HELD not in moving.at(access, pointer)
        for access, pointer in pointers
    )


def _accesses(function: FunctionNode) -> Iterator[tuple[int, ast.Call]]:
    """Every load, store and atomic operation, with the place of its mask among the arguments."""
    for kind, at in (("load", 1), ("store", 2), *((f"atomic_{op}", 2) for op in ATOMICS)):
        yield from ((at, access) for access in find_calls(function, kind))


def _is_masked(function: FunctionNode, name: str, moving: Moving) -> bool:
    """Of all loads and stores that depend on the block. Offsets that are taken modulo something
    stay inside what they are taken of, so a load through them needs no mask."""
    if find_calls(function, "make_block_ptr") or find_calls(function, "make_tensor_descriptor"):
        return False
    for at, access in _accesses(function):
        counting = _names_outside_modulo if at == 1 else names_in
        through = sources(function, access.args[0], names=counting) if access.args else {name}
        mask = operand(access, at, "mask")
        if name in through and (mask is None or FREE in moving.at(access, mask)):
            return False
    return True


def _names_outside_modulo(node: ast.AST) -> set[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return set()
    own = {node.id} if isinstance(node, ast.Name) else set()
    return own.union(*(_names_outside_modulo(child) for child in ast.iter_child_nodes(node)))


# --- in the launcher -------------------------------------------------------------------------


def _places(kernel: Kernel, name: str, why: str) -> list[ast.expr] | None:
    """Constants to change, or None when the text does not show all of them."""
    launches = kernel.source.launches()
    if len(launches) != 1 or not kernel.launched:
        return None
    given = passed_value(kernel, name)
    value = kernel.launched[0].constants.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    if isinstance(given, ast.Constant):
        return _places_of_literal(kernel, name, why, given)
    if isinstance(given, ast.Name):
        literal = _assigned_literal(kernel, given.id, value)
        if literal is not None:
            return [literal] if follows(kernel, given.id, why, None, name) else None
    if any(isinstance(v, Blocks) for v in kernel.launched[0].arguments.values()):
        return None  # a descriptor may have a block of this size
    if given is None or why != OF_LOOP or _is_passed_elsewhere(kernel, given):
        return None
    # However the launcher computes it: the loop alone knows it.
    return [given] if follows(kernel, ast.unparse(given), why, None, name) else None


def _places_of_literal(
    kernel: Kernel, name: str, why: str, given: ast.Constant
) -> list[ast.expr] | None:
    """The number that is passed, and where the launch's grid divides by it. None where the same
    number may mean something else."""
    value = kernel.launched[0].constants[name]
    others = [passed_value(kernel, other) for other in kernel.source.constexprs()]
    inside = [n for n in constants(kernel.launcher, value) if not any(n is one for one in others)]
    cut = divisors(kernel.launcher, grid_of(kernel), value)
    if any(n not in cut for n in inside):
        return None  # the same number elsewhere may mean the same thing
    if not any(_is_literal(o, value) and o is not given for o in others):
        return [given, *cut] if follows(kernel, name, why, value) else None
    if not cut:  # the grid names its blocks, if any: meta["BLOCK_M"]
        return [given] if follows(kernel, name, why, None) else None
    own = own_extent(kernel, name)
    if own is None:
        return None  # it may be that other block's
    cut = divisors(kernel.launcher, own, value)
    return [given, *cut] if bool(cut) is (why == OF_GRID) else None


def _is_literal(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


def _assigned_literal(kernel: Kernel, variable: str, value: int) -> ast.Constant | None:
    """The number that the launcher assigns to the variable, once; None: something else."""
    assigned = find_assignments(kernel.launcher, variable)
    if len(assigned) != 1 or not isinstance(assigned[0].value, ast.Constant):
        return None
    return assigned[0].value if assigned[0].value.value == value else None


def _is_passed_elsewhere(kernel: Kernel, given: ast.expr) -> bool:
    """What is passed for the block is part of another argument, too: a flag or a count that fits
    it alone."""
    call, text = kernel.source.launches()[0].call, ast.unparse(given)
    parameters = {a.arg for a in ast.walk(kernel.function.args) if isinstance(a, ast.arg)}
    passed_by_name = [k.value for k in call.keywords if k.arg is None or k.arg in parameters]
    others = [one for one in (*call.args, *passed_by_name) if one is not given]
    values = [v for one in others for v in parts(kernel.launcher, one)]
    named = set[str]().union(*(sources(kernel.launcher, one) for one in others))
    return text in named or any(
        isinstance(n, ast.expr) and ast.unparse(n) == text
        for value in values
        for n in ast.walk(value)
    )


def passed_value(kernel: Kernel, name: str) -> ast.expr | None:
    """What the launch passes for a parameter; None: its default."""
    launch = next(iter(kernel.source.launches()), None)
    if launch is None:
        return None
    if (given := launch.keyword(name)) is not None:
        return given
    names = [a.arg for a in kernel.function.args.args]
    values = launch.call.args
    at = names.index(name) if name in names else len(values)
    if at >= len(values) or any(isinstance(one, ast.Starred) for one in values[: at + 1]):
        return None
    return values[at]
