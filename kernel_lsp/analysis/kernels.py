"""What a Triton kernel's own code says: its memory accesses, and what its values depend on.

Flow-insensitive: a name depends on everything that any of its bindings depends on, tests of
enclosing branches included. Not covered: launches and tuning (launches.py), other files,
shapes, dtypes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kernel_lsp.analysis.source import (
    DefinitionNode,
    FunctionNode,
    ParsedSource,
    blocks,
    children,
    integer,
    walk,
    words,
)
from kernel_lsp.analysis.targets import parameters

_LANGUAGE = "triton.language."
# Position of the mask and of the value that is stored.
_MASKS = {"load": 1, "store": 2, "atomic_cas": None} | {
    f"atomic_{name}": 2 for name in words("add max min and or xor xchg")
}
# Python builtins inside a kernel that give nothing but their arguments.
TRANSPARENT = words("range min max abs int float bool len")
WIDE = words("int64 uint64")
KernelLoop = ast.For | ast.While


@dataclass(frozen=True, slots=True)
class PointerAccess:
    """One load, store or atomic operation through a pointer."""

    call: ast.Call
    name: str
    """``load``, ``store``, ``atomic_add`` …"""
    pointer: ast.expr
    value: ast.expr | None
    """What is stored or combined; None for a load."""
    mask: ast.expr | None
    other: ast.expr | None
    loops: tuple[KernelLoop, ...]
    """Enclosing loops, outermost first."""
    tests: tuple[ast.expr, ...]
    """Conditions under which it runs, those of earlier returns included."""
    block: int
    """Identity of the statement list that it stands in; accesses of one list run in order."""

    @property
    def is_load(self) -> bool:
        """Whether it reads through the pointer and writes nothing."""
        return self.name == "load"


@dataclass(frozen=True, slots=True)
class Binding:
    """One place where a local gets a value."""

    value: ast.expr
    is_exact: bool
    """The local is this value and not a part of it, a loop's variable or a sum with its old
    value."""
    tests: tuple[ast.expr, ...]
    loops: tuple[KernelLoop, ...]


class KernelFacts:
    """One jit function, read once."""

    def __init__(self, file: ParsedSource, function: FunctionNode) -> None:
        self.file = file
        self.function = function
        self.parameters = [p.arg for p in parameters(function)]
        self.constexprs = {p.arg for p in parameters(function) if is_constexpr(file, p)}
        self.accesses: list[PointerAccess] = []
        self.bindings: dict[str, list[Binding]] = {}
        self._atoms: dict[int, frozenset[str]] = {}
        self._block(function.body, (), ())

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All syntax nodes of the function's body, statement by statement."""
        return tuple(n for statement in self.function.body for n in walk(statement))

    @cached_property
    def calls(self) -> tuple[tuple[ast.Call, str | None], ...]:
        """Calls with their name in triton.language."""
        return tuple(
            (n, language_name(self.file, n.func)) for n in self.nodes if isinstance(n, ast.Call)
        )

    @cached_property
    def loops(self) -> tuple[KernelLoop, ...]:
        """The kernel's loops, inner ones too."""
        return tuple(n for n in self.nodes if isinstance(n, KernelLoop))

    def called(self, node: ast.expr) -> str | None:
        """``exp`` for ``tl.exp(x)``; None for anything else."""
        return language_name(self.file, node.func) if isinstance(node, ast.Call) else None

    def resolve(self, node: ast.expr) -> ast.expr:
        """The expression behind a local that is bound once; the node itself otherwise."""
        for _ in range(8):
            if not isinstance(node, ast.Name) or node.id in self.parameters:
                return node
            bound = self.bindings.get(node.id, [])
            # Only what stands before: a loop's later statement is another value, and may lead back
            # here.
            if len(bound) != 1 or not bound[0].is_exact or _place(bound[0].value) >= _place(node):
                return node
            node = bound[0].value
        return node

    def base(self, pointer: ast.expr) -> str | None:
        """The parameter that a pointer starts from; None unless there is exactly one candidate."""
        return self._base(pointer, frozenset())

    def _base(self, pointer: ast.expr, seen: frozenset[str]) -> str | None:
        node = pointer
        for _ in range(64):
            node = self.resolve(node)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
                node = node.left  # ``offset + pointer`` is legal and so rare that it may be unknown
                continue
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "to"
            ):
                node = node.func.value
                continue
            break
        if (
            isinstance(node, ast.Name)
            and node.id in self.parameters
            and node.id not in self.constexprs
        ):
            return node.id
        if isinstance(node, ast.Name) and node.id not in self.parameters and node.id not in seen:
            return self._moving_base(node.id, seen | {node.id})
        return None

    def _moving_base(self, name: str, seen: frozenset[str]) -> str | None:
        """The parameter behind a pointer that a loop advances: ``p = x + offs`` and later ``p +=
        step``."""
        if len(seen) > 4:
            return None  # pointers that are swapped around may start anywhere
        bound = self.bindings.get(name, [])
        starts = {self._base(b.value, seen) for b in bound if name not in names_in(b.value)}
        return starts.pop() if len(starts) == 1 else None

    def reached(self, node: ast.AST) -> Iterator[ast.AST]:
        """Every node that the value is computed from, through all bindings of the names on the
        way."""
        seen: set[str] = set()
        queue = [node]
        while queue:
            for child in walk(queue.pop()):
                yield child
                if isinstance(child, ast.Name) and child.id not in seen:
                    seen.add(child.id)
                    queue += [binding.value for binding in self.bindings.get(child.id, ())]

    def formula(self, node: ast.expr) -> Iterator[ast.AST]:
        """The value's arithmetic through names that are bound once, down to loads and to what is
        unknown."""
        queue: list[ast.AST] = [node]
        for _ in range(256):  # a sum of doubled names has no end worth reaching
            if not queue:
                return
            part = queue.pop()
            part = self.resolve(part) if isinstance(part, ast.expr) else part
            yield part
            if not (isinstance(part, ast.Call) and self.called(part) == "load"):
                queue += children(part)

    def atoms(self, node: ast.AST) -> frozenset[str]:
        """What a value depends on: parameters by name, ``pid:0``, ``lanes``, ``memory``,
        ``opaque``."""
        known = self._atoms.get(id(node))
        if known is None:
            known = self._atoms[id(node)] = self._find_atoms(node)
        return known

    def _find_atoms(self, node: ast.AST) -> frozenset[str]:
        found: set[str] = set()
        seen: set[str] = set()
        queue = [node]
        while queue:
            for child in walk(queue.pop()):
                if isinstance(child, ast.Call):
                    found |= self._call_atoms(child)
                elif isinstance(child, ast.Name) and child.id not in seen:
                    seen.add(child.id)
                    if child.id in self.parameters:
                        found.add(child.id)
                    for binding in self.bindings.get(child.id, ()):
                        queue += [binding.value, *binding.tests]
        return frozenset(found)

    def _call_atoms(self, call: ast.Call) -> set[str]:
        name = language_name(self.file, call.func)
        if name == "program_id":
            axis = call.args[0] if call.args else next((k.value for k in call.keywords), None)
            number = integer(axis)
            return {"pid:?" if number is None else f"pid:{number}"}
        if name == "arange":
            return {"lanes"}
        if name == "load" or (name or "").startswith("atomic_"):
            return {"memory"}
        if name is not None or isinstance(call.func, ast.Attribute):
            return set()
        is_known = isinstance(call.func, ast.Name) and call.func.id in TRANSPARENT
        return set() if is_known else {"opaque"}

    def _block(
        self, body: list[ast.stmt], loops: tuple[KernelLoop, ...], tests: tuple[ast.expr, ...]
    ) -> None:
        block = id(body)
        for statement in body:
            if isinstance(statement, DefinitionNode):
                continue
            for child in children(statement):
                if isinstance(child, ast.expr):
                    self.accesses += self._accesses(child, loops, tests, block)
            self._bind(statement, loops, tests)
            inner_loops = (*loops, statement) if isinstance(statement, KernelLoop) else loops
            inner_tests = (
                (*tests, statement.test) if isinstance(statement, ast.If | ast.While) else tests
            )
            for nested in blocks(statement):
                self._block(nested, inner_loops, inner_tests)
            if isinstance(statement, ast.If) and _leaves(statement):
                tests = (*tests, statement.test)

    def _accesses(
        self, root: ast.expr, loops: tuple[KernelLoop, ...], tests: tuple[ast.expr, ...], block: int
    ) -> Iterator[PointerAccess]:
        for node in walk(root):
            if (
                not isinstance(node, ast.Call)
                or (name := language_name(self.file, node.func)) not in _MASKS
            ):
                continue
            if not node.args or any(isinstance(a, ast.Starred) for a in node.args):
                continue
            if any(k.arg is None for k in node.keywords):
                continue
            yield PointerAccess(
                call=node,
                name=name,
                pointer=node.args[0],
                value=None
                if name == "load"
                else _find_argument(node, 1, "val" if name != "store" else "value"),
                mask=_find_argument(node, _MASKS[name], "mask"),
                other=_find_argument(node, 2, "other") if name == "load" else None,
                loops=loops,
                tests=tests,
                block=block,
            )

    def _bind(
        self, statement: ast.stmt, loops: tuple[KernelLoop, ...], tests: tuple[ast.expr, ...]
    ) -> None:
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind_target(target, value, loops, tests)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind_target(target, value, loops, tests)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                read = ast.copy_location(ast.Name(id=name, ctx=ast.Load()), value)
                total = ast.copy_location(ast.BinOp(left=read, op=op, right=value), value)
                self._add(name, Binding(total, False, tests, loops))
            case ast.For(target=target, iter=value):
                for name in names_in(target):
                    self._add(name, Binding(value, False, tests, (*loops, statement)))

    def _bind_target(
        self,
        target: ast.expr,
        value: ast.expr,
        loops: tuple[KernelLoop, ...],
        tests: tuple[ast.expr, ...],
    ) -> None:
        if isinstance(target, ast.Name):
            is_own = target.id in names_in(value)
            self._add(target.id, Binding(value, not is_own, tests, loops))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for part, given in zip(target.elts, value.elts, strict=False):
                self._bind_target(part, given, loops, tests)
        else:
            for name in names_in(target):
                self._add(name, Binding(value, False, tests, loops))

    def _add(self, name: str, binding: Binding) -> None:
        self.bindings.setdefault(name, []).append(binding)


