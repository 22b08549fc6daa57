"""Text to a parsed file: the syntax tree, positions as string offsets, and what names mean.

Covers every text an editor can hold: broken syntax, null bytes, lone surrogates, a byte order
mark, any line ending, nesting too deep for the parser. All of these become a ParseProblem.
Does not decide what is a target and knows no rule.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeAlias

from kernel_lsp import parsing
from kernel_lsp.parsing import FunctionNode as FunctionNode
from kernel_lsp.records import ParseProblem, Span

DefinitionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
BOM = "\ufeff"

# What a file means by these names when it takes them from somewhere with `import *`.
CONVENTIONS = {
    "torch": "torch",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
    "triton": "triton",
    "tl": "triton.language",
}

COMPILERS = frozenset({"torch.compile", "torch.jit.script", "torch.jit.trace"})
"""They fuse what a file gives to them."""

_NAME = re.compile(r"(?:async[\s\\]+)?(?:def|class)[\s\\]+(\w+)")
_LINE_END = re.compile(r"\r\n|\r|\n")


class ParsedSource:
    """One parsed text. Immutable by convention; the tree must not be edited."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.text = text
        self.tree = tree

    @cached_property
    def _line_starts(self) -> list[int]:
        # Only what Python's tokenizer calls a line: U+2028, form feeds and vertical tabs are not.
        base = len(BOM) if self.text.startswith(BOM) else 0
        return [base, *(match.end() for match in _LINE_END.finditer(self.text))]

    @cached_property
    def _is_ascii(self) -> bool:
        return self.text.isascii()

    def offset(self, line: int, utf8_column: int) -> int:
        """String index of ast's position (line from 1, column in UTF-8 bytes)."""
        start = self._line_starts[line - 1]
        if self._is_ascii:
            return start + utf8_column
        # A character is at least one byte, so the column's characters lie in this slice.
        head = self.text[start : start + utf8_column].encode()[:utf8_column]
        return start + len(head.decode(errors="ignore"))

    def line_start(self, line: int) -> int:
        """The offset at which a line (from 1) begins."""
        return self._line_starts[line - 1]

    def line_text(self, line: int) -> str:
        """The line without its end; lines count from 1."""
        starts = self._line_starts
        end = starts[line] if line < len(starts) else len(self.text)
        return self.text[starts[line - 1] : end].rstrip("\r\n")

    @property
    def num_lines(self) -> int:
        """The number of lines; the one behind the last line break counts."""
        return len(self._line_starts)

    def span(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> Span:
        """Where the node stands, in offsets of the text."""
        end_line, end_column = (
            node.end_lineno or node.lineno,
            node.end_col_offset or node.col_offset,
        )
        return Span(
            start=self.offset(node.lineno, node.col_offset), end=self.offset(end_line, end_column)
        )

    def text_of(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> str:
        """The node's own text."""
        span = self.span(node)
        return self.text[span.start : span.end]

    def full_span(self, node: ast.stmt) -> Span:
        """The node's :meth:`span`, with the decorators of a definition."""
        span = self.span(node)
        if isinstance(node, DefinitionNode) and node.decorator_list:
            return Span(start=self._at_sign(node.decorator_list[0]), end=span.end)
        return span

    def first_line(self, node: ast.stmt) -> int:
        """The line (from 1) on which a statement begins, its decorators included."""
        if isinstance(node, DefinitionNode) and node.decorator_list:
            return node.decorator_list[0].lineno
        return node.lineno

    def name_span(self, node: DefinitionNode) -> Span:
        """The name after ``class`` or ``def``."""
        start = self.span(node).start
        # Whatever stands there: it may be spelled in another Unicode normal form than the tree's
        # name.
        match = _NAME.match(self.text, start)
        return (
            Span(start=match.start(1), end=match.end(1))
            if match
            else Span(start=start, end=start + 5)
        )

    def _at_sign(self, decorator: ast.expr) -> int:
        return self.text.rfind("@", 0, self.offset(decorator.lineno, decorator.col_offset))

    @cached_property
    def imports(self) -> dict[str, str]:
        """Name in this file -> what it was imported as, e.g. ``F`` -> ``torch.nn.functional``."""
        found: dict[str, str] = {}
        for statement in module_level(self.tree.body):
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    top = alias.name.split(".")[0]
                    found[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(statement, ast.ImportFrom):
                found |= _imported_from(statement)
        return found

    @cached_property
    def compiled_names(self) -> frozenset[str]:
        """Names of functions and classes that this file gives to a compiler, as in
        ``torch.compile(Model().to(device))``."""
        if "compile" not in self.text and "jit" not in self.text:
            return frozenset()  # as most files do not; a walk takes 32 ms for 5,000 lines
        given = (
            _first_name(node.args[0])
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and node.args and self.dotted(node.func) in COMPILERS
        )
        return frozenset(name for name in given if name is not None)

    def dotted(self, node: ast.expr) -> str | None:
        """``nn.Linear`` -> ``torch.nn.Linear`` when the root was imported; None for anything
        else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        root = self.imports.get(node.id)
        if root is None:
            return None
        return ".".join([root, *reversed(parts)]) if parts else root


def children(node: ast.AST) -> list[ast.AST]:
    """Child nodes in source order, without operators and contexts, which say nothing by
    themselves."""
    found: list[ast.AST] = []
    _add_children(node, found)
    return found


def walk(root: ast.AST) -> list[ast.AST]:
    """All nodes below the root, like ast.walk, as a list and about four times faster; no operators
    and contexts either."""
    found = [root]
    for node in found:  # grows meanwhile
        if node.__class__ not in _LEAVES:  # two thirds of a tree
            _add_children(node, found)
    return found


def _add_children(node: ast.AST, found: list[ast.AST]) -> None:
    kind = node.__class__
    names = _child_fields.get(kind)
    if names is None:
        names = _child_fields[kind] = tuple(
            name for name in kind._fields if name not in _NO_CHILDREN
        )
    for name in names:
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)


_LEAVES = frozenset({ast.Name, ast.Constant, ast.alias, ast.Pass, ast.Break, ast.Continue})
_NO_CHILDREN = frozenset(
    {"ctx", "op", "ops", "kind", "type_comment", "type_ignores", "id", "attr", "arg"}
)
_child_fields: dict[type, tuple[str, ...]] = {}


def words(text: str) -> frozenset[str]:
    """The words of a long list of names."""
    return frozenset(text.split())


def integer(node: ast.expr | None) -> int | None:
    """The value of an integer literal, negative ones included."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = integer(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def problem_of(error: SyntaxError) -> ParseProblem:
    """What a parser's error says, as a record; line and column count from 1."""
    return ParseProblem(line=error.lineno or 1, column=max(error.offset or 1, 1), message=error.msg)


def parse(text: str) -> ParsedSource | ParseProblem:
    """Parse with Python's own parser, silently and without ever raising."""
    try:
        return ParsedSource(text, parsing.parse_text(text))
    except SyntaxError as error:
        return problem_of(error)
    except ValueError as error:  # null bytes and lone surrogates
        return ParseProblem(line=1, column=1, message=str(error))
    except (RecursionError, MemoryError):
        return ParseProblem(line=1, column=1, message="nested too deeply for Python's parser")


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside: a syntax tree is tens of thousands of objects without a cycle.

    Searching them in vain takes most of the parser's time (9 MB of source: 7.0 s with it, 1.5 s
    without)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run in the module's own scope, through if, try, with and loops, in order."""
    for statement in body:
        yield statement
        for block in blocks(statement):
            yield from module_level(block)


def definitions(body: list[ast.stmt], prefix: str = "") -> list[tuple[str, DefinitionNode]]:
    """(qualified name, node) of every class and function outside functions, in order."""
    found: list[tuple[str, DefinitionNode]] = []
    for statement in module_level(body):
        if isinstance(statement, DefinitionNode):
            found.append((prefix + statement.name, statement))
            if isinstance(statement, ast.ClassDef):
                found += definitions(statement.body, prefix + statement.name + ".")
    return found


def blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The nested statement lists of a compound statement that open no scope."""
    if isinstance(statement, DefinitionNode):
        return []
    nested = [getattr(statement, name, None) or [] for name in ("body", "orelse", "finalbody")]
    nested += [
        case.body
        for case in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))
    ]
    return nested


def _imported_from(statement: ast.ImportFrom) -> dict[str, str]:
    module = "." * statement.level + (statement.module or "")
    if statement.names[0].name == "*":
        return CONVENTIONS
    stem = module if module.endswith(".") else module + "."
    return {alias.asname or alias.name: stem + alias.name for alias in statement.names}


def _first_name(node: ast.expr) -> str | None:
    """``f`` of ``f``, and of ``f(x).to(device)``, which constructs it."""
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None
