"""KL318: a cache of keys and values is copied whole for every new token."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script
from kernel_lsp.analysis.source import FunctionNode, walk

_PAST = re.compile(r"past|cache|prev", re.IGNORECASE)
_KEYS = re.compile(
    r"^(self\.)?(cached_|new_|cur_)?(k|v|key|value|keys|values|kv)(_|\d|$)", re.IGNORECASE
)
_CAT = ("torch.cat", "torch.concat", "torch.concatenate")


def _check(script: Script) -> Iterator[Hit]:
    if "torch.c" not in script.file.text or not _PAST.search(script.file.text):
        return
    seen: set[int] = set()
    for call, _ in script.constructed(*_CAT):
        match call.args:
            case [ast.List(elts=[past, new]) | ast.Tuple(elts=[past, new]), *_] if _is_cache(
                past, new
            ):
                function = script.function_of(call)
                if function is None or id(function) in seen:  # keys and values: one hint is enough
                    continue
                if _is_kept(script, function, call, past, new):
                    seen.add(id(function))
                    yield hit(
                        call,
                        "the cache is allocated and copied whole for every new token; allocate it "
                        "once at "
                        "its full length and write the token's rows into it",
                    )


def _is_cache(past: ast.expr, new: ast.expr) -> bool:
    if not all(isinstance(n, ast.Name | ast.Attribute | ast.Subscript) for n in (past, new)):
        return False
    old, added = ast.unparse(past), ast.unparse(new)
    return old != added and _PAST.search(old) is not None and _KEYS.search(added) is not None


def _is_kept(
    script: Script, function: FunctionNode, call: ast.Call, past: ast.expr, new: ast.expr
) -> bool:
    """The result is the next call's past: it replaces the new keys and is returned, or stored, as
    a cache."""
    match script.parents.get(call):
        case ast.Assign(targets=[target]):
            name = ast.unparse(target)
        case _:
            return False
    if name == ast.unparse(past):
        return True
    return name == ast.unparse(new) and any(_stores(node, name) for node in walk(function))


def _stores(node: ast.AST, name: str) -> bool:
    """``past = (k, v)``, ``return out, (k, v)`` and ``state["prev_key"] = k.view(..)``."""
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and len(node.elts) == 2:
        return ast.unparse(node.elts[0]) == name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript | ast.Attribute):
        is_past = _PAST.search(ast.unparse(node.targets[0])) is not None
        return is_past and any(
            ast.unparse(n) == name for n in walk(node.value) if isinstance(n, ast.Name)
        )
    return False


KL318 = ScriptRule(
    id="KL318",
    name="cache-grown-by-cat",
    summary="a key-value cache is copied for every token",
    severity="hint",
    check=_check,
)