def language_name(file: ParsedSource, node: ast.expr) -> str | None:
    """``load`` for ``tl.load``; None for anything outside triton.language."""
    dotted = file.dotted(node)
    return dotted[len(_LANGUAGE) :] if dotted and dotted.startswith(_LANGUAGE) else None


def is_constexpr(file: ParsedSource, parameter: ast.arg) -> bool:
    """Whether the parameter is annotated as ``tl.constexpr``, also in a string or with a
    subscript."""
    annotation = parameter.annotation
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.endswith("constexpr")
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    return annotation is not None and language_name(file, annotation) == "constexpr"


def is_wide(file: ParsedSource, parameter: ast.arg) -> bool:
    """Whether the parameter is annotated as an integer of 64 bits, which Triton then passes it
    as."""
    annotation = parameter.annotation
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.rpartition(".")[2] in WIDE
    return annotation is not None and language_name(file, annotation) in WIDE


def names_in(node: ast.AST) -> frozenset[str]:
    """All names that an expression or statement mentions."""
    return frozenset(n.id for n in walk(node) if isinstance(n, ast.Name))


def _find_argument(call: ast.Call, position: int | None, name: str) -> ast.expr | None:
    given = next((k.value for k in call.keywords if k.arg == name), None)
    if given is None and position is not None and position < len(call.args):
        given = call.args[position]
    is_none = isinstance(given, ast.Constant) and given.value is None
    return None if is_none else given


def _place(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _leaves(statement: ast.If) -> bool:
    return bool(statement.body) and isinstance(
        statement.body[-1], ast.Return | ast.Break | ast.Continue
    )
