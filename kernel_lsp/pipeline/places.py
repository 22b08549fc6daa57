"""Which line of a file a line of the program is that was sliced out of it.

A slice holds whole statements of the top level, byte for byte (analysis/slicing.py), so a line is found by
the statement that it stands in. Not covered: imports, which a slice writes anew.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp import parsing
from kernel_lsp.records import NearMiss


def placed(misses: Sequence[NearMiss], program: str, text: str) -> tuple[NearMiss, ...]:
    """The same with lines of the file; None where the program's line is none of the file's."""
    return tuple(replace(miss, line=_line(miss.line, program, text)) for miss in misses)


def _line(line: int | None, program: str, text: str) -> int | None:
    if line is None:
        return None
    lines = _lines(text)
    for block, first in _statements(program):
        if first <= line < first + len(block):
            starts = [at for at in range(len(lines)) if lines[at : at + len(block)] == block]
            return starts[-1] + 1 + line - first if starts else None
    return None


def _statements(program: str) -> list[tuple[list[str], int]]:
    """Lines of each statement of the top level, and the number of its first one, from 1."""
    lines = _lines(program)
    found = []
    for node in parsing.parse(program).body:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators if isinstance(one, ast.expr))])
        found.append((lines[first - 1 : node.end_lineno], first))
    return found


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
