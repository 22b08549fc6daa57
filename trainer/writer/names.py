"""Names of a task by number, so that a writer copies one token where it would have to spell.

    names = Names.of(program.source, graph)     a1, a2: attributes; x1, x2: inputs; v1, v2: locals
    short = names.shorten(reply)                a reply of the engine, as it is learned
    reply = names.restore(short)                what a model wrote, with the program's own names

What is computed is n1, n2 as the question's graph calls it (rows.py), so that a line of a kernel
is a line of the graph in other words. Tensors of a launcher and of its kernels are called as what
``forward`` gives it. A short reply has its ``forward`` first: what is computed where is decided
before it is written. In 11 of 21 replies that failed, the first writer had called an attribute by
the name of another task. Not covered: names inside kernels that the graph does not have."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from kernel_lsp import parsing
from kernel_lsp.records import GraphView, Operation, OperationRole
from trainer.writer.short_form import UnreadableReply

_NUMBERED = re.compile(r"[anvxt][0-9]+")
_VALUE = re.compile(r"n[0-9]+(_[0-9]+)?")
_KERNEL, _LAUNCHER = re.compile(r"k[0-9]+"), re.compile(r"f[0-9]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """Own name -> short name of one task."""

    attributes: Mapping[str, str]
    inputs: Mapping[str, str]
    locals: Mapping[str, str]
    values: Mapping[str, str]
    """Of the graph: a parameter is called as the program calls it, ``a1[0].weight``."""

    @classmethod
    def of(cls, source: str, entry: str, graph: GraphView) -> Names:
        """Raises UnreadableReply for a program that has such names itself, or no forward."""
        tree = parsing.parse(source)
        target = next(
            (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == entry), None
        )
        forward = _method(target, "forward")
        if target is None or forward is None:
            raise UnreadableReply(f"{entry} has no plain forward")
        _refuse_numbered(tree)
        attributes = _numbered("a", _assigned_attributes(target))
        inputs = _numbered("x", [one.arg for one in forward.args.args[1:]])
        own = [name for name in _assigned_names(forward) if name not in inputs]
        calls = [one for one in graph.operations if one.role is OperationRole.CALL]
        others = [one for one in graph.operations if one.role is not OperationRole.CALL]
        numbers = {one.name: number for number, one in enumerate([*calls, *others], 1)}
        values = {
            one.name: _value_name(one, numbers[one.name], attributes, inputs)
            for one in graph.operations
        }
        return cls(attributes=attributes, inputs=inputs, locals=_numbered("v", own), values=values)

    def program(self, source: str) -> str:
        """The program of a question under its short names."""
        tree = parsing.parse(source)
        for node in tree.body:
            for method in ast.walk(node):
                if isinstance(method, ast.FunctionDef) and method.name == "forward":
                    _rename_names(method, {**self.inputs, **self.locals})
            _rename_attributes(node, self.attributes)
        return ast.unparse(tree)

    def graph(self, graph: GraphView) -> GraphView:
        """The graph with its operations under their plain names."""
        return replace(
            graph,
            operations=tuple(replace(one, name=self.values[one.name]) for one in graph.operations),
        )

    def shorten(self, reply: str) -> str:
        """Raises UnreadableReply."""
        head, body = _parsed(reply)
        for function in body:
            _Split().visit(function)
        forward = _forward(body)
        known = {**self.inputs, **self.locals}
        for name in _assigned_names(forward):
            if not _VALUE.fullmatch(name):
                known.setdefault(name, f"v{len(known) - len(self.inputs) + 1}")
        _rename_names(forward, known)
        _rename_attributes(forward, self.attributes)
        for launcher in launchers(body):
            _number_tensors(launcher, body)
        for pattern in (_KERNEL, _LAUNCHER):  # launchers are equal once their kernels are
            body = _merged(body, pattern)
        kept = _reached(body)
        _name_tensors(forward, kept)
        return _joined(head, _from_the_top(forward, kept))

    def message(self, text: str) -> str:
        """What was said about the program, with the short names of its attributes."""
        return re.sub(r"\w+", lambda found: self.attributes.get(found[0], found[0]), text)

    def restore(self, short: str) -> str:
        """Raises UnreadableReply."""
        head, body = _parsed(short)
        forward = _forward(body)
        _rename_names(forward, {new: old for old, new in self.inputs.items()})
        _rename_attributes(forward, {new: old for old, new in self.attributes.items()})
        return _joined(head, [*(one for one in body if one is not forward), forward])


def _value_name(
    operation: Operation, number: int, attributes: Mapping[str, str], inputs: Mapping[str, str]
) -> str:
    if operation.role is OperationRole.INPUT:
        return inputs.get(operation.name, f"n{number}")
    if operation.role is OperationRole.CALL:
        return f"n{number}"
    rest = operation.name.partition("_")[2]
    for own in sorted(attributes, key=len, reverse=True):
        if rest == own or rest.startswith(f"{own}_"):
            return attributes[own] + _path(rest[len(own) + 1 :])
    return f"n{number}"


def _path(rest: str) -> str:
    """``0_weight`` -> ``[0].weight``; ``running_mean`` is one name."""
    found = re.match(r"(?:[0-9]+_)*", rest + "_" if rest.isdigit() else rest)
    numbers = found.group() if found else ""
    word = rest[len(numbers) :]
    return "".join(f"[{n}]" for n in numbers.split("_") if n) + (f".{word}" if word else "")


def _numbered(letter: str, names: Iterable[str]) -> dict[str, str]:
    return {name: f"{letter}{n}" for n, name in enumerate(dict.fromkeys(names), 1)}


def _refuse_numbered(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", "")
        if isinstance(name, str) and _NUMBERED.fullmatch(name):
            raise UnreadableReply(f"the program calls something {name} itself")


def _method(target: ast.ClassDef | None, name: str) -> ast.FunctionDef | None:
    body = target.body if target else []
    return next((n for n in body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def _assigned_attributes(target: ast.ClassDef) -> list[str]:
    return [
        node.attr
        for node in ast.walk(target)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ]


def _assigned_names(function: ast.FunctionDef) -> list[str]:
    """In the order of the text."""
    found = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    return [node.id for node in found]


def _rename_names(function: ast.FunctionDef, names: Mapping[str, str]) -> None:
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = names.get(node.arg, node.arg)


def _rename_attributes(tree: ast.AST, names: Mapping[str, str]) -> None:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            node.attr = names.get(node.attr, node.attr)


def _from_the_top(forward: ast.FunctionDef, body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """``forward``, then launchers and kernels in the order in which they are used, numbered so."""
    functions = {one.name: one for one in body if isinstance(one, ast.FunctionDef)}
    ordered: dict[str, ast.FunctionDef] = {"forward": forward}
    waiting = [forward]
    while waiting:
        for name in _names_of(waiting.pop(0)):
            if name in functions and name not in ordered:
                ordered[name] = functions[name]
                waiting.append(functions[name])
    numbered: dict[str, str] = {}
    for name in ordered:
        for letter, pattern in (("k", _KERNEL), ("f", _LAUNCHER)):
            if pattern.fullmatch(name):
                count = sum(new.startswith(letter) for new in numbered.values())
                numbered[name] = f"{letter}{count + 1}"
    for function in ordered.values():
        function.name = numbered.get(function.name, function.name)
        _rename_all(function, lambda name: numbered.get(name, name))
    others = [one for one in body if not isinstance(one, ast.FunctionDef)]
    return [*others, *ordered.values()]


def _names_of(tree: ast.AST) -> list[str]:
    """In the order of the text."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return [one.id for one in sorted(found, key=lambda one: (one.lineno, one.col_offset))]


