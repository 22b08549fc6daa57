"""What statements of a kernel do beside computing values: write to memory, wait, end the program.

Standard library only. A call of anything that is not known to be harmless counts as harmful.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from kernel_lsp.parsing import FunctionNode
from kernel_lsp.rewrite.kernels.harness import WRITES
from kernel_lsp.rewrite.kernels.places import language
from kernel_lsp.rewrite.kernels.source import axis_of, find_calls, stored_names
from kernel_lsp.rewrite.kernels.view import Kernel

LOUD = ("store", "atomic", "barrier", "assert", "print", "asm", "tensormap", "assume")
"""In names of what the language has for effects."""
LANGUAGE = ("tl", "language", "libdevice")
REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum")
METHODS = ("to", "reshape", "trans", "broadcast_to", "expand_dims", "cast", "abs", *REDUCTIONS)
"""Of tensors, without effect on memory."""
PYTHON = ("float", "int", "min", "max", "range", "len")
BUILTIN = frozenset(("range", "float", "int", "min", "max", "abs", "bool", "len"))


def is_quiet(statement: ast.stmt, *, stores: bool = False) -> bool:
    """Whether the statement neither writes to memory nor waits for other programs nor ends this
    one.

    ``stores``: stores and atomic operations through ``tl`` are allowed."""
    kinds: tuple[type[ast.stmt], ...] = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)
    kinds += (ast.Expr,) if stores else ()
    for one in ast.walk(statement):
        if isinstance(one, ast.stmt) and not isinstance(one, kinds):
            return False
        if isinstance(one, ast.Call) and not _is_quiet_call(one, stores=stores):
            return False
    return True


def _is_quiet_call(call: ast.Call, *, stores: bool) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in PYTHON
    if not isinstance(call.func, ast.Attribute):
        return False
    name, of = call.func.attr, call.func.value
    if isinstance(of, ast.Name) and (of.id in LANGUAGE or name == "cdiv"):
        return not any(word in name for word in LOUD) or (stores and name in WRITES)
    return name in METHODS or ast.unparse(of).endswith(("libdevice", "math"))


def calls_that_may(kernel: Kernel, words: Sequence[str]) -> list[str]:
    """Functions whose text has one of these words, of those that the kernel calls, directly or
    through one another; also those of other files, of which nothing is known. Methods of its own
    values are none."""
    known = {n.name: n for n in kernel.source.tree.body if isinstance(n, ast.FunctionDef)}
    own = {
        *stored_names(kernel.function),
        *(a.arg for a in ast.walk(kernel.function.args) if isinstance(a, ast.arg)),
    }
    waiting = [n for n in helpers(kernel, kernel.function) if n.split(".")[0] not in own]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen and name in known:
            waiting += helpers(kernel, known[name])
        seen.add(name)
    texts = {name: ast.unparse(known[name]) if name in known else " ".join(words) for name in seen}
    return sorted(name for name, text in texts.items() if any(word in text for word in words))


def helpers(kernel: Kernel, function: FunctionNode) -> list[str]:
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


def waits(function: FunctionNode) -> list[str]:
    """Names of the atomic operations and the assembly of a kernel."""
    return [
        n.attr
        for n in ast.walk(function)
        if isinstance(n, ast.Attribute) and n.attr.startswith(("atomic_", "inline_"))
    ]


def is_straight(function: FunctionNode) -> bool:
    """A program runs from the first statement to the last: no return, no while, no function in
    it."""
    leaving = ast.Return | ast.While | ast.FunctionDef
    return not any(isinstance(n, leaving) for n in ast.walk(function) if n is not function)


def asked_axes(function: FunctionNode) -> set[int | None]:
    """Axes of the grid that a kernel asks for."""
    calls = (find_calls(function, name) for name in ("program_id", "num_programs"))
    return {axis_of(call) for some in calls for call in some}
