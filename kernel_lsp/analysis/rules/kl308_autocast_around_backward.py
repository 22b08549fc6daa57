"""KL308: backward or the optimizer runs inside autocast, which is for the forward pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import (
    Script,
    is_backward,
    is_literal,
    is_optimizer_step,
    keyword,
    same_scope,
)

_AUTOCAST = frozenset(
    {"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast"}
)


def _check(script: Script) -> Iterator[Hit]:
    for node in script.nodes:
        if not isinstance(node, ast.With) or not any(
            _is_autocast(script, i.context_expr) for i in node.items
        ):
            continue
        inside = [
            n for statement in node.body for n in same_scope(statement) if isinstance(n, ast.Call)
        ]
        found = next(
            (call for call in inside if is_backward(call) or is_optimizer_step(call)), None
        )
        if found is not None:
            what = "backward" if is_backward(found) else "the optimizer's step"
            yield hit(
                found,
                f"{what} runs inside autocast; it is for the forward pass and the loss: backward "
                f"takes each "
                "operation's dtype from its forward by itself",
            )


def _is_autocast(script: Script, context: ast.expr) -> bool:
    if not isinstance(context, ast.Call) or script.file.dotted(context.func) not in _AUTOCAST:
        return False
    return not is_literal(keyword(context, "enabled"), False)


KL308 = ScriptRule(
    id="KL308",
    name="autocast-around-backward",
    summary="backward or the optimizer runs inside autocast",
    severity="warning",
    check=_check,
)
