"""Places of a kernel's text that skills change together: runs of statements, parameters, the
launch.

What is made here goes into `view.Kernel.replace`: nodes that cover several statements, or nothing
at all between two of them. Standard library only."""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections.abc import Mapping, Sequence

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.rewrite.kernels.source import names_in
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


def fresh(function: FunctionNode, wanted: str) -> str:
    """A name that the function does not use yet."""
    taken = names_in(function) | {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    others = (f"{wanted}_{i}" for i in itertools.count(2))
    return next(n for n in itertools.chain([wanted], others) if n not in taken)


def indent_lines(lines: Sequence[str], at: ast.stmt) -> str:
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
    between = [
        ast.unparse(d) for d in said if ast.unparse(d).split(".")[-1] not in ("jit", "heuristics")
    ]
    wrapped = "".join(f", and wrapped by {b}" for b in between)
    return proof(
        "nothing else launches the kernel",
        len(uses) == 1 == len(kernel.source.launches())
        and not between
        and kernel.elsewhere is None,
        f"{name} is named in {kernel.elsewhere}"
        if kernel.elsewhere
        else f"{name} is named {len(uses)} times in its program{wrapped}, and in no other place",
    )


def argument(kernel: Kernel, name: str) -> ast.expr | None:
    """What the only launch passes for a parameter; None: not there, or not to be seen."""
    launches = kernel.source.launches()
    return (
        (passed_arguments(kernel.function, launches[0].call) or {}).get(name) if launches else None
    )


def passed_arguments(function: FunctionNode, call: ast.Call) -> dict[str, ast.expr] | None:
    """What a launch passes, by parameter, defaults included; None: not all is to be seen."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    ):
        return None
    names = [a.arg for a in function.args.args]
    defaults = function.args.defaults
    given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    given |= dict(zip(names, call.args, strict=False))
    return given | {k.arg: k.value for k in call.keywords if k.arg in names}


def launch_statement(kernel: Kernel) -> ast.stmt | None:
    """The statement that is the launch, and nothing else."""
    calls = [one.call for one in kernel.source.launches()[:1]]
    made = (n for n in ast.walk(kernel.launcher) if isinstance(n, ast.Expr) and n.value in calls)
    return next(made, None)


def add_parameters(kernel: Kernel, texts: Sequence[str]) -> None:
    """Adds the kernel's last parameters, on lines of their own where the first line would get too
    long."""
    arguments = kernel.function.args
    last: Placed = arguments.defaults[-1] if arguments.defaults else arguments.args[-1]
    first = arguments.args[0]
    line, added = line_of(kernel, last), ", ".join(texts)
    if len(line) + len(added) + 2 <= WIDTH:
        kernel.replace(after(last), f", {added}")
    elif first.lineno == kernel.function.lineno:
        kernel.replace(
            across(first, last), f"\n    {kernel.text(across(first, last))},\n    {added},\n"
        )
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
    """The text of the kernel's launch with changed and added arguments. ``keywords``: new names of
    keywords."""
    call, renamed = kernel.source.launches()[0].call, keywords or {}
    positional = [changed.get(a, kernel.text(a)) for a in call.args]
    named = [
        f"{renamed.get(str(k.arg), k.arg)}={changed.get(k.value, kernel.text(k.value))}"
        for k in call.keywords
    ]
    function = kernel.text(call.func)
    if isinstance(call.func, ast.Subscript) and (head := changed.get(call.func.slice)):
        function = f"{kernel.text(call.func.value)}[{head}]"
    line = line_of(kernel, call)
    indent = " " * (len(line) - len(line.lstrip()))
    text = f"{function}({', '.join([*positional, *named, *added])})"
    if len(indent + text) > WIDTH:
        inner = [", ".join(positional), ", ".join(named), *added]
        lines = "".join(f"{indent}    {part},\n" for part in inner if part)
        text = f"{function}(\n{lines}{indent})"
    return text


def line_of(kernel: Kernel, node: Placed) -> str:
    """The line of the program's text on which the node begins."""
    return kernel.source.text.split("\n")[node.lineno - 1]
