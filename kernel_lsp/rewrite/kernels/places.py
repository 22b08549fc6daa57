"""Places of a kernel's text that skills change together: runs of statements, parameters, the launch.

What is made here goes into `view.Kernel.replace`: nodes that cover several statements, or nothing at all
between two of them. Standard library only.
"""

from __future__ import annotations

import ast
import copy
import itertools
import textwrap
from collections.abc import Mapping, Sequence

from kernel_lsp.rewrite.kernels.source import Function, assigned, names_in, sources
from kernel_lsp.rewrite.kernels.view import Kernel, Proof, proof

WIDTH = 100
"""Of the lines that are written."""
Placed = ast.stmt | ast.expr | ast.arg


def across(first: Placed, last: Placed) -> ast.stmt:
    """One node for neighboring ones and what lies between them."""
    assert last.end_lineno is not None and last.end_col_offset is not None
    return _at(first.lineno, first.col_offset, last.end_lineno, last.end_col_offset)


def ahead(node: Placed) -> ast.stmt:
    """The place right before a node."""
    return _at(node.lineno, node.col_offset, node.lineno, node.col_offset)


def after(node: Placed) -> ast.stmt:
    """The place right behind a node."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    return _at(node.end_lineno, node.end_col_offset, node.end_lineno, node.end_col_offset)


def _at(line: int, column: int, end_line: int, end_column: int) -> ast.stmt:
    return ast.Pass(lineno=line, col_offset=column, end_lineno=end_line, end_col_offset=end_column)


def fresh(function: Function, wanted: str) -> str:
    """A name that the function does not use yet."""
    taken = names_in(function) | {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    others = (f"{wanted}_{i}" for i in itertools.count(2))
    return next(n for n in itertools.chain([wanted], others) if n not in taken)


def indented(lines: Sequence[str], at: ast.stmt) -> str:
    """A statement's text may be replaced by these lines: the first one stands where it stood."""
    return textwrap.indent("\n".join(lines), " " * at.col_offset).lstrip(" ")


def with_comments(kernel: Kernel, statement: ast.stmt) -> list[str]:
    """Its lines, dedented, with the comments right above it."""
    text = kernel.source.text.split("\n")
    first = statement.lineno - 1
    while first and text[first - 1].lstrip().startswith("#"):
        first -= 1
    return textwrap.dedent("\n".join(text[first : statement.end_lineno])).split("\n")


def language(kernel: Kernel) -> str | None:
    """``tl``, as the kernel's parameters are annotated with it; None: nothing shows it."""
    for node in ast.walk(kernel.function):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="load" | "constexpr"):
                return name
    return None


def package(kernel: Kernel) -> str | None:
    """``triton``, as the kernel is decorated with it; None: ``jit`` was imported alone."""
    for decorator in kernel.function.decorator_list:
        if isinstance(decorator, ast.Attribute) and decorator.attr == "jit":
            return ast.unparse(decorator.value)
    return None


def only_launch(kernel: Kernel) -> Proof:
    """The launch may change together with the kernel's parameters."""
    name = kernel.source.kernel
    uses = [n for n in ast.walk(kernel.source.tree) if isinstance(n, ast.Name) and n.id == name]
    said = [d.func if isinstance(d, ast.Call) else d for d in kernel.function.decorator_list]
    between = [ast.unparse(d) for d in said if ast.unparse(d).split(".")[-1] not in ("jit", "heuristics")]
    wrapped = "".join(f", and wrapped by {b}" for b in between)
    return proof(
        "nothing else launches the kernel",
        len(uses) == 1 == len(kernel.source.launches()) and not between and kernel.elsewhere is None,
        f"{name} is named in {kernel.elsewhere}"
        if kernel.elsewhere
        else f"{name} is named {len(uses)} times in its program{wrapped}, and in no other place",
    )


def argument(kernel: Kernel, name: str) -> ast.expr | None:
    """What the only launch passes for a parameter; None: not there, or not to be seen."""
    return (passed(kernel.function, kernel.source.launches()[0].call) or {}).get(name)


