"""KL204: a running sum kept in float16 or bfloat16."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import language_name
from kernel_lsp.analysis.rules.base import Fix, Hit, Rule, RuleSite, argument, hit
from kernel_lsp.analysis.source import FunctionNode, walk
from kernel_lsp.records import TargetKind

_LOW = frozenset({"float16", "bfloat16"})


def _check(site: RuleSite) -> Iterator[Hit]:
    for function in site.functions:
        accumulated = _accumulated_in_loops(site, function)
        for node in (n for statement in function.body for n in walk(statement)):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                names = {t.id for t in node.targets if isinstance(t, ast.Name)}
                dtype = _made_in(site, node.value)
                if dtype and names & accumulated:
                    fix = _fix_of_name(site, function, node, min(names))
                    yield _hit(node.value, f"the accumulator {min(names)} is {dtype}", dtype, fix)
            elif isinstance(node, ast.Call) and (dtype := _sums_in(site, node)):
                fix = _fix_of_stored(site, function, node)
                yield _hit(node, f"{ast.unparse(node.func)} adds up in {dtype}", dtype, fix)


def _low(site: RuleSite, node: ast.expr | None) -> str | None:
    name = language_name(site.file, node) if node is not None else None
    return name if name in _LOW else None


def _made_in(site: RuleSite, call: ast.Call) -> str | None:
    """The low dtype of ``tl.zeros(shape, dtype)`` or ``tl.full(shape, value, dtype)``."""
    name = language_name(site.file, call.func)
    if name not in ("zeros", "full"):
        return None
    return _low(site, argument(call, 1 if name == "zeros" else 2, "dtype"))


def _sums_in(site: RuleSite, call: ast.Call) -> str | None:
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


def _accumulated_in_loops(site: RuleSite, function: FunctionNode) -> set[str]:
    """Names that a loop adds to: ``acc += x``, ``acc = acc + x``, ``acc = tl.dot(a, b, acc)``."""
    found: set[str] = set()
    loops = [n for n in walk(function) if isinstance(n, ast.For | ast.While)]
    for node in (n for loop in loops for n in walk(loop)):
        match node:
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add()):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(op=ast.Add()) as value):
                found |= {name} & {
                    n.id for n in (value.left, value.right) if isinstance(n, ast.Name)
                }
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                if language_name(site.file, call.func) == "dot":
                    given = argument(call, 2, "acc")
                    found |= {name} if isinstance(given, ast.Name) and given.id == name else set()
    return found


def _fix_of_name(site: RuleSite, function: FunctionNode, made: ast.Assign, name: str) -> Fix | None:
    """All that makes and feeds the accumulator. None where it is used for more than being added to
    and stored, which may want its type: a store casts by itself."""
    edits: list[ast.expr] = []
    for node in (n for n in walk(function) if isinstance(n, ast.stmt)):
        if node is made:
            edits += _low_dtypes(site, made.value)
        elif (more := _dtypes_of_use(site, node, name)) is not None:
            edits += more
        else:
            return None
    return _widening_fix(edits)


def _dtypes_of_use(site: RuleSite, node: ast.stmt, name: str) -> list[ast.expr] | None:
    """Low dtypes of what is added to the accumulator here; None for another use of it."""
    match node:
        case ast.AugAssign(target=ast.Name(id=given), op=ast.Add(), value=value) if given == name:
            if _count(value, name):
                return None
            return _low_dtypes(site, value) if _is_dot(site, value) else []
        case ast.Assign(targets=[ast.Name(id=given)], value=value) if given == name:
            return _dtypes_of_sum(site, value, name)
        case ast.Expr(value=ast.Call() as call) if language_name(site.file, call.func) == "store":
            inner = (n for n in walk(call) if isinstance(n, ast.Call))
            return None if any(_is_dot(site, n) and _count(n, name) for n in inner) else []
        case ast.For() | ast.If() | ast.FunctionDef():
            return []  # their statements come by themselves
    return None if _count(node, name) else []


def _dtypes_of_sum(site: RuleSite, value: ast.expr, name: str) -> list[ast.expr] | None:
    """Of ``acc = tl.dot(a, b, acc)`` or ``acc = acc + x``."""
    if isinstance(value, ast.Call) and _is_dot(site, value) and _count(value, name) == 1:
        into = argument(value, 2, "acc")
        return _low_dtypes(site, value) if into is not None and _count(into, name) else None
    return [] if _adds(value, name) else None


def _fix_of_stored(site: RuleSite, function: FunctionNode, call: ast.Call) -> Fix | None:
    """None but for a sum that is stored as it is, or added to a name of another type."""
    for node in walk(function):
        match node:
            case ast.Expr(value=ast.Call(args=[_, value, *_]) as store) if value is call:
                if language_name(site.file, store.func) == "store":
                    return _widening_fix(_low_dtypes(site, call))
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value) if (
                value is call
            ):
                made = [
                    n for n in walk(function) if isinstance(n, ast.Assign) and _is_named(n, name)
                ]
                float32 = [n for n in made if "float32" in ast.unparse(n.value)]
                if len(made) == len(float32) == 1:
                    return _widening_fix(_low_dtypes(site, call))
    return None


def _is_named(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _adds(value: ast.expr, name: str) -> bool:
    """``name + …``, once."""
    sides = (
        [value.left, value.right]
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)
        else []
    )
    own = [side for side in sides if isinstance(side, ast.Name) and side.id == name]
    return len(own) == 1 == _count(value, name)


def _count(node: ast.AST, name: str) -> int:
    return sum(isinstance(n, ast.Name) and n.id == name for n in walk(node))


def _is_dot(site: RuleSite, value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and language_name(site.file, value.func) == "dot"


def _low_dtypes(site: RuleSite, call: ast.expr) -> list[ast.expr]:
    """Where a call's own arguments, or the cast of what it sums, say float16 or bfloat16."""
    assert isinstance(call, ast.Call)
    given = [*call.args, *(k.value for k in call.keywords)]
    cast = [a for g in call.args[:1] if isinstance(g, ast.Call) for a in g.args]
    return [node for node in (*given, *cast) if _low(site, node)]


def _widening_fix(dtypes: list[ast.expr]) -> Fix | None:
    edits = tuple(
        (node, f"{ast.unparse(node.value)}.float32")
        for node in dtypes
        if isinstance(node, ast.Attribute)
    )
    whole = bool(edits) and len(edits) == len(dtypes)
    return Fix("Accumulate in tl.float32", edits) if whole else None


def _hit(node: ast.expr, what: str, dtype: str, fix: Fix | None) -> Hit:
    digits = "11 bits" if dtype == "float16" else "8 bits"
    message = f"{what}, which keeps {digits}: accumulate in tl.float32 and cast when storing"
    return hit(node, message, fix=fix, dtype=dtype)


KL204 = Rule(
    id="KL204",
    name="low-precision-accumulation",
    summary="a running sum kept in float16 or bfloat16",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
