"""Which operators a program runs and in which order, read from its syntax tree.

forward() is walked as Python would run it, layers of __init__ and helpers of the file put in their
places. Spelling does not count: nn.ReLU()(x), F.relu(x) and x.relu() are one operator. Nothing is
run or imported. Not covered: what depends on values (branches of an `if` all count), operators
reached through getattr."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from trainer.tasks.kinds import KINDS, LAYOUT

DEEPEST = 24
"""Levels of helpers in helpers that are followed."""
_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
}
_MODULES = {"math", "np", "numpy", "os", "random"}
"""Calls into these are numbers for Python, no operators."""


def operators(tree: ast.Module, entry: str) -> tuple[str, ...] | None:
    """The operators of a class (its forward) or function, in lower case; a loop is ``loop`` and its
    body once. None: there is no such entry."""
    walk = _OperatorWalk(tree)
    return tuple(walk.ops) if walk.enter(entry) else None


@dataclass
class _Class:
    layers: dict[str, ast.expr]
    """Attribute -> what __init__ makes it of."""
    methods: dict[str, ast.FunctionDef]


@dataclass
class _Scope:
    owner: _Class | None
    names: dict[str, list[ast.expr]] = field(default_factory=dict)
    """Local name -> the layers that it may stand for."""


class _OperatorWalk:
    """Lists operators in the order of execution; helpers are followed where they are called."""

    def __init__(self, tree: ast.Module) -> None:
        self.ops: list[str] = []
        self._functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self._classes = {n.name: _class_of(n) for n in tree.body if isinstance(n, ast.ClassDef)}
        self._depth = 0

    def enter(self, entry: str) -> bool:
        name = entry.split(".")[-1]
        if name in self._classes:
            return self._method(self._classes[name], "forward")
        if name in self._functions:
            self._function(self._functions[name], _Scope(None))
            return True
        return False

    def _method(self, owner: _Class, name: str) -> bool:
        if name in owner.methods:
            self._function(owner.methods[name], _Scope(owner))
        return name in owner.methods

    def _function(self, node: ast.FunctionDef, scope: _Scope) -> None:
        if self._depth < DEEPEST:
            self._depth += 1
            self._statements(node.body, scope)
            self._depth -= 1

    def _statements(self, body: Sequence[ast.stmt], scope: _Scope) -> None:
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: _Scope) -> None:
        match node:
            case ast.For() | ast.While():
                self._loop(node, scope)
            case ast.If():
                self._statements([*node.body, *node.orelse], scope)
            case ast.With():
                self._statements(node.body, scope)
            case ast.AugAssign():
                self._expression(node.value, scope)
                self._operator(node.op)
            case ast.Assign(value=value, targets=[ast.Name(id=name)]) if found := _layers(
                value, scope
            ):
                scope.names[name] = found
            case ast.Assign() | ast.AnnAssign() | ast.Return() | ast.Expr() if (
                node.value is not None
            ):
                self._expression(node.value, scope)

    def _loop(self, node: ast.For | ast.While, scope: _Scope) -> None:
        """Over layers: one after the other, as if written out. Over anything else: the body once,
        marked."""
        layers: list[ast.expr] = []
        if isinstance(node, ast.For):
            layers = _layers(node.iter, scope)
            self._expression(node.iter, scope)
            _bind_together(node, scope)
        if layers and isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            for layer in layers:
                scope.names[node.target.id] = [layer]
                self._statements(node.body, scope)
            return
        self.ops.append("loop")
        self._statements(node.body, scope)

    def _expression(self, node: ast.expr, scope: _Scope) -> None:
        match node:
            case ast.Call():
                self._call(node, scope)
            case ast.BinOp():
                if _is_number(node):
                    return
                self._expression(node.left, scope)
                self._expression(node.right, scope)
                self._operator(node.op)
            case ast.UnaryOp():
                self._expression(node.operand, scope)
                if isinstance(node.op, ast.USub) and not _is_number(node.operand):
                    self.ops.append("neg")
            case ast.Compare():
                for part in (node.left, *node.comparators):
                    self._expression(part, scope)
                self.ops.append("compare")
            case ast.ListComp() | ast.GeneratorExp():
                self.ops.append("loop")
                self._expression(node.elt, scope)
            case ast.Subscript():
                self._expression(node.value, scope)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._expression(child, scope)

    def _call(self, node: ast.Call, scope: _Scope) -> None:
        name, receiver = _callee(node.func)
        if receiver in _MODULES or name == "size":
            return
        if name in LAYOUT:
            self._receiver(node, scope)
            return
        self._arguments(node, scope)
        layers = _layers(node.func, scope)
        if layers:
            for layer in layers:
                self._layer(layer, scope)
        elif receiver == "self" and scope.owner and name in scope.owner.methods:
            self._method(scope.owner, name)
        elif isinstance(node.func, ast.Name) and name in self._functions:
            self._function(self._functions[name], _Scope(None))
        elif isinstance(node.func, ast.Call):  # nn.ReLU()(x)
            self._layer(node.func, scope)
        else:
            self._operation(name)

    def _receiver(self, node: ast.Call, scope: _Scope) -> None:
        """x of x.view(...), torch.reshape(x, ...): sizes beside it are numbers."""
        if isinstance(node.func, ast.Attribute) and _callee(node.func)[1] not in (
            "torch",
            "F",
            "nn",
        ):
            self._expression(node.func.value, scope)
        elif node.args:
            self._expression(node.args[0], scope)

    def _arguments(self, node: ast.Call, scope: _Scope) -> None:
        if isinstance(node.func, ast.Attribute) and not _layers(node.func, scope):
            self._expression(node.func.value, scope)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._expression(argument, scope)

    def _layer(self, made: ast.expr, scope: _Scope) -> None:
        """What calling an object does that this expression has made."""
        while isinstance(made, ast.Call) and _callee(made.func)[0] in (
            "eval",
            "train",
            "to",
            "double",
            "half",
        ):
            made = made.func.value if isinstance(made.func, ast.Attribute) else made
            if not isinstance(made, ast.Call):
                return
        if not isinstance(made, ast.Call):
            return
        name = _callee(made.func)[0]
        if name in ("sequential", "modulelist"):
            for part in _contents(made):
                self._layer(part, scope)
        elif (
            isinstance(made.func, ast.Name)
            and made.func.id in self._classes
            and self._depth < DEEPEST
        ):
            self._method(self._classes[made.func.id], "forward")
        elif name not in LAYOUT:
            self._operation(name)

    def _operator(self, operator: ast.operator) -> None:
        self.ops.append(_BINARY.get(type(operator), "mul"))

    def _operation(self, name: str) -> None:
        self.ops.append(name.removesuffix("_") if name.removesuffix("_") in KINDS else name)


def _class_of(node: ast.ClassDef) -> _Class:
    methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
    layers: dict[str, ast.expr] = {}
    for statement in ast.walk(methods["__init__"]) if "__init__" in methods else ():
        if isinstance(statement, ast.Assign):
            pairs = _assigned_attributes(statement)
            layers |= {
                a: made for a, made in pairs if isinstance(made, ast.Call) and not _is_value(made)
            }
    return _Class(layers=layers, methods=methods)


def _assigned_attributes(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Attributes and what they are set to: self.a = x, and self.a, self.b = x, y."""
    for target in node.targets:
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
        for left, value in pairs:
            if isinstance(left, ast.Attribute):
                yield left.attr, value


