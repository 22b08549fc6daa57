"""KL223: an offset that is widened to 64 bits after it was computed in 32."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.kernels import WIDE, KernelFacts, is_wide
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import walk
from kernel_lsp.analysis.targets import parameters
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    if "program_id" not in site.called_names:
        return
    for kernel in site.kernels:
        for call, _ in kernel.calls:
            operand = _find_widened(kernel, call)
            if operand is None or not _is_narrow_product(kernel, operand):
                continue
            if _is_flat_offset(kernel, call) and (
                _has_runtime_factor(kernel, operand) or _is_given_numel(site)
            ):
                yield hit(
                    call,
                    "the product is computed in 32 bits and has wrapped before it is widened: "
                    "widen a "
                    "factor, "
                    "tl.program_id(0).to(tl.int64) * size",
                )


def _has_runtime_factor(kernel: KernelFacts, operand: ast.expr) -> bool:
    """A program index times an argument: the start of a row."""
    runtime = set(kernel.parameters) - kernel.constexprs
    return any(
        isinstance(n, ast.BinOp)
        and isinstance(n.op, ast.Mult)
        and any(isinstance(side, ast.Name) and side.id in runtime for side in (n.left, n.right))
        for n in kernel.formula(operand)
    )


def _is_given_numel(site: RuleSite) -> bool:
    """A launch passes the number of elements of a tensor of any shape."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "numel"
        for launch in site.launches
        for given in launch.arguments.values()
        for node in walk(launch.resolve(given))
    )


def _is_flat_offset(kernel: KernelFacts, call: ast.Call) -> bool:
    """It indexes a whole tensor by itself: added to a pointer, and in no product afterwards."""
    aliases = {
        name for name, bound in kernel.bindings.items() if any(b.value is call for b in bound)
    }
    for node in kernel.nodes:
        sides = (
            _strip_axes(node)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
            else []
        )
        if any(s is call or (isinstance(s, ast.Name) and s.id in aliases) for s in sides):
            return False
    return any(_adds_to_pointer(kernel, a.pointer, call, aliases) for a in kernel.accesses)


def _strip_axes(node: ast.BinOp) -> list[ast.expr]:
    """Both factors, without ``[:, None]``."""
    return [s.value if isinstance(s, ast.Subscript) else s for s in (node.left, node.right)]


def _adds_to_pointer(
    kernel: KernelFacts, pointer: ast.expr, call: ast.Call, aliases: set[str]
) -> bool:
    """``x_ptr + offset``, or that and more."""
    node = kernel.resolve(pointer)
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, offset = kernel.resolve(node.left), node.right
        is_it = offset is call or (isinstance(offset, ast.Name) and offset.id in aliases)
        if is_it and isinstance(left, ast.Name) and left.id in kernel.parameters:
            return True
        node = left
    return False


def _find_widened(kernel: KernelFacts, call: ast.Call) -> ast.expr | None:
    """``x`` of ``x.to(tl.int64)`` or ``tl.cast(x, tl.int64)``."""
    if (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "to"
        and call.args
        and _is_wide(kernel, call.args[0])
    ):
        return call.func.value
    if kernel.called(call) == "cast" and len(call.args) > 1 and _is_wide(kernel, call.args[1]):
        return call.args[0]
    return None


def _is_wide(kernel: KernelFacts, dtype: ast.expr) -> bool:
    dotted = kernel.file.dotted(dtype)
    return dotted is not None and dotted.rpartition(".")[2] in WIDE


def _is_narrow_product(kernel: KernelFacts, node: ast.expr, depth: int = 6) -> bool:
    """A program index times something, added up or not, with nothing wide on the way."""
    node = kernel.resolve(node)
    if depth == 0:
        return False
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return not _mentions_wide(kernel, node) and (
            _is_narrow_product(kernel, node.left, depth - 1)
            or _is_narrow_product(kernel, node.right, depth - 1)
        )
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    sides = (_is_index(kernel, node.left), _is_index(kernel, node.right))
    return any(sides) and not _mentions_wide(kernel, node)


def _is_index(kernel: KernelFacts, node: ast.expr) -> bool:
    """The program index itself, in 32 bits."""
    return kernel.called(kernel.resolve(node)) == "program_id"


def _mentions_wide(kernel: KernelFacts, root: ast.expr) -> bool:
    """Some operand is or may be 64 bits wide: a cast on the way, an argument's annotation, memory,
    a function of another file."""
    wide = {p.arg for p in parameters(kernel.function) if is_wide(kernel.file, p)}
    seen: set[str] = set()
    queue: list[ast.AST] = [root]
    while queue:
        for node in walk(queue.pop()):
            if isinstance(node, ast.Call) and (
                _find_widened(kernel, node) is not None or _is_unknown(kernel, node)
            ):
                return True
            if isinstance(node, ast.Name) and node.id not in seen:
                if node.id in wide:
                    return True
                seen.add(node.id)
                queue += [binding.value for binding in kernel.bindings.get(node.id, ())]
    return False


def _is_unknown(kernel: KernelFacts, call: ast.Call) -> bool:
    return kernel.called(call) not in (
        "program_id",
        "num_programs",
        "arange",
        "cdiv",
        "minimum",
        "maximum",
    )


KL223 = Rule(
    id="KL223",
    name="late-widening",
    summary="an offset widened to 64 bits after a 32-bit product",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
