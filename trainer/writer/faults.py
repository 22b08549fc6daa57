"""What is wrong with a reply by reading it alone, before anything runs: of several drafts the one with
the fewest faults is the answer.

    answer = chosen(row, [likeliest, *samples], helpers)

Found are replies that do not parse, names that nothing defines, attributes that the program does not
have, calls with too many or too few arguments, and kernels that never compute what ``forward`` takes
from them. Of 14 replies to unseen compositions six were wrong, three of them so. Lessons leave a result
without its name where the operation has one of its own in kernels (a product, a scan), so only
pointwise results must be named: 369 of 375 are. Not covered: whether a value is right (the gate)."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

from kernel_lsp import parsing
from trainer.tasks.kinds import KINDS
from trainer.writer.helpers import Helpers, complete
from trainer.writer.names import launchers, started_by
from trainer.writer.rows import WriterRow
from trainer.writer.short_form import UnreadableReply

_MODULES = {"torch", "F", "nn", "tl", "triton"}
_OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion"}
Defined = dict[str, ast.FunctionDef]


def chosen(row: WriterRow, drafts: Sequence[str], helpers: Helpers) -> str:
    """The first of the drafts with the fewest faults."""
    return min(drafts, key=lambda draft: len(faults(row, draft, helpers)))


def faults(row: WriterRow, reply: str, helpers: Helpers) -> list[str]:
    """Each in words; a reply that cannot be read has so many that any other is better."""
    try:
        row.assemble(reply, helpers)
    except UnreadableReply as error:
        return [str(error)] * 100
    body = parsing.parse(complete(reply, helpers)).body
    functions = {one.name: one for one in body if isinstance(one, ast.FunctionDef)}
    known = {*_MODULES, *functions, *vars(builtins), *_imported(body)}
    return [
        *(fault for one in functions.values() for fault in _undefined(one, known)),
        *(fault for one in functions.values() for fault in _miscalled(one, functions)),
        *_strange_attributes(row, functions["forward"]),
        *_forgotten(row, functions),
    ]


def _imported(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)


def _undefined(function: ast.FunctionDef, known: set[str]) -> Iterator[str]:
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    own = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    own |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    used = dict.fromkeys(node.id for node in names if isinstance(node.ctx, ast.Load))
    yield from (f"{function.name} has no {name}" for name in used if name not in own | known)


def _miscalled(function: ast.FunctionDef, functions: Defined) -> Iterator[str]:
    """``f1(…)`` and ``k1[grid](…)``; calls with ``*sizes`` are passed over."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        named = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        called = functions.get(named.id) if isinstance(named, ast.Name) else None
        given = [one.arg for one in node.keywords if one.arg not in _OPTIONS]
        if called is None or any(isinstance(one, ast.Starred) for one in node.args):
            continue
        wanted, placed = [one.arg for one in called.args.args], len(node.args)
        if placed > len(wanted) or sorted(wanted[placed:]) != sorted(map(str, given)):
            yield f"{function.name} calls {called.name} with other arguments than it has"


def _strange_attributes(row: WriterRow, forward: ast.FunctionDef) -> Iterator[str]:
    known = {*row.names.attributes.values(), "training"}
    attributes = [node for node in ast.walk(forward) if isinstance(node, ast.Attribute)]
    for node in attributes:
        own = isinstance(node.value, ast.Name) and node.value.id == "self"
        if own and node.attr not in known:
            yield f"the program has no {node.attr}"


def _forgotten(row: WriterRow, functions: Defined) -> Iterator[str]:
    """Pointwise results of launchers that neither they nor their kernels name."""
    kinds = {row.names.values[one.name]: KINDS.get(one.op) for one in row.graph.operations}
    body = list(functions.values())
    results = dict(_results(row, functions["forward"]))
    for launcher in launchers(body):
        result = results.get(launcher.name)
        if result is None or kinds.get(result) != "pointwise":
            continue
        group = started_by(launcher, body)
        names = {n.id for one in group for n in ast.walk(one) if isinstance(n, ast.Name)}
        if result not in names:
            yield f"{launcher.name} does not compute {result}"


def _results(row: WriterRow, forward: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """(launcher, the graph's name of what it returns)."""
    outputs = [row.names.values[one.name] for one in row.graph.operations if one.output]
    for node in forward.body:
        value = node.value if isinstance(node, ast.Assign | ast.Return) else None
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name)):
            continue
        if isinstance(node, ast.Return) and len(outputs) == 1:
            yield value.func.id, outputs[0]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield value.func.id, node.targets[0].id
