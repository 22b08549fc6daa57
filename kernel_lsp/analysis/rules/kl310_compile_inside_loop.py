"""KL310: torch.compile is called again and again, so that what it made is made again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script, each_time, own_nodes
from kernel_lsp.analysis.source import FunctionNode, walk


def _check(script: Script) -> Iterator[Hit]:
    if ".compile" not in script.file.text and "import compile" not in script.file.text:
        return
    for place, statements in _repeated_bodies(script):
        for statement in statements:
            for node in own_nodes(statement):
                if isinstance(node, ast.Call) and script.file.dotted(node.func) == "torch.compile":
                    yield _hit(node, place)
    for function in script.functions:
        for decorator in function.decorator_list:
            made = decorator.func if isinstance(decorator, ast.Call) else decorator
            outer = _place_of(script, function)
            if script.file.dotted(made) == "torch.compile" and outer is not None:
                yield _hit(decorator, outer)


def _repeated_bodies(script: Script) -> Iterator[tuple[str, Iterator[ast.stmt]]]:
    for function in script.functions:
        if function.name in ("forward", "training_step"):
            yield function.name, each_time(function.body)
    for _, loops in script.scopes:
        for loop in loops:
            if _repeats_itself(loop):
                yield "a loop", each_time(loop.body)


def _repeats_itself(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """The rounds compile one and the same: nothing compiled depends on the loop's own variable."""
    if "reset" in ast.unparse(loop):  # a benchmark, which wants it compiled again
        return False
    if isinstance(loop, ast.While):
        return True
    own = _names(loop.target)
    calls = (n for n in walk(loop) if isinstance(n, ast.Call))
    used = {name for c in calls if ast.unparse(c.func).endswith("compile") for name in _names(c)}
    made_of_own = {
        target.id
        for s in walk(loop)
        if isinstance(s, ast.Assign) and _names(s.value) & own
        for target in s.targets
        if isinstance(target, ast.Name)
    }
    return not used & (own | made_of_own)


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, ast.Name)}


def _place_of(script: Script, function: FunctionNode) -> str | None:
    """What a decorated inner function is defined anew in."""
    for node in script.around(function):
        if isinstance(node, FunctionNode):
            return node.name if node.name in ("forward", "training_step") else None
        if any(step.owner is node for step in script.steps):
            return "a loop"
    return None


def _hit(node: ast.expr, place: str) -> Hit:
    return hit(
        node,
        f"torch.compile is called at every round of {place}: each call wraps and guards anew, "
        f"and may "
        "compile again (seconds to minutes); call it once, before",
        place=place,
    )


KL310 = ScriptRule(
    id="KL310",
    name="compile-inside-loop",
    summary="torch.compile is called in a loop or in forward",
    severity="hint",
    check=_check,
)
