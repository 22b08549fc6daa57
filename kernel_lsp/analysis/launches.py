"""What a kernel's launches and tuning decorators in the same file say about its arguments.

Silent (None, empty) about launches through wrappers, starred arguments and configurations that are
computed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernel_lsp.analysis.kernels import names_in
from kernel_lsp.analysis.source import FunctionNode, ParsedSource, integer, module_level, walk
from kernel_lsp.analysis.targets import FileStructure, TargetDraft, launches, parameters


@dataclass(frozen=True)
class LaunchExpression:
    """``kernel[grid](...)`` inside a function of the file."""

    call: ast.Call
    launcher: FunctionNode
    grid: ast.expr
    arguments: dict[str, ast.expr]
    """Kernel parameter or launch option -> what is passed; what a star hides is not in it."""

    @cached_property
    def _locals(self) -> dict[str, list[ast.expr | None]]:
        return _bindings(self.launcher)

    def resolve(self, node: ast.expr) -> ast.expr:
        """The expression behind a local of the launcher that is bound once; else the node
        itself."""
        for _ in range(8):
            if not isinstance(node, ast.Name):
                return node
            bound = self._locals.get(node.id, [])
            if len(bound) != 1 or bound[0] is None:
                return node
            node = bound[0]
        return node

    def is_local(self, name: str) -> bool:
        """A parameter of the launcher or a name that it binds."""
        return name in self._locals

    def is_untouched(self, parameter: str) -> bool:
        """A parameter of the launcher that nothing is assigned to."""
        return self._locals.get(parameter) == [None]

    def grid_axes(self) -> list[ast.expr] | None:
        """Elements of the grid's tuple, through a name and a lambda; None when it is something
        else."""
        node = self.resolve(self.grid)
        if isinstance(node, ast.Lambda):
            node = node.body
        return list(node.elts) if isinstance(node, ast.Tuple | ast.List) else None


@dataclass(frozen=True, slots=True)
class Config:
    """One ``triton.Config(...)`` that is written out."""

    node: ast.Call
    values: dict[str, ast.expr]
    options: dict[str, ast.expr]

    def number(self, name: str) -> int | None:
        """The whole number that the configuration gives a constant or an option; None: it gives
        none, or no literal."""
        return integer(self.values.get(name, self.options.get(name)))


@dataclass(frozen=True, slots=True)
class Tuning:
    """An autotune decorator: any call with ``configs`` and ``key``, whoever made it."""

    node: ast.Call
    arguments: dict[str, ast.expr]
    configs: tuple[Config, ...] | None
    """None when they are not a list of written-out configurations."""

    def names(self, argument: str) -> dict[str, ast.expr] | None:
        """String literals of ``key``, ``reset_to_zero`` … with their places; None unless all are
        literals."""
        given = self.arguments.get(argument)
        if not isinstance(given, ast.List | ast.Tuple):
            return None
        found: dict[str, ast.expr] = {}
        for element in given.elts:
            if isinstance(element, ast.Constant) and isinstance(element.value, str):
                found[element.value] = element
        return found if len(found) == len(given.elts) else None

    @property
    def may_restore(self) -> bool:
        """Whether something may run before each measurement that undoes what the kernel changed."""
        has_star = any(k.arg is None for k in self.node.keywords)
        if has_star or self.arguments.keys() & {"pre_hook", "restore_value", "reset_to_zero"}:
            return True
        configs = self.arguments["configs"]
        in_configs = (k.arg == "pre_hook" for k in walk(configs) if isinstance(k, ast.keyword))
        is_written = self.configs is not None or isinstance(configs, ast.ListComp)
        return not is_written or any(in_configs)

    @property
    def measures(self) -> bool:
        """Whether there is more than one configuration: with one, nothing is run twice."""
        return self.configs is None or len(self.configs) > 1


def launches_of(known: FileStructure, target: TargetDraft) -> list[LaunchExpression]:
    """All launches of a Triton kernel by functions of its own file; [] of other targets."""
    names = set(target.launchers)
    kernel = target.node
    if not isinstance(kernel, FunctionNode):
        return []
    order = [p.arg for p in parameters(kernel)]
    found: list[LaunchExpression] = []
    for qualname, node in known.definitions:
        if qualname in names and isinstance(node, FunctionNode):
            found += [
                _launch(c, node, order) for c in launches(node) if _is_call_of(c, kernel.name)
            ]
    return found


def shared_tensors(launches: Sequence[LaunchExpression]) -> dict[str, set[str]]:
    """Kernel parameter -> others that some launch passes the same variable."""
    found: dict[str, set[str]] = {}
    for launch in launches:
        names = {p: v.id for p, v in launch.arguments.items() if isinstance(v, ast.Name)}
        for parameter, name in names.items():
            others = {p for p, other in names.items() if other == name and p != parameter}
            found.setdefault(parameter, set()).update(others)
    return found


def tuning_of(file: ParsedSource, target: TargetDraft) -> Tuning | None:
    """The autotune decorator of the target."""
    for decorator in target.node.decorator_list:
        if isinstance(decorator, ast.Call):
            given: dict[str, ast.expr] = {k.arg: k.value for k in decorator.keywords if k.arg}
            given |= dict(zip(("configs", "key"), decorator.args, strict=False))
            if {"configs", "key"} <= given.keys():
                return Tuning(decorator, given, _configs(file, given["configs"]))
    return None


def _is_call_of(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Subscript) and (
        isinstance(call.func.value, ast.Name) and call.func.value.id == name
    )


def _launch(call: ast.Call, launcher: FunctionNode, order: list[str]) -> LaunchExpression:
    given: dict[str, ast.expr] = {}
    for position, value in enumerate(call.args):
        if isinstance(value, ast.Starred) or position >= len(order):
            break
        given[order[position]] = value
    given |= {k.arg: k.value for k in call.keywords if k.arg}
    assert isinstance(call.func, ast.Subscript)
    return LaunchExpression(call, launcher, call.func.slice, given)


def _bindings(launcher: FunctionNode) -> dict[str, list[ast.expr | None]]:
    """Local -> what is assigned to it; None for a parameter, a part of a tuple, a loop variable."""
    found: dict[str, list[ast.expr | None]] = {p.arg: [None] for p in parameters(launcher)}
    for node in module_level(launcher.body):
        for name, value in _bound(node):
            found.setdefault(name, []).append(value)
    return found


def _bound(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Tuple(elts=values)) if len(
            parts
        ) == len(values):
            pairs = zip(parts, values, strict=True)
            yield from ((part.id, value) for part, value in pairs if isinstance(part, ast.Name))
        case ast.Assign(targets=[ast.Tuple(elts=parts) | ast.List(elts=parts)], value=value) if (
            sizes := _sizes(value, parts)
        ):
            yield from sizes
        case _:
            yield from ((name, None) for name in _unknown_names(node))


def _unknown_names(node: ast.stmt) -> Iterator[str]:
    """Names that a statement sets to something that is not seen."""
    targets: list[ast.expr] = []
    match node:
        case ast.AugAssign(target=ast.Name(id=name)) | ast.FunctionDef(name=name):
            yield name
        case ast.Assign(targets=[*targets]):
            pass
        case ast.For(target=target):
            targets = [target]
        case ast.With(items=items):
            targets = [item.optional_vars for item in items if item.optional_vars]
    for target in targets:
        yield from names_in(target)


def _sizes(value: ast.expr, parts: list[ast.expr]) -> list[tuple[str, ast.expr | None]]:
    """``rows, columns = x.shape`` as if each were ``x.shape[0]`` …; what stands behind a star
    counts from the end, and the star itself holds no size. Empty: the value is no shape."""
    match value:
        case ast.Attribute(attr="shape"):
            shape: ast.expr = value
        case ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[], keywords=[]):
            shape = ast.copy_location(ast.Attribute(tensor, "shape", ast.Load()), value)
        case _:
            return []
    stars = [at for at, part in enumerate(parts) if isinstance(part, ast.Starred)]
    first = stars[0] if stars else len(parts)
    found: list[tuple[str, ast.expr | None]] = []
    for at, part in enumerate(parts):
        if isinstance(part, ast.Name):
            index = _number(at if at < first else at - len(parts), value)
            size = ast.Subscript(value=shape, slice=index, ctx=ast.Load())
            found.append((part.id, ast.copy_location(size, value)))
        else:
            found += [(name, None) for name in names_in(part)]
    return found


def _number(number: int, at: ast.expr) -> ast.expr:
    """As the parser would write it: -1 is an operator and a one."""
    positive = ast.copy_location(ast.Constant(abs(number)), at)
    return positive if number >= 0 else ast.copy_location(ast.UnaryOp(ast.USub(), positive), at)


def _configs(file: ParsedSource, node: ast.expr) -> tuple[Config, ...] | None:
    if isinstance(node, ast.Name):
        bound = [
            s.value
            for s in module_level(file.tree.body)
            if isinstance(s, ast.Assign)
            for t in s.targets
            if isinstance(t, ast.Name) and t.id == node.id
        ]
        if len(bound) != 1:
            return None
        node = bound[0]
    if not isinstance(node, ast.List | ast.Tuple):
        return None
    found = [_config(file, element) for element in node.elts]
    written = tuple(c for c in found if c is not None)
    return written if len(written) == len(found) else None


def _config(file: ParsedSource, node: ast.expr) -> Config | None:
    if not isinstance(node, ast.Call) or not (file.dotted(node.func) or "").endswith("Config"):
        return None
    given = {k.arg: k.value for k in node.keywords if k.arg}
    values = node.args[0] if node.args else given.pop("kwargs", None)
    if (
        not isinstance(values, ast.Dict)
        or len(node.args) > 1
        or any(k.arg is None for k in node.keywords)
    ):
        return None
    pairs = {
        key.value: value
        for key, value in zip(values.keys, values.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }
    return Config(node, pairs, given) if len(pairs) == len(values.keys) else None
