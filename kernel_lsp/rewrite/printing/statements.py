"""The statements of a rewritten graph: one per step, with the person's own names, comments and
layers.

`Writer(graph, place).statements()` is the body of the fast path; `helper_source` a function around
constant nodes. Names are naming.py's, calls are calls.py's. Not covered: the guard in front
(forward.py)."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from kernel_lsp.errors import RewriteError
from kernel_lsp.rewrite.capture import read_conditions
from kernel_lsp.rewrite.capture.functions import PLAIN
from kernel_lsp.rewrite.capture.observing import module_path
from kernel_lsp.rewrite.capture.results import fields_of
from kernel_lsp.rewrite.capture.tracing import shape_of_call
from kernel_lsp.rewrite.graph import (
    Graph,
    ModuleCall,
    after_write,
    has_effect,
    is_random,
    is_write,
)
from kernel_lsp.rewrite.naming import Statements
from kernel_lsp.rewrite.printing import guard
from kernel_lsp.rewrite.printing.calls import ATOM, Printer
from kernel_lsp.rewrite.printing.place import TargetPlace

LINE_LENGTH = 100
INLINE_LENGTH = 60


class StatementWriter:
    """One statement per node, single-use helpers of the same statement inlined."""

    def __init__(self, graph: Graph, place: TargetPlace) -> None:
        self.graph = graph
        self.place = place
        self.nodes = graph.nodes
        tensors = [item.source for item in graph.inputs if item.node is not None]
        functional = place.functional or "F"
        self.printer = Printer(functional, f"{tensors[0]}.device" if tensors else None)
        self.statements_of = Statements(graph.origin.program, place.name, graph.origin.path)
        self.captured = graph.captured
        self.names: dict[fx.Node, str] = {}
        self.holders: dict[str, fx.Node] = {}
        self.pending: dict[fx.Node, tuple[str, int]] = {}
        self.read_by: dict[fx.Node, set[fx.Node]] = {}
        """Inlined node -> the named values its source mentions."""
        self.by_name = {node.name: node for node in self.nodes}
        self.left = {node: len(node.users) for node in graph.fx.nodes}
        """Readers that are not printed yet; at zero, the value's name is free again."""
        self.return_notes: list[str] = []
        self.untouched: set[str] = set()
        """Captured nodes that are printed exactly as the person's code would run them."""
        self.calls = self._module_calls()
        self._epochs = _epochs(graph)
        self._require_opaque_calls()
        for item in graph.inputs:
            if item.node is not None:
                self.names[item.node] = item.source
                self.holders[item.source] = item.node

    def statements(self) -> list[str]:
        """The lines of the function's body, the return last."""
        lines: list[str] = []
        for node in self.nodes:
            if node.target is not after_write:
                lines += self._statement(node)
        result = self._return()
        return [*lines, *self.return_notes, *result]

    def _statement(self, node: fx.Node) -> list[str]:
        call = self.calls.get(node.name)
        if call is not None and node.name != call.result:
            return []
        if call is not None:
            text, level = f"{read_conditions.self_path(call.path)}({self._argument_of(call)})", ATOM
        else:
            text, level = self._operation(node)
        for item in call.nodes if call is not None else (node.name,):
            for read in self.by_name[item].all_input_nodes:
                self.left[read] -= 1
        notes = [line for note in self.graph.notes.get(node.name, ()) for line in comment(note)]
        returned = list(node.users) == [self.graph.output]
        if (returned or not notes) and self._may_inline(node, text):
            self.return_notes += notes
            self.pending[node] = text, level
            self.read_by[node] = {n for a in node.all_input_nodes for n in self.read_by.get(a, {a})}
            return []
        return [*notes, f"{self._name(node)} = {text}" if _is_read(node) else text]

    def _operation(self, node: fx.Node) -> tuple[str, int]:
        self._mark_layer(node)
        written = self.printer.call(node, self._operand)
        if _same(node, self.graph) and (module_path(node) is None or not _is_modal(node)):
            self.untouched.add(node.name)
        return written

    def _argument_of(self, call: ModuleCall) -> str:
        inside = set(call.nodes)
        for name in call.nodes:
            for arg in self.by_name[name].all_input_nodes:
                if arg.name not in inside and arg not in self.graph.state:
                    return self._operand(arg, 0)
        raise RewriteError(f"{call.path} has lost its input")

    def _operand(self, node: fx.Node, level: int) -> str:
        """The source of a value, in parentheses when it binds less tightly than ``level``."""
        if node in self.graph.state:
            return read_conditions.self_path(self.graph.state[node])
        if node.target is after_write or (is_write(node) and node not in self.names):
            return self._operand(node.args[0], level)
        if node in self.graph.constants:
            return self._constant(self.graph.constants[node])
        if node in self.pending:
            text, own = self.pending[node]
            return f"({text})" if own < level else text
        return self.names[node]

    def _constant(self, tensor: torch.Tensor) -> str:
        if tensor.numel() > 64:
            raise RewriteError(
                f"a constant of {tensor.numel()} numbers in forward cannot be written out"
            )
        device = f", device={self.printer.device}" if self.printer.device else ""
        return f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype}{device})"

    def _may_inline(self, node: fx.Node, text: str) -> bool:
        users = list(node.users)
        if len(users) != 1 or has_effect(node) or is_random(node):
            return False
        if self._epochs and self._epochs[node] != self._epochs[users[0]]:
            return False  # what stands between them writes into a tensor that it may read
        if isinstance(self.graph.val(node), (tuple, list)):
            return True
        limit = LINE_LENGTH - 16 if users[0].op == "output" else INLINE_LENGTH
        # Its name says what it returns.
        launched = "generated" in node.meta and users[0].op == "output"
        if launched:
            return True
        if len(text) > limit or node.meta.get("name"):
            return False
        own = self.statements_of.key(node)
        if own is None:  # made by a rewrite
            return True
        if users[0].op == "output":
            return own[2] is None
        return own == self.statements_of.key(users[0]) or _is_getitem(node)

    def _name(self, node: fx.Node) -> str:
        wish = self.statements_of.wish(node, self.captured)
        name, number = wish, 1
        while not self._free(name):
            number += 1
            name = f"{wish}_{number}"
        self.names[node], self.holders[name] = name, node
        return name

    def _free(self, name: str) -> bool:
        """Unused, or held by a value that nothing below reads any more."""
        holder = self.holders.get(name)
        if holder is None:
            return name not in self.place.taken or name in self._locals()
        waiting = (reads for node, reads in self.read_by.items() if self.left[node])
        return self.left[holder] == 0 and not any(holder in reads for reads in waiting)

    def _locals(self) -> set[str]:
        stores = (n for n in ast.walk(self.place.function) if isinstance(n, ast.Name))
        return {n.id for n in stores if isinstance(n.ctx, ast.Store)}

    def _return(self) -> list[str]:
        """The lines that end the function: what is put into arguments is put there last."""
        leaves = [
            self._operand(value, 0)
            if isinstance(value, fx.Node)
            else read_conditions.literal(value)
            for value in self.graph.outputs
        ]
        origin = self.graph.origin
        if not origin.replaced:
            result = _structure(leaves, self.graph.output_spec, dict(origin.classes))
            return [f"return {result}"]
        count = self.graph.output_spec.num_leaves
        result = _structure(leaves[:count], self.graph.output_spec, dict(origin.classes))
        if result.isidentifier():
            return [*self._put(leaves[count:]), f"return {result}"]
        name = self._unused("result")
        return [f"{name} = {result}", *self._put(leaves[count:]), f"return {name}"]

    def _put(self, leaves: list[str]) -> list[str]:
        """Statements that put values into arguments: each is evaluated before the first is put
        there."""
        first, later = list[str](), list[str]()
        places = {one.source for one in self.graph.origin.replaced}
        for one in self.graph.origin.replaced:
            if one.spec is None:
                text = self.printer.value(one.constant, None)
            else:
                own, leaves = leaves[: one.spec.num_leaves], leaves[one.spec.num_leaves :]
                text = _container(pytree.tree_unflatten(list(map(_Source, own)), one.spec), {})
            if any(place in text for place in places):
                name = self._unused("kept")
                first.append(f"{name} = {text}")
                text = name
            holder, _, _ = one.source.rpartition("[")
            later.append(f"{holder}.append({text})" if one.is_append else f"{one.source} = {text}")
        return [*first, *later]

    def _unused(self, wish: str) -> str:
        """A local name of its own."""
        name, number = wish, 1
        while name in self.holders or name in self.place.taken:
            number += 1
            name = f"{wish}_{number}"
        self.place.taken.add(name)
        return name

    def _mark_layer(self, node: fx.Node) -> None:
        path = module_path(node)
        if path is not None and self.graph.origin.module is not None:
            layer = self.graph.origin.module.get_submodule(path)
            node.meta["layer"] = read_conditions.self_path(path), layer

    def _module_calls(self) -> dict[str, ModuleCall]:
        """Layers whose nodes are all still there, unchanged but for what flows in, and read by no
        other."""
        found: dict[str, ModuleCall] = {}
        for call in self.graph.origin.calls:
            nodes = [node for name in call.nodes if (node := self.by_name.get(name)) is not None]
            is_whole = len(nodes) == len(call.nodes)
            if is_whole and all(self._belongs(node, call, set(nodes)) for node in nodes):
                found.update(dict.fromkeys(call.nodes, call))
                self.untouched.update(call.nodes)
        return found

    def _require_opaque_calls(self) -> None:
        """Layers with hooks or computed weights are called as they are, or nothing is printed."""
        called = {call.path for call in self.calls.values()}
        if lost := sorted(set(self.graph.origin.opaque) - called):
            raise RewriteError(
                f"{lost[0]} has hooks or computed weights, and would no longer be called",
                "rewrite what is around it",
            )

    def _belongs(self, node: fx.Node, call: ModuleCall, inside: set[fx.Node]) -> bool:
        """The node is as captured; only the call's result has notes, and readers outside: a cast
        that autocast makes within one layer may be read by another since."""
        if node.name == call.result:
            return _same(node, self.graph, but=call.argument)
        is_private = inside.issuperset(node.users) and node.name not in self.graph.notes
        return is_private and _same(node, self.graph, but=call.argument)


