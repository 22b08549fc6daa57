"""Where things stand in a kernel and its launcher, for the operators. No torch of its own.

Not covered: launchers that launch the kernel more than once; their launches stay as they are.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.rewrite.kernels.blocks import passed_value
from kernel_lsp.rewrite.kernels.source import LauncherCall, find_assignments, names_in
from kernel_lsp.rewrite.kernels.view import Kernel, Proof, proof

OPTIONS = {"num_warps": 4, "num_stages": 3}
"""Of a launch, with Triton's defaults."""


def untuned_launch(kernel: Kernel) -> LauncherCall | None:
    """The only one, of a kernel that nothing tunes."""
    launches = kernel.source.launches()
    return (
        launches[0]
        if len(launches) == 1 and kernel.launched and kernel.source.configs() is None
        else None
    )


def constants_of(kernel: Kernel, name: str) -> list[ast.Constant]:
    """The number in the launcher that a parameter has; where it is a name, the number it was given
    once."""
    if untuned_launch(kernel) is None or (given := passed_value(kernel, name)) is None:
        return []
    if isinstance(given, ast.Name):
        said = find_assignments(kernel.launcher, given.id)
        given = said[0].value if len(said) == 1 else given
    return [given] if isinstance(given, ast.Constant) and type(given.value) is int else []


def keywords(kernel: Kernel, names: Sequence[str]) -> list[tuple[ast.Call, ast.keyword]]:
    """Keywords of these names in the kernel's calls."""
    calls = (node for node in ast.walk(kernel.function) if isinstance(node, ast.Call))
    return [(call, k) for call in calls for k in call.keywords if k.arg in names]


def without_keywords(kernel: Kernel, call: ast.Call, names: Sequence[str]) -> str:
    """The call's text with neither these keywords nor its line breaks."""
    kept = [kernel.text(a) for a in call.args]
    kept += [kernel.text(k) for k in call.keywords if k.arg not in names]
    return f"{kernel.text(call.func)}({', '.join(kept)})"


def innermost(calls: Sequence[ast.Call]) -> list[ast.Call]:
    """The calls that contain no other of them: edits must not contain one another."""
    return [c for c in calls if not any(o is not c and o in ast.walk(c) for o in calls)]


def loops(kernel: Kernel) -> list[ast.For]:
    """All `for` loops of the kernel, inner ones too."""
    return [node for node in ast.walk(kernel.function) if isinstance(node, ast.For)]


def range_of(loop: ast.For) -> ast.Call | None:
    """The ``range``, ``tl.range`` or ``tl.static_range`` that a loop runs over."""
    call = loop.iter
    known = ("range", "static_range")
    return (
        call
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] in known
        else None
    )


def blocks(function: FunctionNode) -> Iterator[list[ast.stmt]]:
    """Every list of statements in a function, the outermost first."""
    for node in ast.walk(function):
        for name in ("body", "orelse"):
            if isinstance(found := getattr(node, name, None), list) and found:
                yield found


def stored_names(node: ast.AST) -> set[str]:
    """Names that are bound anywhere inside."""
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def used_names(node: ast.AST) -> set[str]:
    """Names that are read anywhere inside; ``x += 1`` reads x."""
    read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    changed = (n.target for n in ast.walk(node) if isinstance(n, ast.AugAssign))
    return read | {t.id for t in changed if isinstance(t, ast.Name)}


def block_text(kernel: Kernel, statements: Sequence[ast.stmt], column: int) -> str:
    """Statements as they stand, comments between them too, the first line from ``column`` on."""
    start = kernel.source.span(statements[0])[0]
    end = kernel.source.span(statements[-1])[1]
    whole = textwrap.dedent(" " * statements[0].col_offset + kernel.source.text[start:end])
    return textwrap.indent(whole, " " * column).lstrip(" ")


def _dtypes(kernel: Kernel) -> list[str]:
    return sorted(
        {p.dtype for p in kernel.pointers().values() if p.dtype.startswith(("float", "bfloat"))}
    )


def floats(kernel: Kernel) -> Proof:
    """The proof that the kernel has tensors of floating-point types, which it names."""
    text = ", ".join(f"{name}: {p.dtype}" for name, p in kernel.pointers().items())
    return proof("the floating-point tensors have these types", bool(_dtypes(kernel)), text)


def numbers(kernel: Kernel, node: ast.AST) -> dict[str, int]:
    """Whole numbers that the first launch passes for names in an expression."""
    if not kernel.launched:
        return {}
    known = {**kernel.launched[0].arguments, **kernel.launched[0].constants}
    return {name: known[name] for name in sorted(names_in(node)) if type(known.get(name)) is int}
