"""Where the target and its function stand in the program: text, indentation, signature, and the
new ones.

`Place(graph)` reads the program of a captured graph; `Place.assemble` puts functions behind the
original, which is renamed and stays byte for byte. Not covered: what the functions say
(statements.py, guard.py)."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Collection
from typing import Any

from kernel_lsp import parsing
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Span
from kernel_lsp.rewrite.graph import Graph
from kernel_lsp.rewrite.outlining import NO_GRAD

UNIT = "\0"
"""Stands for one level of indentation in lines that are to be assembled."""


class TargetPlace:
    """The target and its function inside the program: text, indentation, signature."""

    def __init__(self, graph: Graph) -> None:
        self.program = re.sub(r"\r\n?", "\n", graph.origin.program)
        self.lines = self.program.split("\n")
        self.tree = parsing.parse(self.program)
        self.is_module = graph.origin.module is not None
        self.target = _find(self.tree, graph.origin.entry)
        name = graph.origin.function
        self.function = _method(self.target, name) if self.is_module else self.target
        self.eager, self.steps = (
            f"_{name.lstrip('_')}_{what}{self._heir()}" for what in ("eager", "steps")
        )
        self.name = name
        self.taken = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)} | {
            "self"
        }
        decorators = [ast.unparse(d) for d in getattr(self.function, "decorator_list", ())]
        if any(text not in NO_GRAD for text in decorators):
            raise RewriteError(f"{name} is decorated with @{decorators[0]}", "rewrite it by hand")
        self.decorators = decorators
        if re.search(rf"\b({self.eager}|{self.steps})\b", self.program):
            raise RewriteError(
                f"{graph.origin.entry} already has a {self.eager}", "it was rewritten before"
            )

    def _heir(self) -> str:
        """A part of the name for classes with a base of their own: both forwards may be rewritten,
        and ``self._forward_eager`` in the base's would call the heir's, which calls
        ``super().forward``."""
        plain = not self.is_module or all(
            ast.unparse(base) in ("nn.Module", "torch.nn.Module", "Module")
            for base in self.target.bases
        )
        return "" if plain else f"_{self.target.name.lower()}"

    @property
    def span(self) -> Span:
        """Where the target stands in the program, from its first decorator to its end."""
        first = min([self.target.lineno, *(d.lineno for d in self.target.decorator_list)])
        start = sum(len(line) + 1 for line in self.lines[: first - 1])
        start += len(self.lines[first - 1]) - len(self.lines[first - 1].lstrip())
        end = sum(len(line) + 1 for line in self.lines[: (self.target.end_lineno or 0)]) - 1
        return Span(start=start, end=end)

    @property
    def functional(self) -> str | None:
        """What the program calls torch.nn.functional, if it imports it at top level."""
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name == "torch.nn.functional" and alias.asname:
                        return alias.asname
            elif isinstance(node, ast.ImportFrom) and node.module == "torch.nn":
                for alias in node.names:
                    if alias.name == "functional":
                        return alias.asname or alias.name
        return None

    @property
    def arguments(self) -> ast.arguments:
        """The signature of the target's function."""
        return self.function.args

    @property
    def indent(self) -> str:
        """The indentation of the ``def`` line, relative to the target's own."""
        line = self.lines[self.function.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    @property
    def unit(self) -> str:
        """One level of indentation, as this file writes it."""
        line = self.lines[self.function.body[0].lineno - 1]
        inner = line[: len(line) - len(line.lstrip())]
        deeper = inner.startswith(self.indent) and len(inner) > len(self.indent)
        return inner[len(self.indent) :] if deeper else "    "

    @property
    def signature(self) -> str:
        """The text from ``def`` through the colon, as the person wrote it."""
        rest = iter([f"{line}\n" for line in self.lines[self.function.lineno - 1 :]])
        depth = 0
        for token in tokenize.generate_tokens(lambda: next(rest, "")):
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
                if token.string == ":" and depth == 0:
                    row, column = token.end
                    first = self.function.lineno - 1
                    header = [
                        *self.lines[first : first + row - 1],
                        self.lines[first + row - 1][:column],
                    ]
                    return "\n".join(header)[len(self.indent) :]
        raise RewriteError("the signature could not be read")

    def wrapper_call(self, wrapper: str, steps: str, requirements: Collection[str]) -> str:
        """The call of the wrapper, as ``wrapper(self, self._forward_steps, x)``: the steps take
        their arguments by position.

        ``requirements``: conditions that hold there; ``**kwargs`` must be known to be empty."""
        spec = self.arguments
        is_named = spec.kwarg is not None and f"not {spec.kwarg.arg}" not in requirements
        if spec.kwonlyargs or is_named or not self.is_module:
            raise RewriteError(
                f"{self.name} cannot be called by position on self", "leave out the wrapper"
            )
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)][1:]
        names += [f"*{spec.vararg.arg}"] if spec.vararg else []
        return f"{wrapper}({', '.join(['self', f'self.{steps}', *names])})"

    def eager_call(self) -> str:
        """The call of the original function with everything that this one was called with."""
        spec = self.arguments
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)][1 if self.is_module else 0 :]
        names += [f"*{spec.vararg.arg}"] if spec.vararg else []
        names += [f"{a.arg}={a.arg}" for a in spec.kwonlyargs]
        names += [f"**{spec.kwarg.arg}"] if spec.kwarg else []
        return f"{'self.' if self.is_module else ''}{self.eager}({', '.join(names)})"

    def assemble(self, functions: list[tuple[str, list[str]]]) -> str:
        """The target's new source: the eager function renamed, behind it the new ones, each a name
        and the lines of its body."""
        first = min([self.target.lineno, *(d.lineno for d in self.target.decorator_list)]) - 1
        lines = self.lines[first : self.target.end_lineno]
        at, end = self.function.lineno - 1 - first, (self.function.end_lineno or 0) - first
        pattern = rf"(\bdef\s+){re.escape(self.name)}\b"
        lines[at] = re.sub(pattern, rf"\g<1>{self.eager}", lines[at], count=1)
        pad, unit = self.indent, self.unit
        new: list[str] = []
        for name, body in functions:
            header = re.sub(pattern, rf"\g<1>{name}", pad + self.signature, count=1)
            inner = [f"{pad}{unit}{line}".replace(UNIT, unit) for line in body]
            gap = [""] if self.is_module else ["", ""]
            new += [*gap, *(f"{pad}@{text}" for text in self.decorators), header, *inner]
        lines[end:end] = new
        outer = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        return "\n".join(line.removeprefix(outer) for line in "\n".join(lines).split("\n"))


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
    found = [
        node for node in target.body if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    if len(found) != 1:
        raise RewriteError(
            f"{target.name} has no {name} of its own", "rewrite the class that defines it"
        )
    return found[0]
