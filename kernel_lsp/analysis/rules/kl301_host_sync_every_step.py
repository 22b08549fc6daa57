"""KL301: the loop waits for the GPU at every step, to print, add up or test a number."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script, ScriptStep, method
from kernel_lsp.analysis.source import walk, words

_HOST = words("shape size numpy np cpu tolist item")
_WRITERS = words("print set_postfix set_description write add_scalar")
_TESTS = words("isnan isfinite isinf")
_COLLECTING = words("cpu numpy from_numpy to_list to_numpy")
# Calls that put a number on the host by formatting what they are given.
_FORMATTERS = words("format str repr")


def _check(script: Script) -> Iterator[Hit]:
    if not script.uses_gpu:
        return
    for step in script.steps:
        if _needs_values(step):
            continue
        found = list(_waits(script, step))
        if found:
            node, what = found[0]
            lines = sorted({other.lineno for other, _ in found[1:]} - {node.lineno})
            more = f" (and line {', '.join(map(str, lines))})" if lines else ""
            yield hit(
                node,
                f"{what} at every step makes the CPU wait until the GPU has done the step, so "
                f"that it cannot "
                f"queue the next one meanwhile; keep the tensor, and read it every n steps{more}",
                what=what,
                lines=lines,
            )


def _waits(script: Script, step: ScriptStep) -> Iterator[tuple[ast.expr, str]]:
    """The first wait of each statement: after it the others of the same statement cost little."""
    losses = step.losses if step.trains else frozenset[str]()
    seen: set[int] = set()
    for statement, node in step.expressions():
        if id(statement) in seen or not isinstance(node, ast.expr):
            continue
        what = _wait(script, step, node, losses)
        if what is None and isinstance(statement, ast.If | ast.While) and node is statement.test:
            what = _test(node, losses)
        if what is not None:
            seen.add(id(statement))
            yield node, what


def _wait(script: Script, step: ScriptStep, node: ast.expr, losses: frozenset[str]) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    name = method(node)
    if name == "item" and not node.args and not _is_on_host(script, node.func):
        return ".item()"
    if name == "cpu" and step.trains and _is_about(node.func, losses):
        return ".cpu()"
    plain = node.func.id if isinstance(node.func, ast.Name) else None
    if plain in ("float", "int") and _is_named(node.args, losses):
        return f"{plain}() of a tensor"
    called = name or plain
    is_writer = called in _WRITERS or script.file.dotted(node.func) == "wandb.log"
    return f"{called} of a tensor" if is_writer and _writes_any(node, losses) else None


def _writes_any(call: ast.Call, losses: frozenset[str]) -> bool:
    written = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(_writes(value, losses) for value in written)


def _writes(value: ast.expr, losses: frozenset[str]) -> bool:
    """``loss``, ``{"loss": loss}``, ``f"{loss}"``, ``"{}".format(loss)``."""
    match value:
        case ast.Name(id=name):
            return name in losses
        case ast.Dict(values=values):
            return any(_writes(v, losses) for v in values)
        case ast.JoinedStr(values=parts):
            return any(
                isinstance(p, ast.FormattedValue) and _writes(p.value, losses) for p in parts
            )
        case ast.Call(func=ast.Attribute(attr=attr), args=args) if attr in _FORMATTERS:
            return any(_writes(a, losses) for a in args)
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FORMATTERS:
            return any(_writes(a, losses) for a in args)
    return False


def _test(test: ast.expr, losses: frozenset[str]) -> str | None:
    """``if loss < best`` and ``if not torch.isfinite(loss)``."""
    inner = test.operand if isinstance(test, ast.UnaryOp) else test
    if isinstance(inner, ast.Compare):
        ordered = all(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in inner.ops)
        if ordered and _is_named([inner.left, *inner.comparators], losses):
            return "a branch on the loss"
    if isinstance(inner, ast.Call) and _is_named(inner.args, losses):
        name = method(inner) or (inner.func.id if isinstance(inner.func, ast.Name) else "")
        if name in _TESTS:
            return "a branch on the loss"
    return None


def _is_named(values: list[ast.expr], losses: frozenset[str]) -> bool:
    return any(isinstance(value, ast.Name) and value.id in losses for value in values)


def _is_about(node: ast.AST, losses: frozenset[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in losses for n in walk(node))


def _is_on_host(script: Script, function: ast.expr) -> bool:
    """numpy arrays, shapes and what was moved already."""
    if not isinstance(function, ast.Attribute):
        return False
    for inner in walk(function.value):
        if isinstance(inner, ast.Attribute) and inner.attr in _HOST:
            return True
        if isinstance(inner, ast.Name) and (script.file.imports.get(inner.id) or "").startswith(
            "numpy"
        ):
            return True
    return False


def _needs_values(step: ScriptStep) -> bool:
    """A simulator, a replay memory or a queue takes values at every step, an evaluation collects
    them on the host, or time is taken: it waits anyway."""
    for _, call in step.calls():
        name = method(call)
        if not step.trains and (name in _COLLECTING or ast.unparse(call.func) in _COLLECTING):
            return True
        if name in ("tolist", "perf_counter") or (
            name == "step" and "env" in ast.unparse(call.func).lower()
        ):
            return True
        if ast.unparse(call.func) in ("time", "time.time"):
            return True
    return False


KL301 = ScriptRule(
    id="KL301",
    name="host-sync-every-step",
    summary="the loop waits for a value from the GPU at every step",
    severity="hint",
    check=_check,
)
