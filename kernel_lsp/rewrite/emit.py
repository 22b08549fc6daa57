"""A rewritten graph back to source a colleague would have written.

`emit(graph, kind, generic_batch) -> Emission`. The class stays as it is; its ``forward`` becomes
``_forward_eager``, byte for byte, and a new ``forward`` checks the guard (guard.py), falls back to it, or
runs one statement per step with the person's own names (naming.py, printing.py). With a wrapper
(`Graph.wrap`) the statements become ``_forward_steps``, which ``forward`` hands to the wrapper.
A function becomes ``_<name>_eager`` beside a new ``<name>``.
"""

from __future__ import annotations

import ast
import json
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from kernel_lsp import parsing
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Span
from kernel_lsp.rewrite import guard
from kernel_lsp.rewrite.capture import shape_of_call
from kernel_lsp.rewrite.generated import Generated, Wrapper
from kernel_lsp.rewrite.graph import Graph, ModuleCall, has_effect, is_random
from kernel_lsp.rewrite.naming import Statements
from kernel_lsp.rewrite.observing import module_path
from kernel_lsp.rewrite.printing import ATOM, Printer

LINE_LENGTH = 100
INLINE_LENGTH = 60
NO_GRAD = ("torch.no_grad()", "torch.inference_mode()")


@dataclass(frozen=True, kw_only=True)
class Emission:
    span: Span
    """The target in the program."""
    target: str
    """Its complete new source, dedented."""
    imports: tuple[str, ...]
    definitions: str
    body: str
    """The statements of the fast path alone: equal bodies mean equal computations."""


def emit(graph: Graph, generic_batch: bool) -> Emission:
    """Raises RewriteError when the target's source has a form that cannot be kept."""
    place = _Place(graph)
    writer = _Writer(graph, place)
    body = writer.statements()
    replaced = [node for node in _pristine(graph).nodes if node.name not in writer.untouched]
    checks = guard.conditions(graph, generic_batch, replaced)
    if graph.wrapper is None:
        new = place.assemble([(place.name, [*_guard_lines(checks, place, graph), *body])])
    else:
        new = place.assemble(_wrapped(graph, place, checks, body, generic_batch))
    kernels: list[Generated | Wrapper] = [*graph.generated]
    if graph.wrapper is not None:
        kernels.append(graph.wrapper)
    return Emission(
        span=place.span,
        target=new,
        imports=_imports(place, "\n".join([*checks, *body]), kernels),
        definitions=_definitions(kernels),
        body="\n".join([*body, *(repr(kernel.numbers) for kernel in graph.generated)]),
    )


def _wrapped(
    graph: Graph, place: _Place, checks: list[str], body: list[str], generic_batch: bool
) -> list[tuple[str, list[str]]]:
    """The steps as a method of their own, with the conditions on layers and weights; in front of them the
    call of the wrapper, with the conditions on inputs. A graph without a rewrite needs no such method."""
    assert graph.wrapper is not None
    outer = guard.conditions(graph, generic_batch, [])
    inner = [text for text in checks if text not in outer]
    note = [f"# {line}" for line in _wrap(graph.wrapper.note)]
    steps = place.eager if graph.is_pristine else place.steps
    call = f"return {place.wrapper_call(graph.wrapper.name, steps)}"
    methods = [(place.name, [*_guard_lines(outer, place, graph), *note, call])]
    if steps != place.eager:
        methods.insert(0, (steps, [*_refusal(inner, place), *body]))
    return methods


def _definitions(kernels: Sequence[Generated | Wrapper]) -> str:
    """The source of all kernels; a helper that several of them bring along is written once."""
    blocks = [block for kernel in kernels for block in kernel.definitions.strip("\n").split("\n\n\n")]
    return "\n\n\n".join(dict.fromkeys(block.strip("\n") for block in blocks))


def _pristine(graph: Graph) -> Graph:
    assert graph.origin.pristine is not None
    return graph.origin.pristine


# --- where the function stands -----------------------------------------------------------