def _is_read(node: fx.Node) -> bool:
    """Whether a name for the value is needed: not for what was written into a tensor."""
    return any(user.target is not after_write for user in node.users)


def _epochs(graph: Graph) -> dict[fx.Node, int]:
    """Node -> how many writes come before it, where there are any. What is put into arguments is
    a write behind everything else."""
    if not graph.leaves_state:
        return {}
    found, count = {}, 0
    for node in graph.fx.nodes:
        found[node] = count + (node.op == "output" and bool(graph.origin.replaced))
        count += is_write(node)
    return found


def _same(node: fx.Node, graph: Graph, but: str | None = None) -> bool:
    """The node is as captured; the value called ``but`` may have been replaced by another."""
    was = graph.origin.nodes.get(node.name)
    if was is None or was[0] is not node.target:
        return False
    args, kwargs = shape_of_call(node)
    return all(
        now == then or then == f"%{but}"
        for now, then in zip((*args, *kwargs.values()), (*was[1], *was[2].values()), strict=True)
    )


def _is_modal(node: fx.Node) -> bool:
    packet = getattr(node.target, "overloadpacket", None)
    return packet in guard.MODAL


def _is_getitem(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def helper_source(
    graph: Graph, nodes: Sequence[fx.Node], name: str, *, decorators: Sequence[str] = ()
) -> str:
    """A function of ``device`` that computes the last of ``nodes``, which read nothing but each
    other."""
    printer, names = Printer("F", "device"), dict[fx.Node, str]()
    lines = [*decorators, f"def {name}(device):"]
    for node in nodes:
        text, _ = printer.call(node, lambda item, level: names[item])
        stem = graph.variable(node)
        taken = set(names.values())
        names[node] = next(
            n for n in (stem, *(f"{stem}_{i}" for i in range(2, 999))) if n not in taken
        )
        lines.append(f"    return {text}" if node is nodes[-1] else f"    {names[node]} = {text}")
    return "\n".join(lines)


class _Source(str):
    """An expression, as opposed to a text that is a value."""


def _structure(leaves: list[str], spec: Any, classes: Mapping[type, str]) -> str:
    """The return value as source; containers are rebuilt from their pytree. ``classes``: how the
    target's file calls those of objects."""
    value = pytree.tree_unflatten(list(map(_Source, leaves)), spec)
    text = _container(value, classes)
    return text[1:-1] if type(value) is tuple and len(value) > 1 else text


def _container(value: Any, classes: Mapping[type, str]) -> str:
    if isinstance(value, _Source):
        return value
    known = classes.get(type(value))
    if known is not None:
        return f"{known}({_constructor_arguments(value, classes)})"
    if type(value) is dict and all(isinstance(key, str) for key in value):
        items = [f"{json.dumps(key)}: {_container(item, classes)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if type(value) is list:
        return f"[{', '.join(_container(item, classes) for item in value)}]"
    if type(value) is tuple:
        items = [_container(item, classes) for item in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if type(value) in PLAIN:
        return read_conditions.literal(value)
    raise RewriteError(
        f"forward returns a {type(value).__name__}", "return a tensor, tuple, list or dict"
    )


def _constructor_arguments(value: Any, classes: Mapping[type, str]) -> str:
    if type(value) is OrderedDict:
        return _container(dict(value), classes)
    given = _given_fields(value).items()
    return ", ".join(f"{name}={_container(item, classes)}" for name, item in given)


def _given_fields(value: Any) -> dict[str, Any]:
    """What the constructor is given, without what it would take anyway."""
    usual = (
        {one.name: one.default for one in dataclasses.fields(value)}
        if not isinstance(value, tuple)
        else {}
    )
    return {
        name: item
        for name, item in fields_of(value).items()
        if not _is_default(item, usual.get(name, dataclasses.MISSING))
    }


def _is_default(item: Any, default: Any) -> bool:
    return type(item) in PLAIN and type(item) is type(default) and item == default


def comment(note: str) -> list[str]:
    """The note in lines of a comment."""
    lines, line = [], ""
    for word in note.split():
        if line and len(line) + len(word) > 88:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return [f"# {text}" for text in (*lines, line)]
