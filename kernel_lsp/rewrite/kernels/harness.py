"""The program by which a kernel is judged: its launcher, on copies of what it writes into.

Standard library only. A launcher that returns fresh tensors is judged as it is, one that is a
method of a module by a call of that. One that works in place could not be repeated on the same
inputs, so a function is put around it that hands it copies and returns them with the result;
rewrite and original pay for these copies alike. Not covered: tensors that a launcher reaches
through containers or objects."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from kernel_lsp.errors import RewriteError
from kernel_lsp.parsing import FunctionNode
from kernel_lsp.records import Program, Target, TargetKind
from kernel_lsp.rewrite.kernels.operators import (
    AutogradOperator,
    applying,
    operator_of,
    said_launcher,
)
from kernel_lsp.rewrite.kernels.source import (
    KernelSource,
    find_assignments,
    launches,
    names_in,
)

ENTRY = "launch_on_copies"
FRESH = (
    "clone",
    "new_empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "sum",
    "mean",
    "item",
    "size",
    "stride",
)
"""Methods whose result is no view of their tensor."""
VIEWS = ("transpose", "permute", "reshape", "flatten", "squeeze", "unsqueeze", "view_as_real")
"""Functions of torch whose result may be a view of their first argument."""
WRITES = (
    "store",
    *(f"atomic_{name}" for name in ("add", "max", "min", "and", "or", "xor", "cas", "xchg")),
)


def judged_program(program: Program, target: Target, launcher: str | None = None) -> Program:
    """A target itself, or the launcher of a kernel, the first where none is named. Raises
    RewriteError."""
    if target.kind is not TargetKind.TRITON_KERNEL:
        return program
    if not target.launchers:
        raise RewriteError(
            f"no function of this file launches {target.qualname} as {target.qualname}[grid](…): "
            "write one that does, with a workload above it"
        )
    if launcher not in target.launchers:
        launcher = target.launchers[0]
    return launching(program, target.qualname, launcher)


def launching(program: Program, kernel: str, launcher: str) -> Program:
    """The sliced program, entered by its launcher. Raises RewriteError where either is not
    there."""
    source = KernelSource.parse(program.source, kernel, launcher)
    operator = operator_of(source.tree, launcher)
    if operator is None and source.needs_object(launcher):
        return _of_module(program, source)
    made = replace(
        program, entry=launcher, kind=TargetKind.FUNCTION, kernel=kernel, launcher=launcher
    )
    copied = written_arguments(source)
    if operator is not None:
        around = _apply_text(source, operator, copied)
    elif copied:
        around = _around(source.function(launcher), launcher, copied)
    else:
        return made
    return replace(made, source=program.source.rstrip("\n") + "\n\n\n" + around, entry=ENTRY)


def _of_module(program: Program, source: KernelSource) -> Program:
    """A method of a module is judged by a call of the module, with its parameters. Raises
    RewriteError."""
    owner = module_of(source.tree, source.launcher)
    remedy = "write a function that launches it, with a workload above it"
    if owner is None:
        raise RewriteError(
            f"{source.kernel} is launched by {source.launcher}, a method, which is not called "
            f"without its "
            f"object: {remedy}"
        )
    own = _parameters(source.function(source.launcher))[0].arg
    if written := [name for name in written_arguments(source) if name != own]:
        raise RewriteError(
            f"{source.launcher} writes into what it is given ({', '.join(written)}): {remedy}"
        )
    kind = TargetKind.MODULE
    return replace(program, entry=owner, kind=kind, kernel=source.kernel, launcher=source.launcher)


def module_of(tree: ast.Module, launcher: str) -> str | None:
    """The torch module that a launcher is a method of."""
    owner = launcher.rpartition(".")[0]
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner]
    bases = [ast.unparse(base) for base in classes[-1].bases] if classes else []
    return owner if any(base.split(".")[-1] == "Module" for base in bases) else None


def _apply_text(source: KernelSource, operator: AutogradOperator, written: list[str]) -> str:
    if operator.is_backward:
        forward = KernelSource.parse(source.text, source.kernel, f"{operator.name}.forward")
        return applying(operator, ENTRY, [*written, *written_arguments(forward)])
    own = {a.arg for a in operator.parameters}
    return applying(operator, ENTRY, [name for name in written if name in own])


def launcher_of(program: str, entry: str) -> str:
    """The launcher that a judged program's entry is or calls."""
    if entry != ENTRY:
        return entry
    source = KernelSource.parse(program, ENTRY, ENTRY)
    if (said := said_launcher(source.function(ENTRY))) is not None:
        return said
    call = next(n for n in ast.walk(source.function(ENTRY).body[-2]) if isinstance(n, ast.Call))
    return ast.unparse(call.func)


