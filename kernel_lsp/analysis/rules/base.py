"""What a rule is and what it is given: one target with the functions that run when it is called,
or (script rules) a whole file with the statements that its loops run at every step.

A rule is silent when in doubt. It sees syntax only: no shapes, no dtypes, no other file.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.launches import LaunchExpression, Tuning, launches_of, tuning_of
from kernel_lsp.analysis.scripts import Script
from kernel_lsp.analysis.source import FunctionNode, ParsedSource, walk
from kernel_lsp.analysis.targets import FileStructure, TargetDraft, own_forward
from kernel_lsp.records import Finding, TargetKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    id: str
    name: str
    """Kebab-case; with the id it names the documentation page."""
    summary: str
    """One line for lists of rules."""
    severity: str
    """``hint`` (could be faster), ``warning`` (can be wrong), ``error`` (does not compile)."""
    kinds: frozenset[TargetKind]
    check: Callable[[RuleSite], Iterator[Hit]]
    unnecessary: bool = False
    """What it marks does nothing: all of it, and not only a part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptRule:
    """A rule about a program and not about a target: what it finds costs time in its steps."""

    id: str
    name: str
    summary: str
    severity: str
    check: Callable[[Script], Iterator[Hit]]


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule's observation before it becomes a Finding."""

    node: ast.expr | ast.stmt | ast.arg | ast.keyword
    message: str
    data: dict[str, Any]
    fix: Fix | None = None


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of the text that mends what was found and that nothing needs to judge: never for
    speed."""

    title: str
    edits: tuple[tuple[ast.expr, str], ...]


def hit(
    node: ast.expr | ast.stmt | ast.arg | ast.keyword,
    message: str,
    fix: Fix | None = None,
    **data: Any,
) -> Hit:
    """A `Hit` at the node; ``data`` is what a reader of JSON gets beside the message."""
    return Hit(node, message, data, fix)


class RuleSite:
    """One target, as rules see it. Everything is found once and shared by all rules."""

    def __init__(self, file: ParsedSource, known: FileStructure, found: TargetDraft) -> None:
        self.file = file
        self.known = known
        self.found = found

    @cached_property
    def functions(self) -> tuple[FunctionNode, ...]:
        """The functions that run, entry first: forward and the methods it calls, the function, or
        the kernel and its helpers."""
        node = self.found.node
        if isinstance(node, ast.ClassDef):
            return _reachable(own_forward(node), _methods(node), _self_call)
        jit: dict[str, FunctionNode] = {f.name: f for f in self.known.jit_functions.values()}
        return _reachable(
            node,
            jit if self.found.kind is TargetKind.TRITON_KERNEL else {},
            lambda call: _name(call.func),
        )

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of every function, bodies only."""
        return tuple(n for f in self.functions for statement in f.body for n in walk(statement))

    @cached_property
    def kernels(self) -> tuple[KernelFacts, ...]:
        """Facts of a Triton kernel and of its helpers, the kernel first."""
        return tuple(KernelFacts(self.file, f) for f in self.functions)

    @cached_property
    def launches(self) -> list[LaunchExpression]:
        """Launches of a Triton kernel in functions of its file."""
        return launches_of(self.known, self.found)

    @cached_property
    def tuning(self) -> Tuning | None:
        """The target's autotune decorator; None: it has none that can be read."""
        return tuning_of(self.file, self.found)

    @cached_property
    def calls(self) -> tuple[tuple[ast.Call, str | None], ...]:
        """Calls with the imported name that they resolve to."""
        return tuple((n, self.file.dotted(n.func)) for n in self.nodes if isinstance(n, ast.Call))

    @cached_property
    def called_names(self) -> frozenset[str]:
        """Last names of everything called: lets a rule return at once where it has nothing to look
        for."""
        functions = (call.func for call, _ in self.calls)
        return frozenset(
            f.attr if isinstance(f, ast.Attribute) else f.id
            for f in functions
            if isinstance(f, ast.Attribute | ast.Name)
        )

    @cached_property
    def submodules(self) -> dict[str, tuple[ast.Call, str]]:
        """``self.name`` -> (constructor call, resolved class) for plain assignments in __init__."""
        node = self.found.node
        init = _methods(node).get("__init__") if isinstance(node, ast.ClassDef) else None
        found: dict[str, tuple[ast.Call, str]] = {}
        for statement in walk(init) if init else ():
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
                made = self.file.dotted(statement.value.func)
                for target in statement.targets:
                    if made and (name := self_attribute(target)):
                        found[name] = (statement.value, made)
        return found

    def submodule_class(self, call: ast.Call) -> str | None:
        """``torch.nn.Linear`` for ``self.proj(x)`` when __init__ made it so."""
        name = self_attribute(call.func)
        made = self.submodules.get(name) if name else None
        return made[1] if made else None


def make_finding(
    file: ParsedSource, rule: Rule | ScriptRule, found: Hit, target: str | None
) -> Finding:
    """``data`` gains line and column, from 1 in characters, for reports that have no text at
    hand."""
    span = file.span(found.node)
    last = found.node.end_lineno or found.node.lineno
    place = {
        "line": found.node.lineno,
        "column": span.start - file.line_start(found.node.lineno) + 1,
        "end_line": last,
        "end_column": span.end - file.line_start(last) + 1,
    }
    return Finding(
        rule=rule.id,
        name=rule.name,
        target=target,
        span=span,
        message=found.message,
        severity=rule.severity,
        unnecessary=isinstance(rule, Rule) and rule.unnecessary,
        data=found.data | place | ({"fix": _describe_fix(file, found.fix)} if found.fix else {}),
    )


def _describe_fix(file: ParsedSource, fix: Fix) -> dict[str, Any]:
    """Title and edits by offset, in the order of the text."""
    spans = [(file.span(node), new) for node, new in fix.edits]
    edits = [{"start": span.start, "end": span.end, "new": new} for span, new in spans]
    return {"title": fix.title, "edits": sorted(edits, key=lambda edit: edit["start"])}


def self_attribute(node: ast.expr) -> str | None:
    """``name`` of ``self.name``."""
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ):
        return node.attr
    return None


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """The argument at a position or of a name; None when absent or hidden behind a star."""
    if any(isinstance(a, ast.Starred) for a in call.args[: position + 1]):
        return None
    if position < len(call.args):
        return call.args[position]
    return next((k.value for k in call.keywords if k.arg == name), None)


def _methods(node: ast.ClassDef) -> dict[str, FunctionNode]:
    return {s.name: s for s in node.body if isinstance(s, FunctionNode)}


def _self_call(call: ast.Call) -> str | None:
    return self_attribute(call.func)


def _name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _reachable(
    entry: FunctionNode | None,
    others: dict[str, FunctionNode],
    callee: Callable[[ast.Call], str | None],
) -> tuple[FunctionNode, ...]:
    order: list[FunctionNode] = []
    queue = [entry] if entry is not None else []
    while queue:
        current = queue.pop()
        if current in order:
            continue
        order.append(current)
        for node in walk(current) if others else ():
            if isinstance(node, ast.Call) and (name := callee(node)) in others:
                queue.append(others[name])  # noqa: PERF401 (two narrowings in one comprehension read worse)
    return tuple(order)
