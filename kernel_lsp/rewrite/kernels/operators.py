"""Launchers that are ``forward`` or ``backward`` of a ``torch.autograd.Function``: how a program
calls them.

Standard library only. A forward is judged by ``Op.apply``, so with gradients where its inputs have
some; a backward by the gradients of ``Op.apply`` for one upstream gradient, the output itself:
other values for every trial at no cost, which ones would not be. Not covered: double backward, and
Functions in containers."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from kernel_lsp.errors import RewriteError
from kernel_lsp.parsing import FunctionNode

FUNCTIONS = ("torch.autograd.Function", "autograd.Function", "Function")


@dataclass(frozen=True, slots=True)
class AutogradOperator:
    """One autograd Function, one of whose two halves is the launcher."""

    name: str
    forward: FunctionNode
    launcher: FunctionNode
    parameters: tuple[ast.arg, ...]
    """Of ``apply``: the forward's without its context."""

    @property
    def is_backward(self) -> bool:
        """Whether the launcher is the Function's backward."""
        return self.launcher is not self.forward


def operator_of(tree: ast.Module, launcher: str) -> AutogradOperator | None:
    """The autograd Function that the launcher is a half of; None: of none. Raises RewriteError
    where it is one that cannot be called from its text."""
    name, _, method = launcher.rpartition(".")
    found = _class(tree, name) if method in ("forward", "backward") else None
    if found is None or not any(ast.unparse(base) in FUNCTIONS for base in found.bases):
        return None
    methods = {n.name: n for n in found.body if isinstance(n, ast.FunctionDef)}
    forward = methods.get("forward")
    if forward is None or not _is_static(forward) or not _is_static(methods[method]):
        raise RewriteError(f"{name} has no static forward of its own", "write it as @staticmethod")
    given = forward.args
    if given.vararg or given.kwonlyargs or given.kwarg:
        raise RewriteError(
            f"{name}.forward takes starred or keyword arguments, which {name}.apply is not given "
            f"by name",
            "name them one by one",
        )
    own = _positional(forward)
    return AutogradOperator(
        name, forward, methods[method], tuple(own if "setup_context" in methods else own[1:])
    )


def _is_static(method: ast.FunctionDef) -> bool:
    return any(ast.unparse(d) == "staticmethod" for d in method.decorator_list)


def applying(operator: AutogradOperator, entry: str, copied: list[str]) -> str:
    """A function of this name with the arguments of ``apply``; ``copied`` are handed on as copies,
    and returned with the result. A backward that writes into anything gets copies of
    everything."""
    head = (
        f"def {entry}({_signature(operator)}):\n    "
        f'"""{operator.name}.{operator.launcher.name}"""\n'
    )
    passed = ", ".join(a.arg for a in operator.parameters)
    if operator.is_backward:
        return head + _gradients(operator.name, passed, bool(copied))
    copies = "".join(
        f"    {name} = {name} if {name} is None else {name}.clone()\n" for name in copied
    )
    result = ", ".join(["result", *copied])
    return f"{head}{copies}    result = {operator.name}.apply({passed})\n    return {result}\n"


def said_launcher(function: FunctionNode) -> str | None:
    """The launcher that `applying` has written into its function."""
    return ast.get_docstring(function)


def _gradients(name: str, passed: str, copied: bool) -> str:
    copies = "[one.clone() if isinstance(one, torch.Tensor) else one for one in given]"
    handed = copies if copied else "given"
    upstream = "one.detach().clone()" if copied else "one.detach()"
    return (
        "    import torch\n\n"
        f"    given = [{passed}]\n"
        "    for at, one in enumerate(given):\n"
        "        if isinstance(one, torch.Tensor) and one.is_floating_point():\n"
        "            given[at] = one.detach().requires_grad_()\n"
        "    leaves = [one for one in given if isinstance(one, torch.Tensor) and "
        "one.requires_grad]\n"
        "    with torch.enable_grad():\n"
        f"        result = {name}.apply(*{handed})\n"
        "    made = result if isinstance(result, tuple) else (result,)\n"
        "    made = [one for one in made if isinstance(one, torch.Tensor) and one.requires_grad]\n"
        f"    upstream = [{upstream} for one in made]\n"
        "    found = torch.autograd.grad(made, leaves, upstream, allow_unused=True)\n"
        "    return tuple(one if one is None else one.detach() for one in found)\n"
    )


def _signature(operator: AutogradOperator) -> str:
    """Names and defaults; annotations may name what the program lacks."""
    defaults = operator.forward.args.defaults
    first = len(operator.parameters) - len(defaults)
    return ", ".join(
        a.arg if at < first else f"{a.arg}={ast.unparse(defaults[at - first])}"
        for at, a in enumerate(operator.parameters)
    )


def _positional(function: FunctionNode) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args]


def _class(tree: ast.Module, qualname: str) -> ast.ClassDef | None:
    """The last definition of this name counts, as in Python."""
    body: list[ast.stmt] = tree.body
    found: ast.ClassDef | None = None
    for part in qualname.split("."):
        named = [n for n in body if isinstance(n, ast.ClassDef) and n.name == part]
        if not named:
            return None
        found, body = named[-1], named[-1].body
    return found
