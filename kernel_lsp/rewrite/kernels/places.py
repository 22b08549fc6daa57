"""Places of a kernel's text that skills change together: runs of statements, parameters, the launch.

What is made here goes into `view.Kernel.replace`: nodes that cover several statements, or nothing at all
between two of them. Standard library only.
"""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections.abc import Mapping, Sequence

from kernel_lsp.rewrite.kernels.source import Function, assigned, names_in
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
    alone = len(uses) == 1 == len(kernel.source.launches())
    return proof("nothing else launches the kernel", alone, f"{name} is named {len(uses)} times in its file")


def argument(kernel: Kernel, name: str) -> ast.expr | None:
    """What the only launch passes for a parameter; None: not there, or not to be seen."""
    call = kernel.source.launches()[0].call
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    given = dict(zip((a.arg for a in kernel.function.args.args), call.args, strict=False))
    return given.get(name) or next((k.value for k in call.keywords if k.arg == name), None)


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
    call = kernel.source.launches()[0].call
    positional = [changed.get(a, kernel.text(a)) for a in call.args]
    named = [f"{k.arg}={changed.get(k.value, kernel.text(k.value))}" for k in call.keywords]
    head = changed.get(call.func.slice, "") if isinstance(call.func, ast.Subscript) else ""
    function = f"{kernel.source.kernel}[{head}]" if head else kernel.text(call.func)
    parts = [*positional, *named, *added]
    indent = " " * len(line_of(kernel, call)[: -len(line_of(kernel, call).lstrip())])
    text = f"{function}({', '.join(parts)})"
    if len(indent + text) > WIDTH:
        inner = [", ".join(positional), *([", ".join(named)] if named else []), *added]
        lines = "".join(f"{indent}    {part},\n" for part in inner if part)
        text = f"{function}(\n{lines}{indent})"
    kernel.replace(call, text)


def line_of(kernel: Kernel, node: Placed) -> str:
    return kernel.source.text.split("\n")[node.lineno - 1]


def sources(function: Function, node: ast.AST) -> set[str]:
    """Every name that a value comes from, through all assignments of the function."""
    found: set[str] = set()
    waiting = names_in(node)
    while waiting:
        name = waiting.pop()
        found.add(name)
        for one in ast.walk(function):
            match one:
                case ast.Assign(targets=targets, value=value):
                    pass
                case ast.AugAssign(target=target, value=value) | ast.For(target=target, iter=value):
                    targets = [target]
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    targets = [target]
                case _:
                    continue
            if any(name in names_in(target) for target in targets):
                waiting |= names_in(value) - found
    return found


def only_value(function: Function, name: str) -> ast.expr | None:
    """What a local name is, where one plain assignment says so."""
    said = assigned(function, name)
    stored = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and _stores(n)]
    if len(said) == 1 == len(stored) and isinstance(said[0].targets[0], ast.Name):
        return said[0].value
    return None


ALLOCATIONS = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("empty", "zeros", "ones", "full")
    for prefix, suffix in (("", ""), ("", "_like"), ("new_", ""))
)


def allocated(kernel: Kernel, parameter: str) -> str | None:
    """The launcher's name for a tensor that it makes itself and hands to this parameter; None: another."""
    given = argument(kernel, parameter)
    value = only_value(kernel.launcher, given.id) if isinstance(given, ast.Name) else None
    match value:
        case ast.Call(func=ast.Attribute(attr=name)) if name in ALLOCATIONS and isinstance(given, ast.Name):
            return given.id
    return None


def separate(kernel: Kernel, one: str, other: str) -> bool:
    """Two pointers of the kernel never meet in memory: the launcher made one tensor, and the other does not
    come from it. The observed tensors say nothing: a launcher that writes in place is observed on copies."""
    for here, there in ((one, other), (other, one)):
        name, given = allocated(kernel, here), argument(kernel, there)
        if name is not None and given is not None and name not in sources(kernel.launcher, given):
            return True
    return False


def _stores(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)
