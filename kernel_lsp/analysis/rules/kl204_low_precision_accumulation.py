"""KL204: a running sum kept in float16 or bfloat16."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import language_name
from kernel_lsp.analysis.rules.base import Hit, Rule, Site, argument, hit
from kernel_lsp.analysis.source import FunctionNode, walk
from kernel_lsp.records import TargetKind

_LOW = frozenset({"float16", "bfloat16"})


def _check(site: Site) -> Iterator[Hit]:
    for function in site.functions:
        accumulated = _accumulated_in_loops(site, function)
        for node in (n for statement in function.body for n in walk(statement)):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                names = {t.id for t in node.targets if isinstance(t, ast.Name)}
                dtype = _made_in(site, node.value)
                if dtype and names & accumulated:
                    yield _found(node.value, f"the accumulator {min(names)} is {dtype}", dtype)
            elif isinstance(node, ast.Call) and (dtype := _sums_in(site, node)):
                yield _found(node, f"{ast.unparse(node.func)} adds up in {dtype}", dtype)


def _low(site: Site, node: ast.expr | None) -> str | None:
    name = language_name(site.file, node) if node is not None else None
    return name if name in _LOW else None


def _made_in(site: Site, call: ast.Call) -> str | None:
    """The low dtype of ``tl.zeros(shape, dtype)`` or ``tl.full(shape, value, dtype)``."""
    name = language_name(site.file, call.func)
    if name not in ("zeros", "full"):
        return None
    return _low(site, argument(call, 1 if name == "zeros" else 2, "dtype"))


def _sums_in(site: Site, call: ast.Call) -> str | None:
    name = language_name(site.file, call.func)
    if name == "dot":
        return _low(site, next((k.value for k in call.keywords if k.arg == "out_dtype"), None))
    if name == "sum" and call.args and not any(k.arg == "dtype" for k in call.keywords):
        summed = call.args[0]
        if (
            isinstance(summed, ast.Call)
            and isinstance(summed.func, ast.Attribute)
            and summed.func.attr == "to"
        ):
            return _low(site, summed.args[0] if summed.args else None)
    return None


def _accumulated_in_loops(site: Site, function: FunctionNode) -> set[str]:
    """Names that a loop adds to: ``acc += x``, ``acc = acc + x``, ``acc = tl.dot(a, b, acc)``."""
    found: set[str] = set()
    loops = [n for n in walk(function) if isinstance(n, ast.For | ast.While)]
    for node in (n for loop in loops for n in walk(loop)):
        match node:
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add()):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(op=ast.Add()) as value):
                found |= {name} & {n.id for n in (value.left, value.right) if isinstance(n, ast.Name)}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                if language_name(site.file, call.func) == "dot":
                    given = argument(call, 2, "acc")
                    found |= {name} if isinstance(given, ast.Name) and given.id == name else set()
    return found


def _found(node: ast.expr, what: str, dtype: str) -> Hit:
    digits = "11 bits" if dtype == "float16" else "8 bits"
    return hit(
        node, f"{what}, which keeps {digits}: accumulate in tl.float32 and cast when storing", dtype=dtype
    )


KL204 = Rule(
    id="KL204",
    name="low-precision-accumulation",
    summary="a running sum kept in float16 or bfloat16",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
