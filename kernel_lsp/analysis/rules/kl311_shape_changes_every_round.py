"""KL311: a compiled function is called with another shape in each round of a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script, ScriptLoop, each_time, keyword, own_nodes
from kernel_lsp.analysis.source import walk


def _check(script: Script) -> Iterator[Hit]:
    compiled = _compiled_names(script)
    if not compiled or "mark_dynamic" in script.file.text:
        return
    for _, loops in script.scopes:
        for loop in loops:
            statements = list(each_time(loop.body))
            grown = _growing_names(script, statements)
            own = _counters(loop)
            calls = [n for s in statements for n in own_nodes(s) if isinstance(n, ast.Call)]
            for call in calls:
                if ast.unparse(call.func) in compiled:
                    yield from _changing(call, own, grown)


def _changing(call: ast.Call, counters: frozenset[str], grown: frozenset[str]) -> Iterator[Hit]:
    argument = next((a for a in call.args if _changes(a, counters, grown)), None)
    if argument is not None:
        yield hit(
            argument,
            "the compiled function gets another shape in each round: it is compiled for the first "
            "one, and "
            "again, for any size, at the second; pad to one size, or say dynamic=True",
        )


def _compiled_names(script: Script) -> frozenset[str]:
    """Names of what torch.compile made, and of functions under it, with shapes left to it."""
    made = {
        name
        for call, _ in script.constructed("torch.compile")
        if keyword(call, "dynamic") is None and (name := script.assigned_name(call))
    }
    for function in script.functions:
        for decorator in function.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            left = not isinstance(decorator, ast.Call) or keyword(decorator, "dynamic") is None
            if script.file.dotted(called) == "torch.compile" and left:
                made.add(function.name)
    return frozenset(made)


def _counters(loop: ScriptLoop) -> frozenset[str]:
    """``i`` of ``for i in range(..)``."""
    match loop:
        case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"))):
            return frozenset({name})
    return frozenset()


def _growing_names(script: Script, statements: list[ast.stmt]) -> frozenset[str]:
    """``x`` of ``x = torch.cat((x, y), ..)``."""
    found = set()
    for statement in statements:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(args=[ast.List(elts=parts) | ast.Tuple(elts=parts), *_]) as call,
            ) if script.file.dotted(call.func) in ("torch.cat", "torch.concat"):
                if any(isinstance(p, ast.Name) and p.id == name for p in parts):
                    found.add(name)
    return frozenset(found)


def _changes(argument: ast.expr, counters: frozenset[str], grown: frozenset[str]) -> bool:
    match argument:
        case ast.Name(id=name):
            return name in grown
        case ast.Subscript(slice=ast.Tuple(elts=parts)):
            return any(_is_prefix(part, counters) for part in parts)
        case ast.Subscript(slice=part):
            return _is_prefix(part, counters)
    return False


def _is_prefix(part: ast.expr, counters: frozenset[str]) -> bool:
    """``:i`` and ``i:``, whose lengths change; ``i : i + n`` stays as long as it is."""
    if not isinstance(part, ast.Slice) or part.step is not None:
        return False
    moving = [_reads(part.lower, counters), _reads(part.upper, counters)]
    return sum(moving) == 1


def _reads(node: ast.expr | None, names: frozenset[str]) -> bool:
    return node is not None and any(isinstance(n, ast.Name) and n.id in names for n in walk(node))


KL311 = ScriptRule(
    id="KL311",
    name="shape-changes-every-round",
    summary="a compiled function gets another shape in each round",
    severity="hint",
    check=_check,
)