def passed(function: Function, call: ast.Call) -> dict[str, ast.expr] | None:
    """What a launch passes, by parameter, defaults included; None: not all is to be seen."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    names = [a.arg for a in function.args.args]
    defaults = function.args.defaults
    given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    given |= dict(zip(names, call.args, strict=False))
    return given | {k.arg: k.value for k in call.keywords if k.arg in names}


def launch_statement(kernel: Kernel) -> ast.stmt | None:
    """The statement that is the launch, and nothing else."""
    call = kernel.source.launches()[0].call
    made = (n for n in ast.walk(kernel.launcher) if isinstance(n, ast.Expr) and n.value is call)
    return next(made, None)


def repeatable(node: ast.expr | None) -> bool:
    """Its text may be evaluated once more: names, numbers, sizes of tensors and arithmetic of them."""
    match node:
        case ast.Name() | ast.Constant():
            return True
        case ast.Attribute(value=inner, attr="shape"):
            return repeatable(inner)
        case ast.Subscript(value=inner, slice=index):
            return repeatable(inner) and repeatable(index)
        case ast.BinOp(left=left, right=right):
            return repeatable(left) and repeatable(right)
        case ast.UnaryOp(operand=inner):
            return repeatable(inner)
        case ast.Call(
            func=ast.Attribute(value=inner, attr="size" | "numel" | "stride"), args=args, keywords=[]
        ):
            return repeatable(inner) and all(repeatable(a) for a in args)
        case ast.Call(func=ast.Attribute(value=ast.Name(), attr="cdiv"), args=args, keywords=[]):
            return all(repeatable(a) for a in args)
    return False


def add_parameters(kernel: Kernel, texts: Sequence[str]) -> None:
    """Last parameters of the kernel, on lines of their own where the first line would get too long."""
    arguments = kernel.function.args
    last: Placed = arguments.defaults[-1] if arguments.defaults else arguments.args[-1]
    first = arguments.args[0]
    line, added = line_of(kernel, last), ", ".join(texts)
    if len(line) + len(added) + 2 <= WIDTH:
        kernel.replace(after(last), f", {added}")
    elif first.lineno == kernel.function.lineno:
        kernel.replace(across(first, last), f"\n    {kernel.text(across(first, last))},\n    {added},\n")
    else:
        kernel.replace(after(last), f",\n{' ' * first.col_offset}{added}")


def relaunch(kernel: Kernel, changed: Mapping[ast.expr, str], added: Sequence[str]) -> None:
    """The launch with some of its arguments' texts changed, and further keywords."""
    kernel.replace(kernel.source.launches()[0].call, launch_text(kernel, changed, added))


def launch_text(
    kernel: Kernel,
    changed: Mapping[ast.expr, str],
    added: Sequence[str],
    keywords: Mapping[str, str] | None = None,
) -> str:
    """``keywords``: new names of keywords."""
    call, renamed = kernel.source.launches()[0].call, keywords or {}
    positional = [changed.get(a, kernel.text(a)) for a in call.args]
    named = [
        f"{renamed.get(str(k.arg), k.arg)}={changed.get(k.value, kernel.text(k.value))}"
        for k in call.keywords
    ]
    head = changed.get(call.func.slice, "") if isinstance(call.func, ast.Subscript) else ""
    function = f"{kernel.source.kernel}[{head}]" if head else kernel.text(call.func)
    line = line_of(kernel, call)
    indent = " " * (len(line) - len(line.lstrip()))
    text = f"{function}({', '.join([*positional, *named, *added])})"
    if len(indent + text) > WIDTH:
        inner = [", ".join(positional), ", ".join(named), *added]
        lines = "".join(f"{indent}    {part},\n" for part in inner if part)
        text = f"{function}(\n{lines}{indent})"
    return text


def line_of(kernel: Kernel, node: Placed) -> str:
    return kernel.source.text.split("\n")[node.lineno - 1]


def only_value(function: Function, name: str) -> ast.expr | None:
    """What a local name is, where one plain assignment says so."""
    said = assigned(function, name)
    stored = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and _stores(n)]
    if name in {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}:
        return None  # before the assignment it is what was passed
    if len(said) == 1 == len(stored) and isinstance(said[0].targets[0], ast.Name):
        return said[0].value
    return None


ALLOCATIONS = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("empty", "zeros", "ones", "full")
    for prefix, suffix in (("torch.", ""), ("torch.", "_like"), ("new_", ""))
)
"""Functions of torch, and methods of tensors, that make a tensor whose memory nothing else has."""
BUILTIN = frozenset(("range", "float", "int", "min", "max", "abs", "bool", "len"))


def is_allocation(node: ast.expr | None) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=name) as function, keywords=keywords):
            told = name if name.startswith("new_") else ast.unparse(function)
            return told in ALLOCATIONS and all(k.arg not in ("out", None) for k in keywords)
    return False


