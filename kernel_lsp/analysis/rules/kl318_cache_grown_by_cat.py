"""KL318: a cache of keys and values is copied whole for every new token."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script

_PAST = re.compile(r"past|cache|prev", re.IGNORECASE)
_KEYS = re.compile(r"(^|[._\s\[\"'])(k|v|key|value|keys|values|kv)(\d|[._\s\]\"']|$)", re.IGNORECASE)
_CAT = ("torch.cat", "torch.concat", "torch.concatenate")


def _check(script: Script) -> Iterator[Hit]:
    if "torch.c" not in script.file.text or not _PAST.search(script.file.text):
        return
    seen: set[int] = set()
    for call, _ in script.constructed(*_CAT):
        match call.args:
            case [ast.List(elts=[past, new]) | ast.Tuple(elts=[past, new]), *_] if _is_cache(past, new):
                function = script.function_of(call)
                if function is None or id(function) in seen:  # keys and values: one hint is enough
                    continue
                seen.add(id(function))
                yield hit(
                    call,
                    "the cache is allocated and copied whole for every new token; allocate it once at its "
                    "full length and write the token's rows into it",
                )


def _is_cache(past: ast.expr, new: ast.expr) -> bool:
    old, added = ast.unparse(past), ast.unparse(new)
    is_plain = isinstance(past, ast.Name | ast.Attribute | ast.Subscript) and isinstance(
        new, ast.Name | ast.Attribute | ast.Subscript
    )
    return (
        is_plain and _PAST.search(old) is not None and "mask" not in old + added and bool(_KEYS.search(added))
    )


KL318 = ScriptRule(
    id="KL318",
    name="cache-grown-by-cat",
    summary="a key-value cache is copied for every token",
    severity="hint",
    check=_check,
)
