"""Constants of a kernel that its launcher decides by the sizes of each call.

`add` makes a constexpr parameter with a default that is always right, so that other launchers of
the kernel need not know of it, and passes it in the one launch that was read. Not covered:
launches with ``*arguments``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.rewrite.kernels.blocks import passed_value
from kernel_lsp.rewrite.kernels.places import relaunch
from kernel_lsp.rewrite.kernels.source import names_in
from kernel_lsp.rewrite.kernels.terms import is_pure
from kernel_lsp.rewrite.kernels.view import Kernel


@dataclass(frozen=True, slots=True)
class Constant:
    """``name: tl.constexpr = default``, and what the launch passes for it."""

    name: str
    meaning: str
    """A comment, without the sign."""
    default: str
    given: str
    """In the launcher's words."""


def fits(kernel: Kernel) -> bool:
    """The kernel is launched once in its launcher, as its text shows, and can have one more
    parameter."""
    launches = kernel.source.launches()
    if len(launches) != 1 or not kernel.launched or _end_of_signature(kernel) is None:
        return False
    return not any(isinstance(argument, ast.Starred) for argument in launches[0].call.args)


def is_free(kernel: Kernel, name: str) -> bool:
    """The kernel uses no such name yet."""
    used = names_in(kernel.function) | {
        n.arg for n in ast.walk(kernel.function) if isinstance(n, ast.arg)
    }
    return name not in used


def given_text(kernel: Kernel, name: str) -> str | None:
    """What the launch passes for a parameter, as a text that may stand in an expression once more.

    None: it is more than a name, a number or a size.
    """
    node = passed_value(kernel, name)
    if node is None or not is_pure(node):
        return None
    return f"({kernel.text(node)})" if isinstance(node, ast.BinOp) else kernel.text(node)


def add(kernel: Kernel, constants: Sequence[Constant]) -> None:
    """Adds the constants to the kernel's signature, each with its meaning, and to its one
    launch."""
    end = _end_of_signature(kernel)
    assert end is not None
    indent, kind = " " * (kernel.function.col_offset + 4), _constexpr(kernel)
    lines = "".join(
        f",\n{indent}# {one.meaning}\n{indent}{one.name}: {kind} = {one.default}"
        for one in constants
    )
    closing = "\n" + indent[4:] if end.lineno == kernel.function.lineno else ""
    kernel.replace(end, kernel.text(end) + lines + closing)
    passed_on = [f"{one.name}={one.given}" for one in constants]
    call = kernel.source.launches()[0].call
    if call.lineno == call.end_lineno and all(k.arg for k in call.keywords):
        relaunch(kernel, {}, passed_on)
        return
    last = max(
        [*call.args, *(k.value for k in call.keywords)], key=lambda n: (n.lineno, n.col_offset)
    )
    kernel.replace(last, ", ".join([kernel.text(last), *passed_on]))


def _end_of_signature(kernel: Kernel) -> ast.expr | None:
    """Where a parameter can be added: behind the last one's default or annotation."""
    arguments = kernel.function.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or not arguments.args:
        return None
    return arguments.defaults[-1] if arguments.defaults else arguments.args[-1].annotation


def _constexpr(kernel: Kernel) -> str:
    """``tl.constexpr``, as the kernel writes it."""
    noted = (ast.unparse(a.annotation) for a in kernel.function.args.args if a.annotation)
    return next((text for text in noted if "constexpr" in text), "tl.constexpr")
