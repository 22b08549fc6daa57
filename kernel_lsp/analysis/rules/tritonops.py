"""What the Triton rules share: constexpr parameters, launches, and values that are known in the
file."""

from __future__ import annotations

import ast
import re

from kernel_lsp.analysis.kernels import is_constexpr, language_name
from kernel_lsp.analysis.names import bound_names
from kernel_lsp.analysis.rules.base import RuleSite
from kernel_lsp.analysis.source import FunctionNode, ParsedSource, integer, module_level, walk
from kernel_lsp.analysis.targets import parameters

# Accelerators on which a program is one core instead of a group of threads, named in code or
# comments.
_NO_GPU = re.compile(r"(?:\b|_)(?:npu|ascend|mlu|kunlun\w*|xpu\d)(?:\b|_)", re.IGNORECASE)


def may_run_on_gpu(site: RuleSite) -> bool:
    """Whether the target may run on a GPU. False for a file that says it was written for another
    kind of accelerator."""
    return not _NO_GPU.search(site.file.text)


def constexprs(site: RuleSite, function: FunctionNode) -> set[str]:
    """The names of the function's parameters that are constexpr."""
    return {p.arg for p in parameters(function) if is_constexpr(site.file, p)}


def runtime_parameters(site: RuleSite, function: FunctionNode) -> set[str]:
    """The names of the function's parameters that are passed at run time."""
    return {p.arg for p in parameters(function)} - constexprs(site, function)


def known_values(site: RuleSite, function: FunctionNode, node: ast.expr) -> set[int]:
    """Integers that the expression is seen to take in this file; empty when nothing is known."""
    value = integer(node)
    if value is not None:
        return {value}
    if not isinstance(node, ast.Name):
        return set()
    if node.id in {p.arg for p in parameters(function)}:
        return _passed_values(site, function, node.id) if function is site.found.node else set()
    is_local = any(node.id in bound_names(statement) for statement in function.body)
    return _assigned_values(site.file, function.body if is_local else site.file.tree.body, node.id)


def _passed_values(site: RuleSite, kernel: FunctionNode, name: str) -> set[int]:
    found: set[int] = set()
    for launch in site.launches:
        given = launch.arguments.get(name)
        given = None if given is None else launch.resolve(given)
        if isinstance(given, ast.Name) and not launch.is_local(given.id):
            found |= _assigned_values(site.file, site.file.tree.body, given.id)
        elif (value := integer(given)) is not None:
            found.add(value)
    for decorator in kernel.decorator_list:
        found |= _configured_values(decorator, name)
    return found


def _configured_values(decorator: ast.expr, name: str) -> set[int]:
    """Values in ``triton.Config({name: value})`` of an autotune decorator."""
    return {
        value
        for node in walk(decorator)
        if isinstance(node, ast.Dict)
        for key, given in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
        and key.value == name
        and (value := integer(given)) is not None
    }


def _assigned_values(file: ParsedSource, body: list[ast.stmt], name: str) -> set[int]:
    """``N = 96``, ``N: tl.constexpr = 96`` or ``N = tl.constexpr(96)``; empty if one is unclear."""
    found: set[int] = set()
    for statement in module_level(body):
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if not any(isinstance(t, ast.Name) and t.id == name for t in targets):
            continue
        value = statement.value
        if (
            isinstance(value, ast.Call)
            and language_name(file, value.func) == "constexpr"
            and value.args
        ):
            value = value.args[0]
        number = integer(value)
        if number is None or isinstance(statement, ast.AugAssign):
            return set()
        found.add(number)
    return found
