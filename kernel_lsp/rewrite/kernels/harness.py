"""The program by which a kernel is judged: its launcher, on copies of what it writes into.

Standard library only. A launcher that returns fresh tensors is judged as it is. One that works in place
could not be repeated on the same inputs, so a function is put around it that hands it copies and returns
them with the result; rewrite and original pay for these copies alike. Not covered: tensors that a launcher
reaches through containers or objects.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Program, Target, TargetKind
from kernel_lsp.rewrite.kernels.source import Function, Source, assigned, names_in

ENTRY = "launch_on_copies"
WRITES = ("store", *(f"atomic_{name}" for name in ("add", "max", "min", "and", "or", "xor", "cas", "xchg")))


def judged(program: Program, target: Target) -> Program:
    """What a target is judged by: itself, or a kernel by its launcher. Raises RewriteError."""
    if target.kind is not TargetKind.TRITON_KERNEL:
        return program
    if not target.launchers:
        raise RewriteError(f"no function of this file launches {target.qualname} as kernel[grid](…)")
    return launching(program, target.qualname, target.launchers[0])


def launching(program: Program, kernel: str, launcher: str) -> Program:
    """The sliced program, entered by its launcher. Raises RewriteError where either is not there."""
    source = Source.parse(program.source, kernel, launcher)
    made = replace(program, entry=launcher, kind=TargetKind.FUNCTION, kernel=kernel, launcher=launcher)
    if not (copied := written_arguments(source)):
        return made
    text = program.source.rstrip("\n") + "\n\n\n" + _around(source.function(launcher), launcher, copied)
    return replace(made, source=text, entry=ENTRY)


def written_arguments(source: Source) -> list[str]:
    """Parameters of the launcher that some kernel of the program stores into as they are given."""
    launcher = source.function(source.launcher)
    own = [a.arg for a in _parameters(launcher) if not assigned(launcher, a.arg)]
    found: set[str] = set()
    for call, kernel in _launches(source, launcher):
        written = written_parameters(kernel)
        names = [a.arg for a in _parameters(kernel)]
        given = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        found |= {e.id for name, e in given if name in written and isinstance(e, ast.Name)}
    return [name for name in own if name in found]


def written_parameters(kernel: Function) -> set[str]:
    """Parameters that a stored-to address comes from."""
    names = {a.arg for a in _parameters(kernel)}
    found: set[str] = set()
    for node in ast.walk(kernel):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES:
            target = node.args[0] if node.args else node.func.value
            found |= _bases(kernel, target) & names
    return found


def _bases(kernel: Function, node: ast.expr, depth: int = 8) -> set[str]:
    """Names that an address starts from: the leftmost term of its sum, through assignments."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        node = node.left
    if isinstance(node, ast.Call) and node.args:  # tl.make_block_ptr(base, …), tl.multiple_of(base, 16)
        return _bases(kernel, node.args[0], depth)
    if not isinstance(node, ast.Name):
        return names_in(node)
    said = [one.value for one in assigned(kernel, node.id)] if depth else []
    return {node.id}.union(*(_bases(kernel, value, depth - 1) for value in said))


def _launches(source: Source, launcher: Function) -> Iterator[tuple[ast.Call, Function]]:
    """Every launch in the launcher, with the kernel of this program that it launches."""
    kernels = {n.name: n for n in source.tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list}
    for node in ast.walk(launcher):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            name = node.func.value
            if isinstance(name, ast.Name) and name.id in kernels:
                yield node, kernels[name.id]


def _parameters(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _around(launcher: Function, name: str, copied: list[str]) -> str:
    arguments = ast.unparse(launcher.args)
    passed = [
        a.arg if a not in launcher.args.kwonlyargs else f"{a.arg}={a.arg}" for a in _parameters(launcher)
    ]
    copies = "".join(f"    {argument} = {argument}.clone()\n" for argument in copied)
    return (
        f"def {ENTRY}({arguments}):\n{copies}"
        f"    result = {name}({', '.join(passed)})\n"
        f"    return result, {', '.join(copied)}\n"
    )