class _Place:
    """The target and its function inside the program: text, indentation, signature."""

    def __init__(self, graph: Graph) -> None:
        self.program = re.sub(r"\r\n?", "\n", graph.origin.program)
        self.lines = self.program.split("\n")
        self.tree = parsing.parse(self.program)
        self.is_module = graph.origin.module is not None
        self.target = _find(self.tree, graph.origin.entry)
        name = "forward" if self.is_module else self.target.name
        self.function = _method(self.target, name) if self.is_module else self.target
        self.eager, self.steps = (f"_{name}_{what}{self._heir()}" for what in ("eager", "steps"))
        self.name = name
        self.taken = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)} | {"self"}
        decorators = [ast.unparse(d) for d in getattr(self.function, "decorator_list", ())]
        if any(text not in NO_GRAD for text in decorators):
            raise RewriteError(f"{name} is decorated with @{decorators[0]}", "rewrite it by hand")
        self.decorators = decorators
        if re.search(rf"\b({self.eager}|{self.steps})\b", self.program):
            raise RewriteError(f"{graph.origin.entry} already has a {self.eager}", "it was rewritten before")

    def _heir(self) -> str:
        """A part of the name for classes with a base of their own: both forwards may be rewritten, and
        ``self._forward_eager`` in the base's would call the heir's, which calls ``super().forward``."""
        plain = not self.is_module or all(
            ast.unparse(base) in ("nn.Module", "torch.nn.Module", "Module") for base in self.target.bases
        )
        return "" if plain else f"_{self.target.name.lower()}"

    @property
    def span(self) -> Span:
        first = min([self.target.lineno, *(d.lineno for d in self.target.decorator_list)])
        start = sum(len(line) + 1 for line in self.lines[: first - 1])
        start += len(self.lines[first - 1]) - len(self.lines[first - 1].lstrip())
        end = sum(len(line) + 1 for line in self.lines[: (self.target.end_lineno or 0)]) - 1
        return Span(start=start, end=end)

    @property
    def arguments(self) -> ast.arguments:
        return self.function.args

    @property
    def indent(self) -> str:
        """Of the ``def`` line, relative to the target's own."""
        line = self.lines[self.function.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    @property
    def unit(self) -> str:
        """One more level, as this file does it."""
        line = self.lines[self.function.body[0].lineno - 1]
        inner = line[: len(line) - len(line.lstrip())]
        deeper = inner.startswith(self.indent) and len(inner) > len(self.indent)
        return inner[len(self.indent) :] if deeper else "    "

    @property
    def signature(self) -> str:
        """From ``def`` through the colon, as the person wrote it."""
        rest = iter([f"{line}\n" for line in self.lines[self.function.lineno - 1 :]])
        depth = 0
        for token in tokenize.generate_tokens(lambda: next(rest, "")):
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
                if token.string == ":" and depth == 0:
                    row, column = token.end
                    first = self.function.lineno - 1
                    header = [*self.lines[first : first + row - 1], self.lines[first + row - 1][:column]]
                    return "\n".join(header)[len(self.indent) :]
        raise RewriteError("the signature could not be read")

    def wrapper_call(self, wrapper: str, steps: str) -> str:
        """``wrapper(self, self._forward_steps, x)``: the steps take their arguments by position."""
        spec = self.arguments
        if spec.kwonlyargs or not self.is_module:
            raise RewriteError(f"{self.name} cannot be called by position on self", "leave out the wrapper")
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)][1:]
        return f"{wrapper}({', '.join(['self', f'self.{steps}', *names])})"

    def eager_call(self) -> str:
        spec = self.arguments
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)][1 if self.is_module else 0 :]
        names += [f"{a.arg}={a.arg}" for a in spec.kwonlyargs]
        return f"{'self.' if self.is_module else ''}{self.eager}({', '.join(names)})"

    def assemble(self, functions: list[tuple[str, list[str]]]) -> str:
        """The target's new source: the eager function renamed, behind it the new ones, each a name and
        the lines of its body."""
        first = min([self.target.lineno, *(d.lineno for d in self.target.decorator_list)]) - 1
        lines = self.lines[first : self.target.end_lineno]
        at, end = self.function.lineno - 1 - first, (self.function.end_lineno or 0) - first
        pattern = rf"(\bdef\s+){re.escape(self.name)}\b"
        lines[at] = re.sub(pattern, rf"\g<1>{self.eager}", lines[at], count=1)
        pad, unit = self.indent, self.unit
        new: list[str] = []
        for name, body in functions:
            header = re.sub(pattern, rf"\g<1>{name}", pad + self.signature, count=1)
            inner = [f"{pad}{unit}{line}".replace(_UNIT, unit) for line in body]
            gap = [""] if self.is_module else ["", ""]
            new += [*gap, *(f"{pad}@{text}" for text in self.decorators), header, *inner]
        lines[end:end] = new
        outer = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        return "\n".join(line.removeprefix(outer) for line in "\n".join(lines).split("\n"))