def written_arguments(source: KernelSource) -> list[str]:
    """Parameters of the launcher that some kernel of the program stores into as they are given."""
    launcher = source.function(source.launcher)
    kernels = {
        n.name: n for n in source.tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list
    }
    found: set[str] = set()
    for own_name, launch in launches(source.tree, launcher):
        if (kernel := kernels.get(own_name)) is None:
            continue
        written = written_parameters(kernel, {n: f for n, f in kernels.items() if f is not kernel})
        for name, value in _passed_values(launch.call, kernel):
            if name in written or (name is None and written):
                found |= _sharing(launcher, value)
    return [a.arg for a in _parameters(launcher) if a.arg in found]


def _sharing(launcher: FunctionNode, value: ast.expr) -> set[str]:
    """Names whose memory a value may be: followed through views, branches and functions of the
    same file."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        match waiting.pop():
            case ast.Name(id=name) if name not in found:
                found.add(name)
                waiting += _assigned_to(launcher, name)
            case ast.Attribute(value=of) | ast.Subscript(value=of) | ast.Starred(value=of):
                waiting.append(of)
            case ast.Call(func=ast.Attribute(value=of, attr=method), args=args):
                waiting += [of] if method not in FRESH else []
                waiting += args[:1] if method in VIEWS else []
            case ast.Call(func=ast.Name(), args=args, keywords=keywords):
                waiting += [*args, *(k.value for k in keywords)]
            case ast.IfExp(body=body, orelse=orelse):
                waiting += [body, orelse]
            case (
                ast.Tuple(elts=parts)
                | ast.List(elts=parts)
                | ast.BoolOp(values=parts)
                | ast.Dict(values=parts)
            ):
                waiting += parts
    return found


def _assigned_to(launcher: FunctionNode, name: str) -> list[ast.expr]:
    """What a name stands for, also as part of a tuple: ``q, k = prepared(q, k)``."""
    return [
        node.value
        for node in ast.walk(launcher)
        if isinstance(node, ast.Assign) and any(name in names_in(target) for target in node.targets)
    ]


def written_parameters(kernel: FunctionNode, helpers: Mapping[str, FunctionNode]) -> set[str]:
    """Parameters that a stored-to address comes from, also in the functions of the program that it
    calls."""
    names = {a.arg for a in _parameters(kernel)}
    found: set[str] = set()
    for node in ast.walk(kernel):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in WRITES
        ):
            target = node.args[0] if node.args else node.func.value
            found |= _bases(kernel, target) & names
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in helpers
        ):
            helper = helpers[node.func.id]
            others = {name: one for name, one in helpers.items() if one is not helper}
            for name, value in _passed_values(node, helper):
                if name in written_parameters(helper, others):
                    found |= _bases(kernel, value) & names
    return found


def _bases(kernel: FunctionNode, node: ast.expr, depth: int = 8) -> set[str]:
    """Names that an address starts from: the leftmost term of its sum, through assignments."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        node = node.left
    if isinstance(node, ast.Call) and node.args:
        # tl.make_block_ptr(base, …), tl.multiple_of(base, 16).
        return _bases(kernel, node.args[0], depth)
    if not isinstance(node, ast.Name):
        return names_in(node)
    said = [one.value for one in find_assignments(kernel, node.id)] if depth else []
    return {node.id}.union(*(_bases(kernel, value, depth - 1) for value in said))


def _passed_values(call: ast.Call, function: FunctionNode) -> list[tuple[str | None, ast.expr]]:
    """What a call passes for each parameter; None: for one that its text does not tell
    (``*arguments``)."""
    starred = any(isinstance(one, ast.Starred) for one in call.args)
    names = [None if starred else a.arg for a in _parameters(function)]
    by_place = zip([*names, *[None] * len(call.args)], call.args, strict=False)
    return [*by_place, *((k.arg, k.value) for k in call.keywords)]


def _parameters(function: FunctionNode) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _defaults(function: FunctionNode) -> list[tuple[ast.arg, ast.expr]]:
    given = function.args
    last = [*given.posonlyargs, *given.args][-len(given.defaults) :] if given.defaults else []
    named = [
        (a, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is not None
    ]
    return [*zip(last, given.defaults, strict=True), *named]


def _around(launcher: FunctionNode, name: str, copied: list[str]) -> str:
    arguments = ast.unparse(launcher.args)
    passed = [
        a.arg if a not in launcher.args.kwonlyargs else f"{a.arg}={a.arg}"
        for a in _parameters(launcher)
    ]
    optional = {a.arg for a, default in _defaults(launcher) if ast.unparse(default) == "None"}
    copies = "".join(
        f"    {name} = {name} if {name} is None else {name}.clone()\n"
        if name in optional
        else f"    {name} = {name}.clone()\n"
        for name in copied
    )
    return (
        f"def {ENTRY}({arguments}):\n{copies}"
        f"    result = {name}({', '.join(passed)})\n"
        f"    return result, {', '.join(copied)}\n"
    )
