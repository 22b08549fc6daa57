"""KL304: a tensor is made on the host and moved to the device, in every call or step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, ScriptRule, hit
from kernel_lsp.analysis.scripts import Script, each_time, has_star, keyword, method, own_nodes
from kernel_lsp.analysis.source import words

_MAKERS = frozenset(
    f"torch.{name}"
    for name in words("arange zeros ones full empty eye linspace rand randn randint randperm")
)
_SHAPED = frozenset({"torch.tril", "torch.triu"})
# They leave the tensor where it is.
_CHAIN = words(
    """
    unsqueeze squeeze view reshape expand repeat float long int bool half double type transpose t
    flatten to mul add tril triu normal_ uniform_ fill_ requires_grad_
    """
)


def _check(script: Script) -> Iterator[Hit]:
    seen: set[int] = set()
    for statement in _statements(script):
        for node in own_nodes(statement):
            if not isinstance(node, ast.Call) or id(node) in seen or not _moves(node):
                continue
            made = _made_on_host(script, node)
            if made is not None and id(made) not in seen:
                seen |= {id(node), id(made)}
                what = script.file.dotted(made.func) or "a tensor"
                yield hit(
                    node,
                    f"{what} makes the tensor on the CPU, each time, and copies it to the device; "
                    "device=... makes it there",
                    function=what,
                )


def _statements(script: Script) -> Iterator[ast.stmt]:
    for function in script.functions:
        if function.name == "forward":
            yield from each_time(function.body)
    for step in script.steps:
        yield from step.statements


def _moves(call: ast.Call) -> bool:
    """``.to(device)``, ``.to(x.device)``, ``.to("cuda")`` and ``.cuda()``."""
    name = method(call)
    if name == "cuda":
        return True
    where = call.args[0] if call.args else keyword(call, "device")
    if name != "to" or where is None:
        return False
    if isinstance(where, ast.Constant):
        return isinstance(where.value, str) and where.value.startswith("cuda")
    last = where.attr if isinstance(where, ast.Attribute) else getattr(where, "id", "")
    return last == "dev" or last.endswith("device")


def _made_on_host(script: Script, moved: ast.Call) -> ast.Call | None:
    """The maker at the root of ``torch.zeros(..).unsqueeze(0).to(device)``."""
    node: ast.expr = moved.func.value if isinstance(moved.func, ast.Attribute) else moved
    while isinstance(node, ast.Call):
        dotted = script.file.dotted(node.func)
        if dotted in _SHAPED and node.args:
            node = node.args[0]
        elif dotted in _MAKERS:
            return node if _is_left_open(node) else None
        elif isinstance(node.func, ast.Attribute) and dotted is None and node.func.attr in _CHAIN:
            node = node.func.value
        else:
            return None
    return None


def _is_left_open(call: ast.Call) -> bool:
    """It says neither where to make the tensor nor of which generator, which lives on one
    device."""
    return not has_star(call) and not any(
        k.arg in ("device", "generator", "out") for k in call.keywords
    )


KL304 = ScriptRule(
    id="KL304",
    name="host-tensor-moved",
    summary="a tensor is made on the CPU and moved at every call",
    severity="hint",
    check=_check,
)