_UNIT = "\0"


def _find(tree: ast.AST, entry: str) -> Any:
    node: Any = tree
    for part in entry.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef)
        named = [n for n in ast.walk(node) if isinstance(n, kinds) and n.name == part]
        if not named:
            raise RewriteError(f"{entry} is not in the program")
        node = named[-1]
    return node


def _method(target: ast.ClassDef, name: str) -> Any:
    found = [node for node in target.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if len(found) != 1:
        raise RewriteError(f"{target.name} has no {name} of its own", "rewrite the class that defines it")
    return found[0]


def _guard_lines(checks: list[str], place: _Place, graph: Graph) -> list[str]:
    if not checks:
        return []
    shapes = "; ".join(
        f"{i.source}: {str(i.value.dtype).removeprefix('torch.')} {tuple(i.value.shape)}"
        for i in graph.inputs
        if i.node is not None
    )
    head = [f"# Verified on {graph.device} for {shapes}." if shapes else f"# Verified on {graph.device}."]
    head.append("# Anything that the reasoning below does not cover takes the original path.")
    return [*head, *_refusal(checks, place)]


def _refusal(checks: list[str], place: _Place) -> list[str]:
    if not checks:
        return []
    one = f"if not ({' and '.join(checks)}):"
    if len(one) + 8 <= LINE_LENGTH:
        test = [one]
    else:
        rest = [
            f"{_UNIT}{line}"
            for index, text in enumerate(checks)
            for line in _folded(f"{'and ' if index else ''}{text}")
        ]
        test = ["if not (", *rest, "):"]
    return [*test, f"{_UNIT}return {place.eager_call()}"]


def _folded(check: str) -> list[str]:
    """A long condition on several lines, broken where it is an alternative, a comparison or a list."""
    lines = [check]
    while len(lines[-1]) > LINE_LENGTH - 12:
        text = lines[-1]
        spots = [m.start() for m in re.finditer(r" or | == \(|, (?=[\w('])", text)]
        spot = max((at for at in spots if 8 < at <= LINE_LENGTH - 14), default=None)
        if spot is None:
            break
        spot += text[spot] == ","
        lines[-1:] = [text[:spot], f"{_UNIT}{text[spot:].lstrip()}"]
    return lines


def _imports(place: _Place, text: str, kernels: Sequence[Generated | Wrapper]) -> tuple[str, ...]:
    found = [line for kernel in kernels for line in kernel.imports]
    if guard.mentions(text, "torch"):
        found.append("import torch")
    functional = functional_alias(place.tree)
    if functional is None and re.search(r"\bF\.", text):
        found.append("import torch.nn.functional as F")
    return tuple(dict.fromkeys(found))


def functional_alias(tree: ast.Module) -> str | None:
    """What the program calls torch.nn.functional, if it imports it at top level."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "torch.nn.functional" and alias.asname:
                    return alias.asname
        elif isinstance(node, ast.ImportFrom) and node.module == "torch.nn":
            for alias in node.names:
                if alias.name == "functional":
                    return alias.asname or alias.name
    return None


# --- statements --------------------------------------------------------------------------


class _Writer:
    """One statement per node, single-use helpers of the same statement inlined."""

    def __init__(self, graph: Graph, place: _Place) -> None:
        self.graph = graph
        self.place = place
        self.nodes = graph.nodes
        tensors = [item.source for item in graph.inputs if item.node is not None]
        functional = functional_alias(place.tree) or "F"
        self.printer = Printer(functional, f"{tensors[0]}.device" if tensors else None)
        self.statements_of = Statements(graph.origin.program, place.name)
        self.captured = _pristine(graph).nodes
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
        for item in graph.inputs:
            if item.node is not None:
                self.names[item.node] = item.source
                self.holders[item.source] = item.node

    def statements(self) -> list[str]:
        lines: list[str] = []
        for node in self.nodes:
            lines += self._statement(node)
        result = self._return()
        return [*lines, *self.return_notes, result]

    def _statement(self, node: fx.Node) -> list[str]:
        call = self.calls.get(node.name)
        if call is not None and node.name != call.result:
            return []
        if call is not None:
            text, level = f"{guard.self_path(call.path)}({self._argument_of(call)})", ATOM
        else:
            self._mark_layer(node)
            text, level = self.printer.call(node, self._operand)
            if _same(node, self.graph) and (module_path(node) is None or not _is_modal(node)):
                self.untouched.add(node.name)
        for item in call.nodes if call is not None else (node.name,):
            for read in self.by_name[item].all_input_nodes:
                self.left[read] -= 1
        notes = [f"# {line}" for note in self.graph.notes.get(node.name, ()) for line in _wrap(note)]
        returned = list(node.users) == [self.graph.output]
        if (returned or not notes) and self._may_inline(node, text):
            self.return_notes += notes
            self.pending[node] = text, level
            self.read_by[node] = {n for a in node.all_input_nodes for n in self.read_by.get(a, {a})}
            return []
        if not node.users:
            return [*notes, text]
        return [*notes, f"{self._name(node)} = {text}"]

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
            return guard.self_path(self.graph.state[node])
        if node in self.graph.constants:
            return self._constant(self.graph.constants[node])
        if node in self.pending:
            text, own = self.pending[node]
            return f"({text})" if own < level else text
        return self.names[node]

    def _constant(self, tensor: torch.Tensor) -> str:
        if tensor.numel() > 64:
            raise RewriteError(f"a constant of {tensor.numel()} numbers in forward cannot be written out")
        device = f", device={self.printer.device}" if self.printer.device else ""
        return f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype}{device})"

    def _may_inline(self, node: fx.Node, text: str) -> bool:
        users = list(node.users)
        if len(users) != 1 or has_effect(node) or is_random(node):
            return False
        if isinstance(self.graph.val(node), (tuple, list)):
            return True
        limit = LINE_LENGTH - 16 if users[0].op == "output" else INLINE_LENGTH
        launched = "generated" in node.meta and users[0].op == "output"  # its name says what it returns
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

    def _return(self) -> str:
        leaves = [
            self._operand(value, 0) if isinstance(value, fx.Node) else guard.literal(value)
            for value in self.graph.outputs
        ]
        return f"return {_structure(leaves, self.graph.output_spec)}"

    def _mark_layer(self, node: fx.Node) -> None:
        path = module_path(node)
        if path is not None and self.graph.origin.module is not None:
            layer = self.graph.origin.module.get_submodule(path)
            node.meta["layer"] = guard.self_path(path), layer

    def _module_calls(self) -> dict[str, ModuleCall]:
        """Layers whose nodes are all still there, unchanged but for what flows in."""
        found: dict[str, ModuleCall] = {}
        for call in self.graph.origin.calls:
            nodes = [self.by_name.get(name) for name in call.nodes]
            if all(n is not None and _same(n, self.graph, but=call.argument) for n in nodes) and not any(
                n.name in self.graph.notes and n.name != call.result for n in nodes if n is not None
            ):
                found.update(dict.fromkeys(call.nodes, call))
                self.untouched.update(call.nodes)
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
    """A function of ``device`` that computes the last of ``nodes``, which read nothing but each other."""
    printer, names = Printer("F", "device"), dict[fx.Node, str]()
    lines = [*decorators, f"def {name}(device):"]
    for node in nodes:
        text, _ = printer.call(node, lambda item, level: names[item])
        stem = graph.variable(node)
        taken = set(names.values())
        names[node] = next(n for n in (stem, *(f"{stem}_{i}" for i in range(2, 999))) if n not in taken)
        lines.append(f"    return {text}" if node is nodes[-1] else f"    {names[node]} = {text}")
    return "\n".join(lines)


def _structure(leaves: list[str], spec: Any) -> str:
    """The return value as source; containers are rebuilt from their pytree."""
    value = pytree.tree_unflatten(leaves, spec)
    text = _container(value)
    return text[1:-1] if isinstance(value, tuple) and len(value) > 1 else text


def _container(value: Any) -> str:
    if isinstance(value, str):
        return value
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return "{" + ", ".join(f"{json.dumps(key)}: {_container(item)}" for key, item in value.items()) + "}"
    if type(value) is list:
        return f"[{', '.join(map(_container, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_container, value))}{',' if len(value) == 1 else ''})"
    raise RewriteError(f"forward returns a {type(value).__name__}", "return a tensor, tuple, list or dict")


def _wrap(note: str) -> list[str]:
    lines, line = [], ""
    for word in note.split():
        if line and len(line) + len(word) > 88:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return [*lines, line]
