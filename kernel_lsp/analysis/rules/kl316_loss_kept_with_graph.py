"""KL316: losses are kept with their graphs, one more at every step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Fix, Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script, ScriptStep, differentiated_names, method, same_scope
from kernel_lsp.analysis.source import walk


def _check(script: Script) -> Iterator[Hit]:
    for step in script.training:
        if not isinstance(step.owner, ast.For | ast.AsyncFor | ast.While):
            continue
        bound = _bound(step)
        losses = {name for name in step.losses if not _is_number(bound.get(name, []))}
        for statement in step.statements:
            found = _find_kept(statement, losses)
            if (
                found is not None
                and found[0] not in bound
                and not _is_needed(script, step, found[0])
            ):
                yield _hit(found[1])


def _find_kept(statement: ast.stmt, losses: set[str]) -> tuple[str, ast.Name] | None:
    """(what keeps it, the loss) of ``kept.append(loss)`` and ``total += loss``."""
    match statement:
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="append"),
                args=[ast.Name() as loss],
            )
        ) if loss.id in losses:
            return name, loss
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=ast.Name() as loss) if (
            loss.id in losses
        ):
            return name, loss
        case ast.AugAssign(
            target=ast.Name(id=name),
            op=ast.Add(),
            value=ast.BinOp(left=ast.Name() as loss, op=ast.Mult() | ast.Div()),
        ) if loss.id in losses:
            return name, loss
    return None


def _bound(step: ScriptStep) -> dict[str, list[ast.expr]]:
    """Names that the step itself assigns, with what."""
    found: dict[str, list[ast.expr]] = {}
    for statement in step.owner.body:
        for node in same_scope(statement):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for name in walk(target):
                        if isinstance(name, ast.Name):
                            found.setdefault(name.id, []).append(node.value)
    return found


def _is_number(values: list[ast.expr]) -> bool:
    """Some assignment makes it a plain number, or takes it off the graph."""
    return any(
        method(n) in ("item", "detach", "cpu")
        or (isinstance(n, ast.Call) and ast.unparse(n.func) == "float")
        for value in values
        for n in walk(value)
    )


def _is_needed(script: Script, step: ScriptStep, name: str) -> bool:
    """The sum is differentiated itself, or is part of something that is."""
    around = step.function.body if step.function is not None else script.file.tree.body
    nodes = [n for statement in around for n in same_scope(statement)]
    sources = {n.id for c in nodes if isinstance(c, ast.Call) for n in differentiated_names(c)}
    if name in sources:
        return True
    return any(
        isinstance(n, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id in sources for t in n.targets)
        and any(isinstance(v, ast.Name) and v.id == name for v in walk(n.value))
        for n in nodes
    )


def _hit(loss: ast.Name) -> Hit:
    return hit(
        loss,
        f"{loss.id} is kept with the graph that made it, one more at every step; "
        f"{loss.id}.detach() keeps the number",
        fix=Fix(f"Keep {loss.id}.detach()", ((loss, f"{loss.id}.detach()"),)),
    )


KL316 = ScriptRule(
    id="KL316",
    name="loss-kept-with-graph",
    summary="losses are kept with their graphs",
    severity="hint",
    check=_check,
)
