"""KL103: forward makes the same constant tensor on each call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.names import bound_names
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit, self_attribute
from kernel_lsp.analysis.source import DefinitionNode, FunctionNode, blocks, children, walk, words
from kernel_lsp.records import TargetKind

_MAKERS = frozenset(
    f"torch.{name}"
    for name in words(
        """
    tensor as_tensor arange linspace logspace eye zeros ones full hann_window hamming_window
    blackman_window tril_indices triu_indices
    """
    )
)
# Where a tensor is put decides nothing about its values.
_PLACEMENT = frozenset({"device", "dtype", "requires_grad", "layout", "pin_memory"})


def _check(site: RuleSite) -> Iterator[Hit]:
    if not any(dotted in _MAKERS for _, dotted in site.calls):
        return
    for function in site.functions:
        changed = _changed_later(function)
        locals_ = {name for s in function.body for name in bound_names(s)}
        locals_ |= {a.arg for a in walk(function.args) if isinstance(a, ast.arg)}
        for statement in _unconditional(function.body):
            if _is_stored(statement) or bound_names(statement) & changed:
                continue
            for call in _own_calls(statement):
                dotted = site.file.dotted(call.func)
                if dotted in _MAKERS and call.args and _is_constant(call, locals_):
                    yield hit(
                        call,
                        f"{dotted} makes the same tensor on each call; make it once "
                        f"(register_buffer)",
                        function=dotted,
                    )


def _unconditional(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on every call: those under if and try may be a cache or a rare path."""
    for statement in body:
        if isinstance(statement, ast.If | ast.Try | DefinitionNode | ast.Raise | ast.Assert):
            continue
        yield statement
        for block in blocks(statement):
            yield from _unconditional(block)


def _own_calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """Calls in the statement's expressions, not in its nested blocks, conditional expressions or
    lambdas."""
    queue: list[ast.AST] = [n for n in children(statement) if not isinstance(n, ast.stmt)]
    while queue:
        node = queue.pop()
        if isinstance(
            node, ast.IfExp | ast.Lambda | ast.BoolOp | ast.excepthandler | ast.match_case
        ):
            continue
        if isinstance(node, ast.Call):
            yield node
        queue.extend(children(node))


def _is_constant(call: ast.Call, locals_: set[str]) -> bool:
    values = [*call.args, *(k.value for k in call.keywords if k.arg not in _PLACEMENT)]
    return all(_is_constant_value(v, locals_) for v in values)


def _is_constant_value(node: ast.expr, locals_: set[str]) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name.isupper() and name not in locals_
        case ast.Attribute():
            # self.size is as constant as a module's attributes usually are; self.size.x is too far.
            return (
                self_attribute(node) is not None
                and node.attr.islower()
                and _sounds_like_a_size(node.attr)
            )
        case ast.UnaryOp(operand=operand):
            return _is_constant_value(operand, locals_)
        case ast.BinOp(left=left, right=right):
            return _is_constant_value(left, locals_) and _is_constant_value(right, locals_)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return all(_is_constant_value(e, locals_) for e in elements)
    return False


def _sounds_like_a_size(name: str) -> bool:
    words = (
        "num",
        "size",
        "dim",
        "features",
        "channels",
        "heads",
        "length",
        "width",
        "height",
        "hidden",
    )
    return any(word in name for word in words)


def _changed_later(function: FunctionNode) -> set[str]:
    """Local names whose tensor is written in place: a fresh one is needed on each call."""
    found: set[str] = set()
    for node in walk(function):
        if isinstance(node, ast.AugAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Subscript):
                    found |= _names(target.value)
                elif isinstance(node, ast.AugAssign):
                    found |= _names(target)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr.endswith("_")
        ):
            found |= _names(node.func.value)
        elif isinstance(node, ast.keyword) and node.arg == "out":
            found |= _names(node.value)
    return found


def _names(node: ast.expr) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, ast.Name)}


def _is_stored(statement: ast.stmt) -> bool:
    """``self.mask = torch.ones(..)`` is already the cure."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(self_attribute(t) for t in targets)


KL103 = Rule(
    id="KL103",
    name="tensor-created-per-call",
    summary="forward makes the same constant tensor on each call",
    severity="hint",
    kinds=frozenset({TargetKind.MODULE}),
    check=_check,
)