def launchers(body: Sequence[ast.stmt]) -> list[ast.FunctionDef]:
    """Those of a reply."""
    functions = [one for one in body if isinstance(one, ast.FunctionDef)]
    return [one for one in functions if _LAUNCHER.fullmatch(one.name)]


def started_by(launcher: ast.FunctionDef, body: Sequence[ast.stmt]) -> list[ast.FunctionDef]:
    """The launcher and its kernels."""
    used = _names_of(launcher)
    kernels = [
        one
        for one in body
        if isinstance(one, ast.FunctionDef) and one.name in used and _KERNEL.fullmatch(one.name)
    ]
    return [launcher, *kernels]


def _number_tensors(launcher: ast.FunctionDef, body: Sequence[ast.stmt]) -> None:
    """Names of a launcher's arguments, in it and in the kernels that it starts: t1, t2, …"""
    names = [one.arg for one in launcher.args.args]
    _rename_stems(launcher, body, {name: f"t{number}" for number, name in enumerate(names, 1)})


def _name_tensors(forward: ast.FunctionDef, body: Sequence[ast.stmt]) -> None:
    """A launcher's arguments are called as what its first call is given; where that is no name,
    or something else has it, it stays t1, t2, …"""
    calls: dict[str, ast.Call] = {}
    for node in ast.walk(forward):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            calls.setdefault(node.func.id, node)
    for launcher in launchers(body):
        if launcher.name in calls:
            group = started_by(launcher, body)
            taken = {name for function in group for name in _names_in(function)}
            given = zip(launcher.args.args, calls[launcher.name].args, strict=False)
            stems: dict[str, str] = {}
            for argument, value in given:
                name = _plain_name(value)
                if name is not None and name not in taken and name not in stems.values():
                    stems[argument.arg] = name
            _rename_stems(launcher, body, stems)


