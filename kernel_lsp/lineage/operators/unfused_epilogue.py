"""What is done to each result right before it is stored, done by torch on what was stored.

Only for results that the launcher makes and returns by name, and for statements ``result =
f(result)`` of arithmetic, a few functions, scalars and vectors along the last axis."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from kernel_lsp.lineage.places import floats, stored_names, untuned_launch, used_names
from kernel_lsp.rewrite.kernels.blocks import passed_value
from kernel_lsp.rewrite.kernels.source import find_assignments, find_calls, names_in
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

FUNCTIONS = ("exp", "log", "sigmoid", "sqrt", "rsqrt", "abs", "erf", "cos", "sin")
"""Of triton.language, with torch's of the same name."""
OPERATIONS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


@dataclass(frozen=True, slots=True)
class Epilogue:
    statements: tuple[ast.stmt, ...]
    loads: tuple[ast.stmt, ...]
    """Only for them."""
    lines: tuple[str, ...]
    """The same in torch, in order."""
    result: str
    """In the launcher."""
    returned: ast.Return


def match(kernel: Kernel) -> list[KernelMatch]:
    """The pointwise statements between the result and its store."""
    found = _epilogue(kernel)
    if found is None:
        return []
    return [
        KernelMatch(
            f"{len(found.statements)} on {found.result}", "the epilogue by torch", data=found
        )
    ]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """Tensors are floats, and each number needs no other one of the result."""
    text = "; ".join(kernel.text(s) for s in match.data.statements)
    return [proof("each number needs no other one of the result", True, text), floats(kernel)]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """No choices: there is one way."""
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    """Take the statements out of the kernel; torch does them in the launcher, on the result."""
    one: Epilogue = match.data
    for statement in (*one.statements, *one.loads):
        kernel.replace(statement, "")
    indent = "\n" + " " * one.returned.col_offset
    kernel.replace(one.returned, indent.join([*one.lines, kernel.text(one.returned)]))


def _epilogue(kernel: Kernel) -> Epilogue | None:
    returned = kernel.launcher.body[-1]
    stores = find_calls(kernel.function, "store")
    if untuned_launch(kernel) is None or len(stores) != 1 or not isinstance(returned, ast.Return):
        return None
    value, places = stores[0].args[1], names_in(stores[0].args[0])
    out = [n for n, p in kernel.pointers().items() if n in places and p.argument is None]
    made = passed_value(kernel, out[0]) if len(out) == 1 else None
    if not isinstance(made, ast.Name) or not _is(returned.value, made.id):
        return None
    core = value
    if isinstance(core, ast.Call) and isinstance(core.func, ast.Attribute):  # .to(dtype)
        core = core.func.value
    chain, lines = _chain(kernel, core.id, made.id) if isinstance(core, ast.Name) else ([], [])
    if not chain:
        return None
    wide = (f"kept = {made.id}.dtype", f"{made.id} = {made.id}.float()")
    whole = (*wide, *lines, f"{made.id} = {made.id}.to(kept)")
    return Epilogue(tuple(chain), _spare(kernel, chain), whole, made.id, returned)


def _chain(kernel: Kernel, core: str, made: str) -> tuple[list[ast.stmt], list[str]]:
    """The last statements that change the result, as far back as torch can do them, and that in
    torch."""
    chain, lines = list[ast.stmt](), list[str]()
    for statement in reversed(kernel.function.body):
        changes = isinstance(statement, ast.Assign) and core in stored_names(statement)
        if isinstance(statement, ast.For) or (changes and core not in used_names(statement)):
            break
        if changes and isinstance(statement, ast.Assign):
            said = _in_torch(kernel, statement.value, core, made)
            if said is None:
                break
            chain.insert(0, statement)
            lines.insert(0, f"{made} = {said}")
    return chain, lines


def _is(node: ast.expr | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _spare(kernel: Kernel, chain: list[ast.stmt]) -> tuple[ast.stmt, ...]:
    """Loads that nothing else uses."""
    names = {name for s in chain for name in used_names(s)}
    others = [s for s in kernel.function.body if s not in chain]
    return tuple(
        s
        for s in others
        if isinstance(s, ast.Assign)
        and find_calls(s.value, "load")
        and stored_names(s) <= names
        and not any(stored_names(s) & used_names(o) for o in others if o is not s)
    )


def _in_torch(kernel: Kernel, node: ast.expr, result: str, made: str) -> str | None:
    """The expression on the stored result; None where it has no plain translation."""
    if isinstance(node, ast.Name):
        return made if node.id == result else _scalar(kernel, node.id)
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.Subscript):
        return _vector(kernel, node)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        sides = [_in_torch(kernel, side, result, made) for side in (node.left, node.right)]
        return None if None in sides else f"({sides[0]} {OPERATIONS[type(node.op)]} {sides[1]})"
    return _called_in_torch(kernel, node, result, made) if isinstance(node, ast.Call) else None


def _called_in_torch(kernel: Kernel, node: ast.Call, result: str, made: str) -> str | None:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    given = [_in_torch(kernel, a, result, made) for a in node.args]
    if None in given or node.keywords:
        return None
    if name == "maximum" and len(node.args) == 2 and isinstance(node.args[1], ast.Constant):
        return f"{given[0]}.clamp(min={given[1]})"
    return f"torch.{name}({given[0]})" if name in FUNCTIONS and len(given) == 1 else None


def _scalar(kernel: Kernel, name: str) -> str | None:
    """What the launch passes for a number."""
    if not kernel.launched or not isinstance(kernel.launched[0].arguments.get(name), int | float):
        return None
    given = passed_value(kernel, name)
    return f"({kernel.text(given)})" if given is not None else None


def _vector(kernel: Kernel, node: ast.Subscript) -> str | None:
    """``loaded[None, :]`` of a vector that the launcher has whole: it broadcasts along the last
    axis."""
    said = (
        find_assignments(kernel.function, node.value.id) if isinstance(node.value, ast.Name) else []
    )
    loads = find_calls(said[0].value, "load") if len(said) == 1 else []
    if len(loads) != 1 or ast.unparse(node.slice) not in ("(None, :)", "None, :"):
        return None
    bases = names_in(loads[0].args[0])
    vectors = [n for n, p in kernel.pointers().items() if n in bases and len(p.shape) == 1]
    given = passed_value(kernel, vectors[0]) if len(vectors) == 1 else None
    return kernel.text(given) if isinstance(given, ast.Name) else None
