"""The C++ and CUDA texts of a file: what its `load_inline` calls build.

Covers literals, and names of the module that are assigned one literal, once. Comments are blanked,
so that no rule finds anything in them. Does not cover: text that is put together, files on disk,
what the preprocessor makes of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kernel_lsp import parsing
from kernel_lsp.analysis.source import ParsedSource

LOAD_INLINE = "torch.utils.cpp_extension.load_inline"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LAUNCH = re.compile(r"<<<(.*?)(?:>>>|\Z)", re.DOTALL)
"""Both end with the text where nothing closes them: looking on from each opening one would take
quadratic time."""


@dataclass(frozen=True, slots=True)
class NativeText:
    """One literal of a call."""

    file: ParsedSource
    node: ast.Constant
    text: str
    """Without comments; every character stands where it stood."""

    def place(self, start: int) -> ast.expr:
        """The line of the file on which the text's character ``start`` stands; the whole literal
        where its lines are not those of the file (escapes)."""
        line = self.text.count("\n", 0, start)
        shown = self.text.splitlines()[line].strip()
        number = self.node.lineno + line
        written = self.file.text.split("\n")[number - 1]
        before = written.find(shown)
        if before < 0 or not shown:
            return self.node
        column = len(written[:before].encode())
        end = column + len(shown.encode())
        return ast.Name(
            id="", lineno=number, col_offset=column, end_lineno=number, end_col_offset=end
        )


def native_texts(file: ParsedSource) -> list[list[NativeText]]:
    """The texts of each call."""
    if "load_inline" not in file.text:
        return []
    known = parsing.assigned_once(file.tree)
    return [
        [NativeText(file, one, _without_comments(str(one.value))) for one in literals]
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Call) and file.dotted(node.func) == LOAD_INLINE
        if (literals := list(_literals([*node.args, *(w.value for w in node.keywords)], known)))
    ]


def launches(text: str) -> Iterator[re.Match[str]]:
    """Configurations of CUDA launches; the first group is what stands between the brackets."""
    return (found for found in _LAUNCH.finditer(text) if found[0].endswith(">>>"))


def first_launches(texts: Iterable[NativeText]) -> Iterator[ast.expr]:
    """The place of the first launch of each text that has one."""
    for one in texts:
        if launch := next(launches(one.text), None):
            yield one.place(launch.start())


def _literals(nodes: list[ast.expr], known: dict[str, ast.expr]) -> Iterator[ast.Constant]:
    """Texts with more than one line or a brace: names and flags are none."""
    for node in nodes:
        value = known.get(node.id, node) if isinstance(node, ast.Name) else node
        if isinstance(value, (ast.List, ast.Tuple)):
            yield from _literals(value.elts, known)
        elif isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield from [value] if "\n" in value.value or "{" in value.value else []


def _without_comments(text: str) -> str:
    return _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
