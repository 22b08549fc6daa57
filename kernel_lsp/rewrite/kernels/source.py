"""The text of a kernel's program: its functions, launches and configurations, and edits by
position.

Standard library only. Not covered: launches of ``kernel[grid]`` by what it was handed to, such as
functools.partial, and of kernels that are kept in containers or objects.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernel_lsp import parsing
from kernel_lsp.errors import RewriteError
from kernel_lsp.parsing import FunctionNode as FunctionNode


@dataclass(frozen=True, slots=True)
class LauncherCall:
    """``kernel[grid](arguments)`` in the launcher, where ``kernel`` or ``kernel[grid]`` may have a
    name."""

    call: ast.Call
    grid: ast.expr

    def keyword(self, name: str) -> ast.expr | None:
        """The argument that the launch passes by that name; None: it passes none."""
        return next((k.value for k in self.call.keywords if k.arg == name), None)


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One program, parsed. ``launcher`` launches ``kernel``."""

    text: str
    kernel: str
    launcher: str
    tree: ast.Module = field(repr=False)

    @classmethod
    def parse(cls, text: str, kernel: str, launcher: str) -> KernelSource:
        """The parsed program. Raises RewriteError where one of the two is not there."""
        made = cls(text, kernel, launcher, parsing.parse_text(text))
        made.function(kernel)
        made.function(launcher)
        return made

    def function(self, qualname: str) -> FunctionNode:
        """The last definition of this name counts, as in Python."""
        found = _functions(self.tree).get(qualname)
        if found is None:
            raise RewriteError(
                f"{qualname} is not defined in the program", "analyze the file again"
            )
        return found

    def needs_object(self, qualname: str) -> bool:
        """Whether it is a method that is called with an object of its class."""
        decorators = {ast.unparse(one) for one in self.function(qualname).decorator_list}
        return "." in qualname and not decorators & {"staticmethod", "classmethod"}

    def launches(self) -> list[LauncherCall]:
        """All launches of the kernel in the launcher, in the order of the text."""
        return [
            launch
            for name, launch in launches(self.tree, self.function(self.launcher))
            if name == self.kernel
        ]

    def constexprs(self) -> tuple[str, ...]:
        """Parameters of the kernel that are marked as such."""
        arguments = self.function(self.kernel).args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        return tuple(
            a.arg for a in every if a.annotation and "constexpr" in ast.unparse(a.annotation)
        )

    def configs(self) -> ast.expr | None:
        """What ``triton.autotune``, or a library's tuner like it, was given; None: no tuner is
        there."""
        for decorator in self.function(self.kernel).decorator_list:
            if isinstance(decorator, ast.Call):
                named = [k.value for k in decorator.keywords if k.arg == "configs"]
                if named or ast.unparse(decorator.func).endswith("autotune"):
                    return named[0] if named else (decorator.args[0] if decorator.args else None)
        return None

    # --- positions ---------------------------------------------------------------------------

    def segment(self, node: ast.AST) -> str:
        """The node's own text."""
        start, end = self.span(node)
        return self.text[start:end]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Offsets of a node; of a function with its decorators."""
        first = min([node, *getattr(node, "decorator_list", [])], key=lambda n: n.lineno)
        start = self._offset(first.lineno, first.col_offset)
        if first is not node:  # the at sign is no part of a decorator's expression
            start = self.text.rindex("@", 0, start)
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return start, self._offset(node.end_lineno, node.end_col_offset)

    def _whole(self, node: ast.AST) -> tuple[int, int]:
        """The span, of a statement that has its lines for itself with these."""
        start, end = self.span(node)
        first = self.text.rfind("\n", 0, start) + 1
        last = self.text.find("\n", end) + 1 or len(self.text)
        alone = not (self.text[first:start] + self.text[end:last]).strip()
        return (first, last) if isinstance(node, ast.stmt) and alone else (start, end)

    def _offset(self, line: int, column: int) -> int:
        start = _starts(self.text)[line - 1]
        return start + len(self.text[start:].split("\n", 1)[0].encode()[:column].decode())

    def importing(self, lines: Sequence[str]) -> KernelSource:
        """The source with these imports before all else, where the text lacks one."""
        present = {ast.unparse(node) for node in self.tree.body}
        if not (missing := [line for line in lines if line not in present]):
            return self
        first = next(
            (n for n in self.tree.body if isinstance(n, ast.Import | ast.ImportFrom)), None
        )
        at = self._offset(first.lineno, 0) if first is not None else 0
        text = self.text[:at] + "".join(f"{line}\n" for line in missing) + self.text[at:]
        return KernelSource.parse(text, self.kernel, self.launcher)

    def edited(self, edits: Sequence[tuple[ast.AST, str]]) -> KernelSource:
        """The source with each node's text replaced; a statement without text goes with its line.
        Raises RewriteError when it would not compile."""
        text = self.text
        places = ((self.span(node) if new else self._whole(node), new) for node, new in edits)
        for (start, end), new in sorted(places, reverse=True):
            text = text[:start] + new + text[end:]
        try:
            return KernelSource.parse(text, self.kernel, self.launcher)
        except SyntaxError as error:
            raise RewriteError(f"the rewritten kernel would not compile: {error.msg}") from error


@functools.lru_cache(maxsize=8)
def _starts(text: str) -> tuple[int, ...]:
    found = [0]
    for line in text.split("\n"):
        found.append(found[-1] + len(line) + 1)
    return tuple(found)


@functools.lru_cache(maxsize=64)
def _functions(tree: ast.Module) -> dict[str, FunctionNode]:
    return dict(functions(tree.body))


def launches(tree: ast.Module, launcher: FunctionNode) -> Iterator[tuple[str, LauncherCall]]:
    """Every launch in a function that its text shows, with the kernel's own name."""
    for node in ast.walk(launcher):
        if isinstance(node, ast.Call):
            taken = node.func
            if isinstance(taken, ast.Name):
                taken = only_value(launcher, taken.id) or taken
            match taken:
                case ast.Subscript(value=ast.Name(id=name), slice=grid):
                    yield _own_name(tree, launcher, name), LauncherCall(node, grid)


