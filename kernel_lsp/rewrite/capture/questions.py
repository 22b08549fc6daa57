"""Questions that a program's Python asks while it runs and that a captured graph cannot ask again.

`unanswerable(source, device)` names one that was answered differently during capture (gradients,
tracing, the device); `hides_gradients(source, entry)` says whether a part runs under a gradient
mode of its own; `decides_by_batch(source)` says whether a branch may depend on the size of
dimension 0, so that two or three captured sizes prove nothing about the others. Reads the text
only; what imported code asks is not seen. For a recorded program, whose functions that ran are
known, `definitions_of` finds their text, and `changes_gradients` and `by_batch` ask the same of
them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from types import CodeType

from kernel_lsp import parsing

MODES = frozenset({
    "is_grad_enabled", "requires_grad", "is_inference_mode_enabled", "is_inference",
    "is_autocast_enabled",
    "is_compiling", "is_dynamo_compiling", "is_exporting", "is_leaf", "grad_fn",
})  # fmt: skip
GRADIENT_MODES = frozenset({"no_grad", "inference_mode", "enable_grad", "set_grad_enabled"})
DEVICES = frozenset({"is_cuda", "is_cpu", "get_device"})
BUILDERS = frozenset(
    {"__init__", "get_inputs", "get_init_inputs", "reset_parameters", "extra_repr"}
)
SIZES = frozenset({"shape", "size", "numel", "nelement"})
DECIDING = (ast.Compare, ast.Mod, ast.FloorDiv, ast.Pow, ast.BitAnd, ast.RShift)
DECIDING_CALLS = frozenset({"min", "max", "bool", "any", "all", "divmod", "isqrt"})


def unanswerable(source: str, device: str) -> str | None:
    """The source of the first question whose answer was an artifact of capture, or None."""
    for function in _running(source):
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                asks_device = node.attr in DEVICES or (
                    node.attr == "type"
                    and isinstance(node.value, ast.Attribute)
                    and node.value.attr == "device"
                )
                if node.attr in MODES or (device == "cuda" and asks_device):
                    return ast.unparse(node)
    return None


def hides_gradients(source: str, entry: str) -> bool:
    """Whether a part of the program runs under another gradient mode than the rest, which a graph
    that was captured without gradients does not show, or cuts them off by ``.data``, or trades
    memory for them by checkpoints. The target's own decorators stay, and so do not count."""
    return changes_gradients(_running(source), entry)


def changes_gradients(functions: Iterable[ast.FunctionDef], entry: str) -> bool:
    """Whether functions that ran hide gradients (:func:`hides_gradients`)."""
    for function in functions:
        is_target = function.name in ("forward", entry.split(".")[-1])
        decorators = [] if is_target else function.decorator_list
        withs = (node for node in ast.walk(function) if isinstance(node, ast.With))
        opened = [item.context_expr for node in withs for item in node.items]
        if any(_names(expression) & GRADIENT_MODES for expression in [*decorators, *opened]):
            return True
        if any(isinstance(n, ast.Attribute) and n.attr == "data" for n in ast.walk(function)):
            return True  # x.data: the same values, cut off from their history
        if _names(function) & {"checkpoint", "checkpoint_sequential"}:
            return True  # a rewritten forward would keep what these give up
    return False


def _names(expression: ast.AST) -> set[str]:
    found = {node.attr for node in ast.walk(expression) if isinstance(node, ast.Attribute)}
    return found | {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}


def decides_by_batch(source: str) -> bool:
    """Whether the size of dimension 0 may flow into a comparison, a remainder or a minimum."""
    return by_batch(_running(source))


def by_batch(functions: Iterable[ast.FunctionDef]) -> bool:
    """Whether functions that ran decide by the batch (:func:`decides_by_batch`)."""
    for function in functions:
        names = _tainted_names(function)
        for node in ast.walk(function):
            if _decides(node) and any(_is_size(part, names) for part in ast.walk(node)):
                return True
    return False


def definitions_of(codes: Iterable[CodeType]) -> Iterator[ast.FunctionDef]:
    """The definitions of functions that ran, as far as linecache has their files."""
    wanted: dict[str, set[tuple[str, int]]] = {}
    for code in codes:
        wanted.setdefault(code.co_filename, set()).add((code.co_name, code.co_firstlineno))
    for filename, places in wanted.items():
        try:
            tree = parsing.parse("".join(linecache.getlines(filename)))
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                if (node.name, first) in places:
                    yield node


def _running(source: str) -> Iterator[ast.FunctionDef]:
    """Functions that run on each call."""
    for node in ast.walk(parsing.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name not in BUILDERS:
            yield node


def _decides(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, DECIDING)
    if isinstance(node, ast.Call):
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        return isinstance(node.func, ast.Name) and name in DECIDING_CALLS
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return False  # their tests are walked as comparisons; a bare size as a test asks for zero
    return isinstance(node, ast.Compare)


def _tainted_names(function: ast.AST) -> set[str]:
    """Names that may hold the size of dimension 0, directly or through arithmetic."""
    names: set[str] = set()
    while True:
        found = set(names)
        for node in ast.walk(function):
            if (
                isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr))
                and node.value
            ):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    found |= _add_assigned(target, node.value, names)
        if found == names:
            return names
        names = found


def _add_assigned(target: ast.expr, value: ast.expr, names: set[str]) -> set[str]:
    if isinstance(target, (ast.Tuple, ast.List)) and _whole_shape(value):
        target = target.elts[0]  # the batch of `batch, length, width = x.shape`
    elif not _whole_shape(value) and not _yields_number(value, names):
        return set()
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _whole_shape(value: ast.expr) -> bool:
    if isinstance(value, ast.Attribute):
        return value.attr == "shape"
    return (
        isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "size" and not value.args
    )


def _yields_number(value: ast.expr, names: set[str]) -> bool:
    """Sizes combined by arithmetic; a call on tensors (``x.view(batch, -1)``) yields a tensor."""
    if isinstance(value, ast.BinOp):
        return _yields_number(value.left, names) or _yields_number(value.right, names)
    if isinstance(value, ast.IfExp):
        return _yields_number(value.body, names) or _yields_number(value.orelse, names)
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in ("int", "abs")
    ):
        return any(_yields_number(arg, names) for arg in value.args)
    return _is_size(value, names)


def _is_size(node: ast.AST, names: set[str]) -> bool:
    """An expression that is the size of dimension 0, or may be."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Subscript) and _whole_shape(node.value):
        return _may_be_first(node.slice)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return node.func.id == "len"
        if isinstance(node.func, ast.Attribute) and node.func.attr in SIZES:
            return not node.args or _may_be_first(node.args[0])
    return False


def _may_be_first(index: ast.expr) -> bool:
    """A literal index other than 0 reads another dimension."""
    try:
        return bool(ast.literal_eval(index) == 0)
    except (ValueError, TypeError):
        return True
