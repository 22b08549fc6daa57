"""KL319: every new token runs the model over the whole sequence again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script, ScriptLoop, each_time, own_nodes
from kernel_lsp.analysis.source import walk

_CAT = ("torch.cat", "torch.concat", "torch.hstack")
_SAMPLES = re.compile(r"(?:argmax|multinomial|topk|sample|Categorical)\w{0,30}\(")
"""A call: an optimizer's loop with ``num_samples=128`` draws no token."""
_CACHED = re.compile(r"past|cache|\bkv\b|input_pos|start_pos|state|hidden", re.IGNORECASE)
_MODEL = re.compile(r"(^self$)|model|net\b|decoder|transformer|gpt|llm|\blm\b", re.IGNORECASE)


def _check(script: Script) -> Iterator[Hit]:
    if "cat(" not in script.file.text or not _SAMPLES.search(script.file.text):
        return
    for _, loops in script.scopes:
        for loop in loops:
            text = ast.unparse(loop)
            if not _SAMPLES.search(text) or _CACHED.search(text) or "backward" in text:
                continue
            call = _whole_sequence(script, loop)
            if call is not None:
                yield hit(
                    call,
                    "every token runs the model over all tokens before it, again, and in a new "
                    "shape; "
                    "a key-value cache leaves one token per call",
                )


def _whole_sequence(script: Script, loop: ScriptLoop) -> ast.Call | None:
    statements = list(each_time(loop.body))
    grown = {name for s in statements if (name := _growing_name(script, s)) is not None}
    if not grown:
        return None
    views = set(grown)
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not isinstance(
                value, ast.Call
            ):
                if _is_view(value, views):
                    views.add(name)
        for node in own_nodes(statement):
            is_model = (
                isinstance(node, ast.Call) and _MODEL.search(ast.unparse(node.func)) is not None
            )
            if is_model and node.args and _is_view(node.args[0], views):  # type: ignore[attr-defined]
                return node  # type: ignore[return-value]
    return None


def _growing_name(script: Script, statement: ast.stmt) -> str | None:
    """``x`` of ``x = torch.cat((x, y), dim=1)``."""
    match statement:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(args=[ast.List(elts=parts) | ast.Tuple(elts=parts), *_]) as call,
        ) if script.file.dotted(call.func) in _CAT and len(parts) == 2:
            first = parts[0]
            return name if isinstance(first, ast.Name) and first.id == name else None
    return None


def _is_view(node: ast.expr, names: set[str]) -> bool:
    """``x``, ``x[:, -n:]`` and ``x if .. else x[:, -n:]``; not ``x[:, -1:]``, which is one
    token."""
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.IfExp(body=body, orelse=orelse):
            return _is_view(body, names) and _is_view(orelse, names)
        case ast.Subscript(value=ast.Name(id=name)):
            last = any(isinstance(n, ast.Constant) and n.value == 1 for n in walk(node.slice))
            return name in names and not last
    return False


KL319 = ScriptRule(
    id="KL319",
    name="decoding-without-cache",
    summary="every token runs the model over the whole sequence",
    severity="hint",
    check=_check,
)