def _own_name(tree: ast.Module, launcher: FunctionNode, name: str) -> str:
    """``other`` of ``other = kernel``, in the launcher or before it."""
    own = {
        *stored_names(launcher),
        *(a.arg for a in ast.walk(launcher.args) if isinstance(a, ast.arg)),
    }
    if isinstance(local := only_value(launcher, name), ast.Name):
        name = local.id
    if name in own or name in _functions(tree):
        return name
    said = [
        n.value
        for n in tree.body
        if isinstance(n, ast.Assign) and name in map(ast.unparse, n.targets)
    ]
    return said[0].id if len(said) == 1 and isinstance(said[0], ast.Name) else name


def functions(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """Functions of a module and methods of its classes, by qualified name."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{prefix}{node.name}.")


@functools.lru_cache(maxsize=64)
def defined_names(text: str) -> frozenset[str]:
    """Functions and classes of a program. Raises SyntaxError."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return frozenset(n.name for n in parsing.parse_text(text).body if isinstance(n, kinds))


def find_calls(node: ast.AST, name: str) -> list[ast.Call]:
    """Calls of ``tl.name`` (under whatever name the language was imported) inside the node."""
    return [*_calls(node).get(name, ())]


@functools.lru_cache(maxsize=4096)
def _calls(node: ast.AST) -> dict[str, list[ast.Call]]:
    """By name. Kept, because skills ask the same nodes for one name after the other."""
    found: dict[str, list[ast.Call]] = {}
    for inside in ast.walk(node):
        match inside:
            case ast.Call(func=ast.Attribute(value=ast.Name(), attr=name)):
                found.setdefault(name, []).append(inside)
    return found


def operand(call: ast.Call, at: int, name: str) -> ast.expr | None:
    """What a call is given at this place or by this name."""
    given = [k.value for k in call.keywords if k.arg == name] or call.args[at : at + 1]
    return given[0] if given else None


def axis_of(call: ast.Call) -> int | None:
    """Which extent of the grid ``tl.program_id`` or ``tl.num_programs`` is about; None: no number
    says it."""
    value = operand(call, 0, "axis")
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, int) else None


def names_in(node: ast.AST) -> set[str]:
    """All names in an expression or statement."""
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def find_assignments(function: FunctionNode, name: str) -> list[ast.Assign]:
    """Plain assignments ``name = …`` inside the function."""
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]


def sources(
    function: ast.AST, node: ast.AST, *, names: Callable[[ast.AST], set[str]] = names_in
) -> set[str]:
    """Every name that a value comes from, through all assignments of the function. ``names``:
    those of an expression that count."""
    found: set[str] = set()
    waiting = names(node)
    while waiting:
        name = waiting.pop()
        found.add(name)
        for value in assignments(function).get(name, ()):
            waiting |= names(value) - found
    return found


@functools.lru_cache(maxsize=16)
def assignments(function: ast.AST) -> Mapping[str, Sequence[ast.expr]]:
    """What is assigned to each name, also as part of a tuple, by an operator or as a loop's
    variable. Kept, because each access asks for the names that it comes from."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                made = [pair for target in targets for pair in pairs(target, value)]
            case (
                ast.AugAssign(target=target, value=value)
                | ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
                | ast.For(target=target, iter=value)
                | ast.withitem(context_expr=value, optional_vars=ast.expr() as target)
            ):
                made = [(target, value)]
            case _:
                continue
        for target, part in made:
            for name in names_in(target):
                found.setdefault(name, []).append(part)
    return found


def pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """``a, b = x, y`` sets a to x and b to y."""
    sides = [
        side.elts if isinstance(side, ast.Tuple | ast.List) else None for side in (target, value)
    ]
    names, values = sides
    starred = any(isinstance(one, ast.Starred) for side in sides for one in side or ())
    if names is None or values is None or len(names) != len(values) or starred:
        yield target, value
        return
    for name, one in zip(names, values, strict=True):
        yield from pairs(name, one)


def only_value(function: FunctionNode, name: str) -> ast.expr | None:
    """What a local name is, where one plain assignment says so."""
    said = find_assignments(function, name)
    stored = [
        n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and is_set(n)
    ]
    if name in {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}:
        return None  # before the assignment it is what was passed
    if len(said) == 1 == len(stored) and isinstance(said[0].targets[0], ast.Name):
        return said[0].value
    return None


def grid_said(launcher: FunctionNode, grid: ast.expr) -> ast.expr:
    """A launch's grid, looked up where it is a name: of a value, or of a function that only
    returns one, which is as good as a lambda."""
    if not isinstance(grid, ast.Name):
        return grid
    if (value := only_value(launcher, grid.id)) is not None:
        return value
    made = [n for n in ast.walk(launcher) if isinstance(n, ast.FunctionDef) and n.name == grid.id]
    if len(made) == 1 and grid.id not in stored_names(launcher):
        match made[0].body:
            case [ast.Return(value=ast.expr() as value)] | [
                ast.Expr(value=ast.Constant()),
                ast.Return(value=ast.expr() as value),
            ]:
                return ast.Lambda(made[0].args, value)
    return grid


def stored_names(node: ast.AST) -> list[str]:
    """Names that are set anywhere inside, as often as they are."""
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and is_set(n)]


def is_set(name: ast.Name) -> bool:
    """Whether the name is assigned or deleted there, rather than read."""
    return not isinstance(name.ctx, ast.Load)