def helpers(kernel: Kernel, function: Function) -> list[str]:
    """Functions that a kernel calls, other than the language's, of which nothing is known."""
    own = {language(kernel), "libdevice", "tldevice", *BUILTIN}
    found = []
    for call in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
        base = call.func
        while isinstance(base, ast.Attribute):
            base = base.value
        method = isinstance(call.func, ast.Attribute) and call.func.attr == "to"
        if not method and (not isinstance(base, ast.Name) or base.id not in own):
            found.append(ast.unparse(call.func))
    return found


def allocates(launcher: Function, name: str) -> bool:
    """The launcher makes the tensor of this name, and the name never stands for another."""
    return is_allocation(only_value(launcher, name))


def apart(launcher: Function, one: ast.expr, other: ast.expr) -> bool:
    """Two tensors of the launcher never meet in memory: it made one, and the other does not come from that.
    Observed tensors would not say it: a launcher that writes in place is observed on copies."""
    return any(
        isinstance(here, ast.Name)
        and allocates(launcher, here.id)
        and here.id not in sources(launcher, there)
        for here, there in ((one, other), (other, one))
    )


def separate(kernel: Kernel, one: str, other: str) -> bool:
    """As `apart`, of two parameters of the kernel."""
    here, there = (argument(kernel, name) for name in (one, other))
    return here is not None and there is not None and apart(kernel.launcher, here, there)


def settled(launcher: Function, node: ast.expr) -> ast.expr:
    """An expression of the launcher with its sizes' names put in, and sizes of a tensor made like another
    as that one's, so that equal texts are equal values."""
    return _Settled(launcher).visit(copy.deepcopy(node))


class _Settled(ast.NodeTransformer):
    def __init__(self, launcher: Function) -> None:
        self.launcher = launcher

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = only_value(self.launcher, node.id)
        return self.visit(copy.deepcopy(value)) if value is not None and repeatable(value) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if node.attr in ("shape", "numel", "size") and isinstance(node.value, ast.Name):
            match only_value(self.launcher, node.value.id):
                case ast.Call(
                    func=ast.Attribute(attr="empty_like" | "zeros_like"), args=[ast.Name() as like]
                ):
                    return self.visit(ast.Attribute(like, node.attr, ast.Load()))
        self.generic_visit(node)
        return node


def grid(launcher: Function, function: Function, call: ast.Call, most: int = 2) -> tuple[str, ...] | None:
    """A launch's extents as expressions of the launcher, ``meta["BLOCK"]`` as what is passed for BLOCK; None:
    they cannot be had, or are more than ``most``."""
    assert isinstance(call.func, ast.Subscript)
    said: ast.expr | None = call.func.slice
    if isinstance(said, ast.Name):
        said = only_value(launcher, said.id)
    meta = None
    if isinstance(said, ast.Lambda) and len(said.args.args) == 1:
        meta, said = said.args.args[0].arg, said.body
    given = passed(function, call)
    if not isinstance(said, ast.Tuple) or not 1 <= len(said.elts) <= most or given is None:
        return None
    made = [_Given(meta, given).visit(copy.deepcopy(extent)) for extent in said.elts]
    known = all(repeatable(extent) and steady(launcher, names_in(extent)) for extent in made)
    return tuple(map(ast.unparse, made)) if known else None


def steady(launcher: Function, names: set[str]) -> bool:
    """Sizes of these mean the same anywhere in the launcher: a name is set once, an argument never, except to
    its contiguous self."""
    arguments = {a.arg for a in ast.walk(launcher.args) if isinstance(a, ast.arg)}
    kept = {
        id(n.targets[0])
        for n in ast.walk(launcher)
        if isinstance(n, ast.Assign) and ast.unparse(n.value) == f"{ast.unparse(n.targets[0])}.contiguous()"
    }
    stored = [
        n.id for n in ast.walk(launcher) if isinstance(n, ast.Name) and _stores(n) and id(n) not in kept
    ]
    return all(stored.count(n) <= (0 if n in arguments else 1) for n in names)


class _Given(ast.NodeTransformer):
    def __init__(self, meta: str | None, passed: Mapping[str, ast.expr]) -> None:
        self.meta, self.passed = meta, passed

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        match node:
            case ast.Subscript(value=ast.Name(id=self.meta), slice=ast.Constant(value=str(key))):
                return self.passed.get(key, ast.Starred(node, ast.Load()))
        return self.generic_visit(node)


def _stores(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)