def _names_in(function: ast.FunctionDef) -> set[str]:
    return {
        node.id if isinstance(node, ast.Name) else node.arg
        for node in ast.walk(function)
        if isinstance(node, ast.Name | ast.arg)
    }


def _plain_name(value: ast.expr) -> str | None:
    """``self.a1[0].weight`` -> ``a1_0_weight``; None for what is computed."""
    text = ast.unparse(value).removeprefix("self.")
    name = re.sub(r"[\[.]", "_", text.replace("]", ""))
    return name if re.fullmatch(r"[anvx][0-9]+\w*", name) else None


def _rename_stems(
    launcher: ast.FunctionDef, body: Sequence[ast.stmt], stems: Mapping[str, str]
) -> None:
    """Names and what begins with them: ``x_ptr``, ``x_tile``."""
    longest = sorted(stems, key=len, reverse=True)
    for function in started_by(launcher, body):
        computed = set() if function is launcher else _computed(function, stems)

        def renamed(name: str, computed: Set[str] = computed) -> str:
            for stem in () if name in computed else longest:
                if name == stem or name.startswith(f"{stem}_"):
                    return stems[stem] + name[len(stem) :]
            return name

        _rename_all(function, renamed)


def _computed(kernel: ast.FunctionDef, stems: Iterable[str]) -> set[str]:
    """Names of tensors by which a kernel calls something that it has not loaded."""
    values: dict[str, str] = {}
    for node in ast.walk(kernel):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            values[name] = values.get(name, "") + ast.unparse(node.value)
    return {name for name in stems if name in values and f"{name}_ptr" not in values[name]}


def _rename_all(function: ast.FunctionDef, renamed: Callable[[str], str]) -> None:
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            node.id = renamed(node.id)
        elif isinstance(node, ast.arg):
            node.arg = renamed(node.arg)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):  # k1[grid](…)
            for keyword in node.keywords:
                if keyword.arg:
                    keyword.arg = renamed(keyword.arg)


def _merged(body: Sequence[ast.stmt], pattern: re.Pattern[str]) -> list[ast.stmt]:
    """Of functions that are equal but for their name the first alone."""
    first: dict[str, str] = {}
    names: dict[str, str] = {}
    kept = []
    for node in body:
        if isinstance(node, ast.FunctionDef) and pattern.fullmatch(node.name):
            own = node.name
            text = _without_own_names(node)
            names[own] = first.setdefault(text, own)
            if names[own] != own:
                continue
        kept.append(node)
    for node in kept:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name):
                inner.id = names.get(inner.id, inner.id)
    return kept


class _Split(ast.NodeTransformer):
    """``a, b = (f(a), g(b))`` in two statements: how many fit into a line depends on names that
    a reply does not have."""

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        target, value = node.targets[0], node.value
        if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)):
            return node
        pairs = list(zip(target.elts, value.elts, strict=True))
        for place, (one, _) in enumerate(pairs):
            later = {name for _, text in pairs[place + 1 :] for name in _names_of(text)}
            if not isinstance(one, ast.Name) or one.id in later:
                return node
        return [
            ast.copy_location(ast.Assign(targets=[one], value=text), node) for one, text in pairs
        ]


def _without_own_names(function: ast.FunctionDef) -> str:
    """The function's tree with its values numbered as they come."""
    plain = copy.deepcopy(function)
    plain.name = "_"
    numbers: dict[str, str] = {}

    def renamed(name: str) -> str:
        return numbers.setdefault(name, f"n{len(numbers)}") if _VALUE.fullmatch(name) else name

    _rename_all(plain, renamed)
    return ast.dump(plain)


def _reached(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Without functions that nothing calls any more: those of the engine's guard."""
    functions = {one.name: one for one in body if isinstance(one, ast.FunctionDef)}
    found, waiting = set[str](), ["forward"]
    while waiting:
        name = waiting.pop()
        if name in functions and name not in found:
            found.add(name)
            waiting += [n.id for n in ast.walk(functions[name]) if isinstance(n, ast.Name)]
    return [one for one in body if not isinstance(one, ast.FunctionDef) or one.name in found]


def _parsed(reply: str) -> tuple[str, list[ast.stmt]]:
    """(the first line where it is a comment, statements)."""
    first = reply.partition("\n")[0]
    try:
        body = parsing.parse(reply).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableReply(f"the reply does not parse: {error}") from None
    return (first if first.startswith("#") else ""), body


def _forward(body: Sequence[ast.stmt]) -> ast.FunctionDef:
    found = [one for one in body if isinstance(one, ast.FunctionDef) and one.name == "forward"]
    if len(found) != 1:
        raise UnreadableReply(f"the reply has {len(found)} functions called forward")
    return found[0]


def _joined(head: str, body: Sequence[ast.stmt]) -> str:
    lines = [head] if head else []
    return "\n".join([*lines, *map(ast.unparse, body)]) + "\n"
