"""exp of a difference of scaled scores becomes exp2, with log2(e) folded into the scale.

Everything that is compared or subtracted on the way must carry the same factor: scores, their
maxima, and minus infinity, which any positive factor leaves as it is. Not covered: scores with a
bias, sums of logs that are stored as they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from kernel_lsp.rewrite.kernels.places import ahead
from kernel_lsp.rewrite.kernels.source import FunctionNode, find_calls
from kernel_lsp.rewrite.kernels.terms import only_shapes
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

LOG2_E = "1.4426950408889634"


@dataclass(slots=True)
class Scores:
    """Names whose values are multiples of the scale, or minus infinity."""

    names: set[str] = field(default_factory=set)
    scales: list[ast.expr] = field(default_factory=list)
    understood: set[int] = field(default_factory=set)
    """Nodes of names that were met where the factor does no harm."""


def match(kernel: Kernel) -> list[KernelMatch]:
    found = _exponents(kernel.function)
    scores = _scores(kernel, [side for call in found for side in _sides(call)])
    if not found or scores is None:
        return []
    summary = "exp2 instead of exp: log2(e) goes into the scale"
    return [KernelMatch(f"{len(found)} of tl.exp", summary, 0.05, data=(found, scores.scales))]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    return [
        proof(
            "exp(a - b) is exp2(a * log2(e) - b * log2(e))",
            True,
            "each tl.exp that is changed takes a difference",
        ),
        proof(
            "both sides carry the factor, and nothing else sees it",
            True,
            "they are products with the scale, their maxima or minus infinity, and are used for "
            "nothing else",
        ),
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    exponents, scales = match.data
    for call in exponents:
        kernel.replace(call.func, f"{kernel.text(call.func.value)}.exp2")
    for scale in scales:
        kernel.replace(scale, f"({kernel.text(scale)} * {LOG2_E})")
    lines = {
        s.lineno: s for s in _assignments(kernel.function) if any(n in scales for n in ast.walk(s))
    }
    for statement in lines.values():
        indent = " " * statement.col_offset
        kernel.replace(ahead(statement), f"# Times log2(e), as exp2 wants it.\n{indent}")


# --- what carries the factor -------------------------------------------------------------------


def _exponents(function: FunctionNode) -> list[ast.Call]:
    """Of differences alone, not inside one another."""
    return [call for call in find_calls(function, "exp") if len(call.args) == 1 and _sides(call)]


def _sides(call: ast.Call) -> list[ast.expr]:
    match call.args[0]:
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return [left, right]
    return []


def _scores(kernel: Kernel, sides: list[ast.expr]) -> Scores | None:
    """All that depends on the scores; None: something does that the factor would change."""
    found, waiting = Scores(), list(sides)
    seen: set[str] = set()
    while waiting:
        if not _read(kernel, waiting.pop(), found):
            return None
        for name in found.names - seen:
            seen.add(name)
            values = _known_values(kernel, name)
            if values is None:
                return None
            waiting += values
    nodes = (n for n in ast.walk(kernel.function) if isinstance(n, ast.Name))
    loads = {id(n) for n in nodes if n.id in found.names and isinstance(n.ctx, ast.Load)}
    return found if found.scales and loads <= found.understood else None


def _known_values(kernel: Kernel, name: str) -> list[ast.expr] | None:
    """All that is assigned to a name; None for a parameter, or where one is not seen."""
    parameters = {a.arg for a in ast.walk(kernel.function.args) if isinstance(a, ast.arg)}
    values = list(_values(kernel.function, name))
    known = [value for value in values if value is not None]
    return None if name in parameters or not known or len(known) < len(values) else known


def _read(kernel: Kernel, node: ast.expr, found: Scores) -> bool:
    """The expression carries the factor as soon as its names do."""
    match node:
        case ast.Name(id=name):
            found.names.add(name)
            found.understood.add(id(node))
            return True
        case ast.Subscript(value=value, slice=place) if only_shapes(place):
            return _read(kernel, value, found)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            scales = [
                s
                for s, other in ((left, right), (right, left))
                if _is_scale(kernel, s) and _dots(other)
            ]
            found.scales += scales[:1]
            return bool(scales)
        case ast.Call(func=ast.Attribute(attr="max"), args=[value, *_], keywords=keywords):
            return {k.arg for k in keywords} <= {"axis", "keep_dims"} and _read(
                kernel, value, found
            )
        case ast.Call(func=ast.Attribute(attr="maximum"), args=[left, right], keywords=[]):
            return _read(kernel, left, found) and _read(kernel, right, found)
        case ast.Call(func=ast.Attribute(attr="where"), args=[_, yes, no], keywords=[]):
            return _read(kernel, yes, found) and _read(kernel, no, found)
    return _is_lowest(node)


def _is_lowest(node: ast.expr) -> bool:
    """Minus infinity, in all lanes."""
    match node:
        case ast.Call(func=ast.Attribute(attr="full"), args=[_, value, *_]):
            return _is_lowest(value)
        case ast.BinOp(left=ast.Call(func=ast.Attribute(attr="zeros")), op=ast.Sub(), right=right):
            return ast.unparse(right) == "float('inf')"
    return ast.unparse(node) in ("float('-inf')", "-float('inf')")


def _is_scale(kernel: Kernel, node: ast.expr) -> bool:
    """One number for all of the kernel: of its launch, or written down."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if not isinstance(node, ast.Name) or list(_values(kernel.function, node.id)):
        return False
    launched = kernel.launched[0]
    return isinstance(launched.arguments.get(node.id, launched.constants.get(node.id)), int | float)


def _dots(node: ast.expr) -> bool:
    """A product of matrices, as it is."""
    return isinstance(node, ast.Call) and node in find_calls(node, "dot")


def _values(function: FunctionNode, name: str) -> Iterator[ast.expr | None]:
    """What a name is set to; None where that is not one plain assignment."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            plain = [s for s in _assignments(function) if s.targets == [node]]
            yield plain[0].value if plain else None


def _assignments(function: FunctionNode) -> list[ast.Assign]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