def _is_value(made: ast.Call) -> bool:
    """A parameter, buffer or number: to be read, not called."""
    name, receiver = _callee(made.func)
    return name in ("parameter", "buffer", "parameterlist") or receiver in ("torch", *_MODULES)


def _layers(node: ast.expr, scope: _Scope) -> list[ast.expr]:
    """The layers that an expression stands for: self.x, a local name, or one of a list of
    layers."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=attr) if (
            scope.owner and attr in scope.owner.layers
        ):
            made = scope.owner.layers[attr]
            inside = isinstance(made, ast.Call) and _callee(made.func)[0] == "modulelist"
            return list(_contents(made)) if inside and isinstance(made, ast.Call) else [made]
        case ast.Name(id=name):
            return scope.names.get(name, [])
        case ast.Subscript(value=value):
            return _layers(value, scope)[:1]
    return []


def _bind_together(node: ast.For, scope: _Scope) -> None:
    """for a, b in zip(self.first, self.second), and the second of enumerate()."""
    if not (isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Call)):
        return
    name, lists = _callee(node.iter.func)[0], list(node.iter.args)
    lists = [node.iter, *lists] if name == "enumerate" else lists
    for target, part in zip(node.target.elts, lists, strict=False):
        if isinstance(target, ast.Name) and (found := _layers(part, scope)):
            scope.names[target.id] = found[:1]


def _contents(made: ast.Call) -> Iterator[ast.expr]:
    """Of nn.Sequential(a, b), nn.Sequential(*[…]) and nn.ModuleList([…]); of a comprehension its
    element."""
    for argument in made.args:
        part = argument.value if isinstance(argument, ast.Starred) else argument
        match part:
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                yield from elements
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
                yield element
            case _:
                yield part


def _callee(node: ast.expr) -> tuple[str, str]:
    """(last part in lower case or a helper's own name, first part): ("relu", "torch")."""
    match node:
        case ast.Name(id=name):
            return (name if not name[:1].isupper() else name.lower()), ""
        case ast.Attribute(value=value, attr=attr):
            while isinstance(value, ast.Attribute):
                value = value.value
            first = value.id if isinstance(value, ast.Name) else ""
            return (attr if first == "self" else attr.lower()), first
    return "", ""


def _is_number(node: ast.expr) -> bool:
    """Arithmetic on literals and shapes is Python's."""
    match node:
        case ast.Constant():
            return True
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case ast.Call(func=func):
            name, receiver = _callee(func)
            return receiver in _MODULES or name in ("size", "len", "int", "float", "numel")
    return False
